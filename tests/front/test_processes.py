"""Real processes: how a run may end, and what the next one finds."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from torch.utils.data import DataLoader

import asyncckpt
from asyncckpt import AsyncCheckpointer

PRELUDE = """
import os, signal, sys, threading, time
import torch
from asyncckpt import AsyncCheckpointer, KeepLast
from asyncckpt.testing import FaultyStore, GateStore
from asyncckpt.store.local import LocalStore

root = sys.argv[1]
state = lambda v: {"w": torch.full((200_000,), float(v)), "v": v}

class Slow:
    name = "slow"  # a codec that takes its time, so that the save outlives what follows
    def encode(self, raw, kind):
        time.sleep(0.7)
        return None
    def decode(self, stored, kind, into):
        raise ValueError

class Kill:
    name = "kill"
    def encode(self, raw, kind):
        os.kill(os.getpid(), signal.SIGKILL)
    def decode(self, stored, kind, into):
        raise ValueError
"""


def run(root, body, *, wait=True):
    child = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body), str(root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if wait:
        out, err = child.communicate(timeout=60)
        child.out, child.err = out, err
    return child


@pytest.mark.parametrize(
    ("end", "code"),
    [("ck.close()", 0), ("", 0), ("sys.exit(0)", 0), ("raise RuntimeError('loop')", 1)],
    ids=["close", "end of script", "sys.exit", "exception"],
)
def test_the_last_save_survives_every_kind_of_exit(tmp_path, end, code):
    """Case 20: close, end of script without close, ``sys.exit`` and an exception all leave a complete checkpoint."""
    child = run(tmp_path, f"ck = AsyncCheckpointer(root, compression=Slow())\nck.save(1, state(1))\n{end}\n")
    assert child.returncode == code, child.err
    assert asyncckpt.load(tmp_path)["v"] == 1


def test_sigterm_with_its_default_action_loses_only_the_save_in_flight(tmp_path):
    """Case 22: no handler is installed unasked; the previous step stays valid, the next run cleans up."""
    child = run(
        tmp_path,
        """
        ck = AsyncCheckpointer(root)
        ck.save(1, state(1)).result()
        gate = GateStore(LocalStore(root), {"put_new"})
        ck.close()
        ck = AsyncCheckpointer(gate)
        ck.save(2, state(2))
        gate.entered.wait()
        print("in flight", flush=True)
        signal.pause()
        """,
        wait=False,
    )
    assert child.stdout.readline() == "in flight\n"
    child.terminate()
    child.communicate(timeout=30)
    assert child.returncode == -signal.SIGTERM
    assert len(list(tmp_path.glob("step-*2/*"))) >= 2
    with AsyncCheckpointer(tmp_path) as ck:
        assert ck.restore()["v"] == 1
        ck.save(3, {"v": 3}).result(30)
        assert ck.steps() == [1, 3]
    assert not list(tmp_path.glob("step-*2"))


def test_a_handler_of_the_user_may_save_and_close(tmp_path):
    """Case 22: a SIGTERM handler that saves and closes gets its final step onto disk."""
    child = run(
        tmp_path,
        """
        ck = AsyncCheckpointer(root, compression=Slow())
        def handler(*_):
            ck.save(9, state(9))
            ck.close()
            sys.exit(0)
        signal.signal(signal.SIGTERM, handler)
        ck.save(1, state(1))
        print("ready", flush=True)
        while True:
            time.sleep(0.01)
        """,
        wait=False,
    )
    assert child.stdout.readline() == "ready\n"
    child.terminate()
    _, err = child.communicate(timeout=30)
    assert child.returncode == 0, err
    assert asyncckpt.load(tmp_path)["v"] == 9


def test_handle_signals_asks_for_a_stop_and_chains(tmp_path):
    """``handle_signals``: the flag rises, the old handler is called too, maybe_save saves, close puts the old one back."""
    child = run(
        tmp_path,
        """
        seen = []
        old = lambda *a: seen.append(a[0])
        signal.signal(signal.SIGTERM, old)
        with AsyncCheckpointer(root, handle_signals=(signal.SIGTERM,)) as ck:
            assert not ck.stop_requested and ck.maybe_save(1, state(1)) is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert ck.stop_requested and seen == [signal.SIGTERM]
            assert ck.maybe_save(2, state(2)).result().step == 2
        assert signal.getsignal(signal.SIGTERM) is old
        AsyncCheckpointer(root).close()
        assert signal.getsignal(signal.SIGTERM) is old
        """,
    )
    assert child.returncode == 0, child.err
    assert AsyncCheckpointer(tmp_path).steps() == [2]


@pytest.mark.parametrize("operations", ['{"put"}', '{"put_new"}'], ids=["data", "manifest"])
def test_a_kill_while_writing_costs_only_that_save(tmp_path, operations):
    """Case 25: killed before the MANIFEST the step does not exist; the older one loads and the folder works on."""
    child = run(
        tmp_path,
        f"""
        with AsyncCheckpointer(root) as ck:
            ck.save(10, state(10))
        gate = GateStore(LocalStore(root), {operations})
        ck = AsyncCheckpointer(gate)
        ck.save(20, state(20))
        gate.entered.wait()
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert child.returncode == -signal.SIGKILL, child.err
    with AsyncCheckpointer(tmp_path) as ck:
        assert ck.latest() == 10
        assert ck.restore()["v"] == 10
        ck.save(20, {"v": 20}).result(30)
        assert ck.restore()["v"] == 20


