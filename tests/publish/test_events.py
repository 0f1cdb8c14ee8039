"""One line and one record for each thing that happens."""

import logging
import threading

import pytest

from asyncckpt.events import DeleteEvent, Phases, SaveEvent, emit, logger

COMMITTED = SaveEvent(step=3, outcome="committed", save_id="0123456789ab", seconds={"copy": 0.5}, raw_bytes=7)


def test_an_event_is_logged_and_handed_over(caplog):
    """One line of key=value words at INFO, an error for a failed save; the callback gets the same record."""
    caplog.set_level("INFO", "asyncckpt")
    events = []
    failed = SaveEvent(step=4, outcome="failed", error="no space left")
    for event in (COMMITTED, failed, DeleteEvent("step-000000000001", "retention")):
        emit(events.append, event)
    assert events == [COMMITTED, failed, DeleteEvent("step-000000000001", "retention")]
    lines = [record.getMessage() for record in caplog.records]
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.ERROR, logging.INFO]
    for word in ("step=3", "outcome=committed", "save_id=0123456789ab", "copy=0.5000s", "raw_bytes=7"):
        assert word in lines[0].split()
    assert "error='no space left'" in lines[1]
    assert lines[2].split()[1:] == ["folder=step-000000000001", "reason=retention"]


def test_a_failing_callback_is_logged_and_goes_no_further(caplog):
    """The user's callback cannot fail a save."""

    def broken(event):
        raise ZeroDivisionError("callback")

    emit(broken, COMMITTED)
    assert "ZeroDivisionError" in caplog.text
    emit(None, COMMITTED)
    assert logger.name == "asyncckpt"


def test_phases_add_up_over_threads():
    """Seconds of a phase are summed over all threads and calls, also of bodies that raise."""
    phases = Phases()

    def work():
        for _ in range(1000):
            phases.add("encode", 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(ZeroDivisionError), phases("write"):
        1 / 0  # noqa: B018
    seconds = phases.seconds()
    assert seconds["encode"] == 2000.0
    assert seconds["write"] >= 0
    seconds.clear()
    assert set(phases.seconds()) == {"encode", "write"}
