"""How a failed save is told, and that it costs nothing but itself."""

import errno

import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer, KeepLast
from asyncckpt.errors import CheckpointError, ClosedError, PermanentStoreError, SaveError


def state(value):
    return {"w": torch.full((1000,), float(value))}


def test_a_background_error_is_raised_by_the_next_save_once(faulty):
    """Case 16: the error of save 20 reaches the next call, once, with its cause; 10 is still there; 30 succeeds."""
    with AsyncCheckpointer(faulty.store, keep=KeepLast(1)) as ck:
        ck.save(10, state(10)).result(30)
        faulty.failing = True
        handle = ck.save(20, state(20))
        while not handle.done():
            pass
        faulty.failing = False
        with pytest.raises(PermanentStoreError) as caught:
            ck.save(30, state(30))
        assert isinstance(caught.value, OSError)
        assert (caught.value.errno, caught.value.step) == (errno.ENOSPC, 20)
        assert caught.value.save_id
        assert isinstance(caught.value.__cause__, OSError)
        assert ck.steps() == [10]
        ck.save(30, state(30)).result(30)
        assert ck.steps() == [30]
        ck.wait()
    assert asyncckpt.load(faulty.root)["w"][0] == 30


def test_an_error_that_was_looked_at_is_not_raised_again(faulty):
    """The handle delivers the error; then the next calls do not."""
    with AsyncCheckpointer(faulty.store) as ck:
        faulty.failing = True
        with pytest.raises(PermanentStoreError):
            ck.save(1, state(1)).result(30)
        faulty.failing = False
        ck.wait()
        ck.save(2, state(2)).result(30)


@pytest.mark.parametrize("call", ["wait", "close"])
def test_wait_and_close_deliver_too(faulty, call):
    """What nobody has looked at is raised by ``wait`` or ``close``; others become notes."""
    ck = AsyncCheckpointer(faulty.store)
    ck.save(1, state(1)).result(30)
    faulty.failing = True
    for step in (2, 3):
        ck.save(step, state(step))
        while not ck._intake._failed or ck._intake._failed[-1].step != step:
            if step == 3:
                break
        if step == 2:
            break
    with pytest.raises(PermanentStoreError) as caught:
        getattr(ck, call)()
    assert caught.value.step == 2
    ck.close()


def test_the_body_of_a_with_block_keeps_its_own_exception(faulty):
    """The training loop's exception is what comes out; the failed save is a note on it."""
    with pytest.raises(ZeroDivisionError) as caught, AsyncCheckpointer(faulty.store) as ck:
        faulty.failing = True
        ck.save(1, state(1))
        1 / 0  # noqa: B018
    assert any("step" in note or "space" in note for note in caught.value.__notes__)


def test_a_codec_that_breaks_fails_its_save_only(tmp_path):
    """An error that is not a checkpoint error is wrapped in SaveError, with the original as its cause."""

    class Broken:
        name = "broken"

        def encode(self, raw, kind):
            raise ZeroDivisionError("codec")

        def decode(self, stored, kind, into):
            raise AssertionError

    with AsyncCheckpointer(tmp_path, compression=Broken()) as ck:
        handle = ck.save(1, state(1))
        with pytest.raises(SaveError, match="step 1") as caught:
            handle.result(30)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert ck.steps() == []
    assert not list(tmp_path.glob("step-*/*"))


def test_close_is_idempotent_and_final(tmp_path):
    """Case 20: ``close`` twice is fine; ``save`` after it raises ClosedError."""
    ck = AsyncCheckpointer(tmp_path)
    handle = ck.save(1, state(1))
    ck.close()
    assert handle.status == "committed"
    ck.close()
    with pytest.raises(ClosedError):
        ck.save(2, state(2))
    with pytest.raises(ClosedError):
        ck.restore()


def test_close_and_wait_are_bounded(gate):
    """A store that hangs does not hang ``wait(timeout)``; it names the steps that are not durable."""
    ck = AsyncCheckpointer(gate.store)
    ck.save(7, state(7))
    with pytest.raises(TimeoutError, match="7"):
        ck.wait(0.05)
    with pytest.raises(TimeoutError, match="7"):
        ck.close(0.05)
    gate.open()
    ck._worker.drain(30)
    ck.close()
    with AsyncCheckpointer(gate.store) as other:  # the root is free again
        other.save(8, state(8)).result(30)