def test_a_kill_in_mid_frame_and_during_replacement(tmp_path):
    """Case 30: a replacement killed half-way leaves the old checkpoint of that step whole."""
    child = run(
        tmp_path,
        """
        with AsyncCheckpointer(root) as ck:
            ck.save(10, state(1))
        ck = AsyncCheckpointer(root, compression=Kill())
        ck.save(10, state(2))
        ck.wait()
        """,
    )
    assert child.returncode == -signal.SIGKILL, child.err
    assert asyncckpt.load(tmp_path)["v"] == 1
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(10, {"v": 2}).result(30)
    assert asyncckpt.load(tmp_path)["v"] == 2
    assert len(list(tmp_path.glob("step-*10/*"))) == 3


def test_the_old_checkpoint_stays_until_the_new_one_is_durable(tmp_path):
    """Case 29: with keep=1, while save 20 is in flight, 10 is what latest() says and what a kill leaves."""
    child = run(
        tmp_path,
        """
        with AsyncCheckpointer(root, keep=KeepLast(1)) as ck:
            ck.save(10, state(10))
        gate = GateStore(LocalStore(root), {"put_new"})
        ck = AsyncCheckpointer(gate, keep=KeepLast(1))
        ck.save(20, state(20))
        gate.entered.wait()
        assert ck.latest() == 10 and ck.steps() == [10]
        os.kill(os.getpid(), signal.SIGKILL)
        """,
    )
    assert child.returncode == -signal.SIGKILL, child.err
    assert asyncckpt.load(tmp_path)["v"] == 10


@pytest.mark.parametrize("moment", range(4))
def test_kills_at_random_moments(tmp_path, moment):
    """Case 25: a loop that saves as fast as it can, killed at a random moment: the newest listed step is whole."""
    child = run(
        tmp_path,
        """
        ck = AsyncCheckpointer(root, keep=KeepLast(2))
        print("go", flush=True)
        for v in range(1, 10_000):
            ck.save(v, state(v))
        """,
        wait=False,
    )
    child.stdout.readline()
    time.sleep(random.uniform(0.05, 0.6))
    child.kill()
    child.communicate(timeout=30)
    with AsyncCheckpointer(tmp_path) as ck:
        for step in ck.steps():
            loaded = asyncckpt.load(tmp_path, step=step)
            assert loaded["v"] == step
            assert torch.equal(loaded["w"], torch.full((200_000,), float(step)))
        ck.save(20_000, {"v": 1}).result(30)
    leftovers = {p.name for p in tmp_path.rglob("*.tmp")}
    assert not leftovers


def test_forked_children_neither_hang_nor_touch_anything(tmp_path, gate):
    """Case 70: DataLoader workers forked while the worker is busy do not hang, and a child that ends does no harm."""

    class Numbers(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return torch.tensor(i)

    with AsyncCheckpointer(gate.store) as ck:
        handle = ck.save(1, {"w": torch.ones(1000)})
        assert gate.entered.wait(30)
        for _ in range(5):
            loader = DataLoader(Numbers(), num_workers=2, multiprocessing_context="fork")
            assert sorted(int(x) for x in loader) == [0, 1, 2, 3]
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                with ck:
                    pass
                ck.close()
                try:
                    ck.save(2, {"w": torch.ones(1)})
                except asyncckpt.ClosedError:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        gate.open()
        handle.result(30)
        ck.save(2, {"w": torch.ones(1)}).result(30)
        assert ck.steps() == [1, 2]


def test_importing_the_library_is_cheap():
    """``import asyncckpt`` alone does not import torch; listing and inspecting do not either."""
    code = """
    import sys, asyncckpt
    asyncckpt.inspect, asyncckpt.KeepLast, asyncckpt.EverySteps
    assert "torch" not in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_peak_memory_is_the_budget_and_a_little(tmp_path):
    """Case 15: compressing incompressible and trivial data adds at most 64 MiB to the snapshot's own memory."""
    body = """
        import resource
        big = {"random": torch.randint(-2**62, 2**62, (100 << 17,), dtype=torch.int64), "zeros": torch.zeros(100 << 18)}
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        small = AsyncCheckpointer(root + "/warm"); small.save(1, state(1)); small.close()
        before = peak()
        with AsyncCheckpointer(root, max_in_flight=1, compression=sys.argv[2] if len(sys.argv) > 2 else "zstd") as ck:
            ck.save(1, big).result()
            used = ck.statistics().pool_bytes / (1 << 20)
        print(peak() - before - used)
    """
    child = run(tmp_path, body)
    assert child.returncode == 0, child.err
    assert float(child.out) < 64


def test_loading_needs_the_state_and_a_little(tmp_path):
    """Case 75: loading 200 MB takes the state and at most 64 MiB more; in place it takes no second copy."""
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {f"w{i}": torch.randn(5 << 20) for i in range(10)})
    body = """
        import resource, asyncckpt
        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        asyncckpt.load(root, only="w0")
        before = peak() - 20
        loaded = asyncckpt.load(root)
        print(peak() - before)
        """
    child = run(tmp_path, body)
    assert child.returncode == 0, child.err
    assert float(child.out) < 200 + 64
