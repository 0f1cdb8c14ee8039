"""The figures that the README quotes, each as a ratio measured in the same interleaved run.

    python benchmarks/figures.py [--rounds 5] [--megabytes 500] [--folder DIR] [--json FILE]

Every round runs all contestants one after the other on the same state in the same folder; a figure is the median over
rounds of the ratio within a round. Wall times on a shared machine are noisy, ratios much less so.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, KeepLast


def main():
    options = arguments()
    root = Path(tempfile.mkdtemp(prefix="figures-", dir=options.folder))
    try:
        result = (
            {"machine": machine()}
            | many_megabytes(root, options)
            | trained_size(root)
            | tiny_tensors(root)
            | loop_slowdown(root)
        )
    finally:
        shutil.rmtree(root)
    show(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--folder", help="where to write (default: the temporary directory)")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def machine():
    return (
        f"{platform.machine()}, {os.cpu_count()} cores, python {platform.python_version()}, torch {torch.__version__}"
    )


def timed(call):
    started = time.perf_counter()
    value = call()
    return time.perf_counter() - started, value


def sync(path):
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def forget(folder):
    """Drop the page cache of every file below: what is read next comes from the disk, for every contestant alike."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def plain_copy(state, touched):
    for key, tensor in state.items():
        touched[key].copy_(tensor)


def adam_like(megabytes, tensors=1000):
    """Weights and both moments of fp32 Adam, in ``tensors`` tensors; random, but with weight-like exponents."""
    each = megabytes * 10**6 // 4 // tensors
    scales = (0.02, 1e-3, 1e-6)
    return {f"layer{i}": torch.randn(each) * scales[i % 3] for i in range(tensors)}


def many_megabytes(root, options):
    state = adam_like(options.megabytes)
    nbytes = sum(t.nbytes for t in state.values())
    touched = {k: torch.zeros_like(v) for k, v in state.items()}
    rows = []
    with (
        AsyncCheckpointer(root / "zstd", keep=KeepLast(1), rng=False) as coded,
        AsyncCheckpointer(root / "none", keep=KeepLast(1), rng=False, compression="none") as plain,
    ):
        for ck in (coded, plain):
            ck.warmup(state)
        for step in range(options.rounds + 1):
            rows.append(one_round(root, state, touched, coded, plain, step))
    rows = rows[1:]  # the first round warms the page cache and the disk

    def ratio(a, b):
        return statistics.median(row[a] / row[b] for row in rows)

    return {
        "state_bytes": nbytes,
        "seconds": {key: statistics.median(row[key] for row in rows) for key in rows[0]},
        "save_call_over_plain_copy": ratio("save_call", "copy"),
        "save_call_over_torch_save_fsync": ratio("save_call", "torch_save"),
        "publish_rate_over_raw_write_fsync_none": ratio("raw_write", "publish_none"),
        "publish_rate_over_raw_write_fsync_zstd": ratio("raw_write", "publish_zstd"),
        "restore_speed_over_torch_load_none": ratio("torch_load", "load_none"),
        "restore_speed_over_torch_load_zstd": ratio("torch_load", "load_zstd"),
        "restore_speed_over_raw_read_none": ratio("raw_read", "load_none"),
    }


def one_round(root, state, touched, coded, plain, step):
    row = {}
    plain_copy(state, touched)  # pages that lay idle may have been taken from us; both sides start warm
    row["copy"] = timed(lambda: plain_copy(state, touched))[0]
    for name, ck in (("zstd", coded), ("none", plain)):
        row["save_call" if name == "none" else "save_call_zstd"], handle = timed(lambda ck=ck: ck.save(step, state))
        row[f"publish_{name}"] = timed(handle.result)[0]
    row["torch_save"] = timed(lambda: torch_save(state, root / "t.pt"))[0]
    row["raw_write"] = timed(lambda: raw_write(state, root / "raw.bin"))[0]
    forget(root)
    row["torch_load"] = timed(lambda: torch.load(root / "t.pt"))[0]
    row["raw_read"] = timed((root / "raw.bin").read_bytes)[0]
    for name in ("zstd", "none"):
        row[f"load_{name}"] = timed(lambda name=name: asyncckpt.load(root / name))[0]
    return row


def torch_save(state, path):
    torch.save(state, path.with_suffix(".tmp"))
    sync(path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def raw_write(state, path):
    with open(path, "wb", buffering=0) as file:
        file.writelines(memoryview(tensor.numpy()).cast("B") for tensor in state.values())
        os.fsync(file.fileno())


def trained_size(root):
    """Size on disk of a small model that was really trained, with its Adam moments, over the raw bytes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(200):
        x = torch.randn(64, 256)
        loss = (model(x) - x.roll(1, 1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with AsyncCheckpointer(root / "trained", rng=False) as ck:
        info = ck.save(1, {"model": model, "optimizer": optimizer}).result()
    return {"trained_fp32_adam_stored_over_raw": info.stored_bytes / info.raw_bytes}


def tiny_tensors(root, count=100_000):
    state = {f"t{i}": torch.full((10,), float(i)) for i in range(count)}
    with AsyncCheckpointer(root / "tiny", rng=False) as ck:
        call, handle = timed(lambda: ck.save(1, state))
        info = handle.result()
    seconds, loaded = timed(lambda: asyncckpt.load(root / "tiny"))
    assert torch.equal(loaded["t777"], state["t777"])
    return {
        "tiny_save_call_seconds": call,
        "tiny_restore_seconds": seconds,
        "tiny_raw_bytes": info.raw_bytes,
        "tiny_stored_bytes": info.stored_bytes,
    }


def loop_slowdown(root):
    """How much slower a pure Python loop runs while a 200 MB save is written: median tick over median tick without."""

    def ticks(until):
        times = []
        while not until(times):
            times.append(timed(lambda: sum(i * i for i in range(10_000)))[0])
        return statistics.median(times)

    result = {}
    for name, state in (
        ("one_tensor", {"big": torch.randn(50_000_000)}),
        ("20000_tensors", {f"t{i}": torch.randn(2500) for i in range(20_000)}),
    ):
        with AsyncCheckpointer(root / name, rng=False) as ck:
            ck.warmup(state)
            alone = ticks(lambda times: len(times) >= 200)
            handle = ck.save(1, state)
            result[f"loop_tick_while_saving_over_alone_{name}"] = ticks(lambda _, h=handle: h.done()) / alone
    return result


def show(result):
    for key, value in result.items():
        if isinstance(value, dict):
            for name, seconds in value.items():
                print(f"  {name + ' (s)':42} {seconds:10.4f}")
        else:
            print(f"{key:44} {value:10.4f}" if isinstance(value, float) else f"{key:44} {value}")


if __name__ == "__main__":
    main()
