"""Who did what when: spans of the phases, and the trace made of them."""

import gzip
import json
import subprocess
import sys
import threading
from collections import defaultdict

import pytest
import torch

from asyncckpt import Timeline
from asyncckpt.capture import ranges
from asyncckpt.capture.ranges import profiled
from asyncckpt.events import SPANS, DeleteEvent, Phases, SaveEvent, Span, line_of

MS = 1_000_000
HALF = 500_000  # microseconds; clocks of different kinds differ by thousands of seconds


def span(phase="encode", thread="asyncckpt-encode-0", native_id=1, start=0, stop=MS, nbytes=0):
    return Span(phase, thread, native_id, start, stop, nbytes, 1, stop - start)


def saved(*spans, step=1):
    return SaveEvent(step=step, outcome="committed", save_id="0123456789ab", seconds={"copy": 0.5}, spans=spans)


def slices_of(trace, **wanted):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and wanted.items() <= event.items()]


def profiling():
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def rows_of(trace):
    """Name of each row, by number; of our own process if there are several."""
    names = (event for event in trace["traceEvents"] if event["name"] == "thread_name" and "tid" in event)
    return {event["tid"]: event["args"]["name"] for event in names}


@pytest.fixture
def written(tmp_path):
    """Give events to a timeline, write it, read it back."""

    def go(*events, name="trace.json", **options):
        timeline = Timeline()
        for event in events:
            timeline(event)
        timeline.write(tmp_path / name, **options)
        data = (tmp_path / name).read_bytes()
        return json.loads(gzip.decompress(data) if name.endswith(".gz") else data)

    return go


# ---- spans ---------------------------------------------------------------------------------------------------------


def test_a_phase_leaves_a_span_that_says_where_and_when():
    """Thread, order and bytes are kept, for bodies that are timed and for time that is added when it has passed."""
    phases = Phases()

    def work():
        with phases("encode", 7):
            pass

    with phases("copy"):
        pass
    thread = threading.Thread(target=work, name="encoder")
    thread.start()
    thread.join()
    phases.add("sync", 0.25, 9)
    spans = {one.phase: one for one in phases.spans()}
    assert (spans["copy"].thread, spans["copy"].native_id) == ("MainThread", threading.get_native_id())
    assert (spans["encode"].thread, spans["encode"].nbytes, spans["encode"].count) == ("encoder", 7, 1)
    assert spans["copy"].start <= spans["copy"].stop <= spans["encode"].start <= spans["encode"].stop
    assert (spans["sync"].stop - spans["sync"].start, spans["sync"].nbytes) == (250 * MS, 9)
    assert [one.start for one in phases.spans()] == sorted(one.start for one in phases.spans())