def test_events_and_statistics_tell_the_story(tmp_path, caplog):
    """One structured log line, one event and one count per save; timings stand in the manifest as well."""
    caplog.set_level("INFO", "asyncckpt")
    events = []
    with AsyncCheckpointer(tmp_path, on_event=events.append, rng=False) as ck:
        info = ck.save(3, state(3), metrics={"loss": 0.5}, metadata={"note": "x"}).result(30)
    (event,) = [e for e in events if getattr(e, "outcome", None)]
    assert (event.step, event.outcome, event.save_id) == (3, "committed", info.save_id)
    assert {"copy", "wait", "encode", "write"} <= event.seconds.keys()
    assert event.raw_bytes == info.raw_bytes == 4000
    assert info.stored_bytes > 0
    assert {"copy", "encode", "write"} <= info.timings.keys()
    assert info.metrics == {"loss": 0.5}
    assert info.metadata == {"note": "x"}
    assert set(info.versions) == {"asyncckpt", "torch", "python"}
    assert ck.statistics().committed == 1
    assert "step=3" in caplog.text
    assert "outcome=committed" in caplog.text


@pytest.mark.parametrize(
    ("keywords", "error", "word"),
    [
        ({"snapshot": "none"}, ValueError, "snapshot"),
        ({"process_group": object()}, NotImplementedError, "process_group"),
        ({"when_full": "explode"}, ValueError, "when_full"),
        ({"max_in_flight": 0}, ValueError, "max_in_flight"),
        ({"compression": "lzma"}, ValueError, "compression"),
        ({"optimizers": [1]}, TypeError, "optimizers"),
        ({"keep": 3}, TypeError, "keep"),
        ({"schedule": 500}, TypeError, "schedule"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, keywords, error, word):
    """A wrong argument is refused at construction, by name."""
    with pytest.raises(error, match=word):
        AsyncCheckpointer(tmp_path, **keywords)


@pytest.mark.parametrize(("step", "error"), [(True, TypeError), (1.5, TypeError), ("1", TypeError), (-1, ValueError)])
def test_wrong_steps_are_refused_in_the_call(tmp_path, step, error):
    """A step is a whole number of at least 0."""
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(error, match="step"):
        ck.save(step, state(1))


def test_wrong_metrics_and_metadata_are_refused_in_the_call(tmp_path):
    """A metric is one number; metadata is plain; a state is a dict."""
    with AsyncCheckpointer(tmp_path) as ck:
        with pytest.raises(TypeError, match="loss"):
            ck.save(1, state(1), metrics={"loss": "low"})
        with pytest.raises(TypeError, match="x"):
            ck.save(1, state(1), metadata={"x": torch.ones(2)})
        with pytest.raises(TypeError, match="state"):
            ck.save(1, [1, 2])
        assert ck.save(1, {}, metrics={"loss": torch.tensor(0.5)}).exception(30) is None
    assert issubclass(PermanentStoreError, CheckpointError)


def test_remote_roots_are_refused_until_they_work(tmp_path, monkeypatch):
    """Case 76: a bucket URL gives a clear error at construction; no local folder called ``s3:`` appears."""
    monkeypatch.chdir(tmp_path)
    for url in ("s3://bucket/run", "gs://bucket/run", "az://container/run"):
        with pytest.raises(ValueError, match=url.split(":")[0]):
            AsyncCheckpointer(url)
    assert list(tmp_path.iterdir()) == []


def test_a_done_callback_cannot_save(tmp_path, caplog):
    """A save from the worker's own thread would wait for itself; it is refused, and the log says so."""
    with AsyncCheckpointer(tmp_path) as ck:
        handle = ck.save(1, state(1))
        handle.add_done_callback(lambda h: ck.save(2, state(2)) if h.step == 1 and not ck._closed else None)
        handle.result(30)
        ck.wait()
        assert ck.steps() in ([1], [1, 2])  # 2 if the save was done before the callback was added