def test_the_spans_of_a_huge_save_are_few_and_add_up():
    """25,000 frames in each of two threads: bounded, and nothing of seconds, bytes and counts is lost."""
    phases = Phases()

    def work():
        for _ in range(25_000):
            with phases("encode", 4):
                pass

    threads = [threading.Thread(target=work, name=f"encoder {i}") for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spans = phases.spans()
    assert len(spans) <= SPANS
    assert sum(one.count for one in spans) == 50_000
    assert sum(one.nbytes for one in spans) == 200_000
    assert sum(one.busy for one in spans) / 1e9 == pytest.approx(phases.seconds()["encode"])
    assert {one.thread for one in spans} == {"encoder 0", "encoder 1"}


def test_where_nothing_can_be_merged_the_longest_spans_stay():
    """One thread that does two things in turn: bounded, its longest span among what is kept."""
    phases = Phases()
    phases.add("copy", 100.0)
    for _ in range(SPANS):
        for name in ("encode", "write"):
            with phases(name):
                pass
    assert len(phases.spans()) <= SPANS
    assert [one.busy for one in phases.spans() if one.phase == "copy"] == [100_000 * MS]


def test_spans_stay_out_of_the_log_line():
    """The line for people has sums, not spans."""
    assert "span" not in line_of(saved(span()))
    assert "copy=0.5000s" in line_of(saved(span()))


# ---- the trace -----------------------------------------------------------------------------------------------------


def test_spans_of_a_save_become_slices_in_the_rows_of_their_threads(written):
    """Times in microseconds from the base, bytes and rates in the details, a bar for the whole save above."""
    trace = written(
        saved(span("copy", "MainThread", 5, 0, 2 * MS), span("encode", start=1 * MS, stop=3 * MS, nbytes=4 * MS))
    )
    (encode,), (copy,), (bar,) = (slices_of(trace, name=name) for name in ("encode", "copy", "save step 1"))
    assert (encode["ts"] - copy["ts"], encode["dur"], copy["ts"]) == (1000, 2000, 0)
    assert encode["args"] == {"step": 1, "save_id": "0123456789ab", "thread": 1, "bytes": 4 * MS, "GB/s": 2.0}
    assert (bar["ts"], bar["dur"], bar["args"]["seconds"]) == (0, 3000, {"copy": 0.5})
    rows = rows_of(trace)
    assert (rows[copy["tid"]], rows[encode["tid"]], rows[bar["tid"]]) == ("MainThread", "asyncckpt-encode-0", "saves")


def test_an_arrow_leads_from_the_copy_over_the_first_frame_to_the_commit(written):
    """One flow per save, its ends inside the slices that they belong to."""
    phases = [("copy", 0), ("copy", 1), ("encode", 2), ("encode", 3), ("publish", 4)]
    trace = written(saved(*(span(name, name, i, i * MS, (i + 1) * MS) for i, (name, i) in enumerate(phases))))
    flow = [event for event in trace["traceEvents"] if event.get("ph") in {"s", "t", "f"}]
    assert [(event["ph"], event["ts"]) for event in flow] == [("s", 1000), ("t", 2000), ("f", 4000)]
    assert len({event["id"] for event in flow}) == 1
    for event in flow:
        assert slices_of(trace, tid=event["tid"], ts=event["ts"])


def test_threads_that_follow_each_other_share_a_row(written):
    """A worker lives as long as there is work: its next life is the same row; two at a time are two rows."""
    later = saved(span(native_id=2, start=5 * MS, stop=7 * MS), step=2)
    beside = saved(span(native_id=3, start=6 * MS, stop=8 * MS), step=3)
    trace = written(saved(span(native_id=1)), later, beside)
    first, second, third = (event["tid"] for event in slices_of(trace, name="encode"))
    assert first == second != third
    assert list(rows_of(trace).values()).count("asyncckpt-encode-0") == 2
    assert list(rows_of(trace).values()).count("saves") == 2


def test_what_took_no_time_is_a_flag(written):
    """Deletions, and saves without spans."""
    trace = written(DeleteEvent("step-000000000001", "retention"), SaveEvent(step=2, outcome="skipped"))
    flags = [event for event in trace["traceEvents"] if event["ph"] == "i"]
    assert [event["name"] for event in flags] == ["delete step-000000000001", "save step 2: skipped"]
    assert flags[0]["args"] == {"folder": "step-000000000001", "reason": "retention"}
    assert 0 <= flags[0]["ts"] <= flags[1]["ts"]


def test_an_empty_timeline_writes_an_empty_trace(written):
    """Nothing has happened yet: still a file that viewers open."""
    assert {event["ph"] for event in written()["traceEvents"]} == {"M"}


def test_a_name_that_ends_in_gz_is_compressed(written):
    """Viewers open both."""
    assert slices_of(written(saved(span()), name="trace.json.gz"), name="encode")


def test_events_go_on_to_the_users_callback_and_the_oldest_are_forgotten(tmp_path):
    """A timeline does not take the callback's place, and a long run does not fill the memory."""
    seen = []
    timeline = Timeline(seen.append, saves=2)
    events = [saved(span(start=step * MS, stop=(step + 1) * MS), step=step) for step in range(3)]
    for event in events:
        timeline(event)
    assert seen == events
    timeline.write(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert [event["args"]["step"] for event in slices_of(trace, name="encode")] == [1, 2]


# ---- beside torch.profiler -----------------------------------------------------------------------------------------


def test_a_profile_and_a_timeline_share_one_time_axis(tmp_path, written):
    """In the merged trace the span lies inside the profiler's range, to half a second, in its own process."""
    phases = Phases()
    with profiling() as profiler, torch.profiler.record_function("around"), phases("copy"):
        torch.ones(10)
    profiler.export_chrome_trace(str(tmp_path / "profile.json"))
    trace = written(saved(*phases.spans()), name="both.json", profile=tmp_path / "profile.json")
    (around,), (copy,) = slices_of(trace, name="around"), slices_of(trace, name="copy")
    assert around["ts"] - HALF <= copy["ts"] <= copy["ts"] + copy["dur"] <= around["ts"] + around["dur"] + HALF
    assert copy["pid"] != around["pid"]
    assert slices_of(trace, cat="cpu_op")


def test_a_profile_that_is_none_is_refused(tmp_path, written):
    """Without the profiler's base time there is no common axis."""
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match=r"other\.json is not a trace with baseTimeNanoseconds"):
        written(saved(span()), profile=tmp_path / "other.json")


def test_ranges_cost_nothing_unless_a_profiler_looks(monkeypatch):
    """``record_function`` is not even made; with a profiler the range is in its events."""
    with profiling() as profiler, profiled("asyncckpt.capture"):
        pass
    assert "asyncckpt.capture" in {event.name for event in profiler.events()}

    def fail(name):
        raise AssertionError(name)

    monkeypatch.setattr(ranges.torch.profiler, "record_function", fail)
    with profiled("asyncckpt.capture"):
        pass


def test_a_timeline_does_not_load_torch():
    """It can be made before anything slow is imported."""
    program = "import sys, asyncckpt; asyncckpt.Timeline(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_rows_of_one_trace_never_overlap(written):
    """In every row slices follow or enclose each other, as viewers demand, however threads come and go."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(0, 100, (300, 3), generator=generator).tolist()
    free = defaultdict(int)  # a thread does one thing after the other
    spans = []
    for start, length, native_id in numbers:
        begin = max(start, free[native_id % 7])
        free[native_id % 7] = begin + length + 1
        spans.append(span(native_id=native_id % 7, start=begin * MS, stop=(begin + length) * MS))
    trace = written(saved(*sorted(spans, key=lambda one: one.start)))
    rows = defaultdict(list)
    for event in slices_of(trace, name="encode"):
        rows[event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert sum(map(len, rows.values())) == 300
    for row in rows.values():
        assert all(one[1] <= two[0] for one, two in zip(sorted(row), sorted(row)[1:], strict=False))
