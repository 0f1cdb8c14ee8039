"""compression="auto": coding where it makes a save no slower, from measured rates."""

import logging

import pytest

from asyncckpt.publish.auto import DOUBT, REMEASURE, SAMPLE, SLACK, AutoCompression, Rates, Written, pays

FRAME = 4 << 20
FRAMES = 16


class Clock:
    """Seconds that pass only when told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Model:
    """Encoders and a store of given rates, in bytes per second, working on one save after the other. Also the codec.

    A store that gathers is waited for only when it is the slower one, and at the end for its last piece.
    """

    name = "model"

    def __init__(self, encode, ratio, write):
        self.rate, self.ratio, self.write = encode, ratio, write
        self.clock = Clock()
        self.auto = AutoCompression(self, 2, clock=self.clock)

    def encode(self, raw, kind):
        self.clock.now += len(raw) / (self.rate / 2)  # one of two threads
        return [bytes(int(len(raw) * self.ratio))]

    def decode(self, stored, kind, into):
        raise NotImplementedError

    def save(self):
        """Give the share of frames that were stored coded."""
        codec = self.auto.begin(FRAMES)
        stored = [None if codec is None else codec.encode(memoryview(bytes(FRAME)), "f4") for _ in range(FRAMES)]
        nbytes = sum(FRAME if parts is None else len(parts[0]) for parts in stored)
        coded = sum(parts is not None for parts in stored)
        encoding, writing, last = coded * FRAME / self.rate, nbytes / self.write, FRAME / self.write
        seconds = max(encoding, writing) + last
        self.auto.learn(Written(FRAMES * FRAME, nbytes, max(seconds - encoding, last), seconds))
        return coded / FRAMES


@pytest.mark.parametrize(
    ("encode", "ratio", "write", "coding"),
    [
        (2e9, 0.8, 0.5e9, True),  # a slow store
        (2e9, 0.8, 1.9e9, True),  # coding keeps up
        (2e9, 0.8, 5e9, False),  # a fast store
        (0.3e9, 0.4, 1e9, False),  # a slow codec, however well it does
        (9e9, 0.99, 0.1e9, False),  # nothing to gain
    ],
)
def test_coding_pays_where_it_slows_nothing(encode, ratio, write, coding):
    """The choice follows from the three rates, whatever was chosen before."""
    rates = Rates(encode, ratio, write)
    assert pays(rates, coding=True) is coding
    assert pays(rates, coding=False) is coding


def test_noise_does_not_flip_the_choice():
    """Around the point of no difference what is done goes on."""
    for write in (1 - SLACK / 2, 1, 1 + SLACK / 2):
        rates = Rates(1e9, 0.8, write * 1e9)
        assert pays(rates, coding=True)
        assert not pays(rates, coding=False)


@pytest.mark.parametrize(
    ("encode", "ratio", "write", "coding"),
    [
        (2e9, 0.8, 0.4e9, True),
        (2e9, 0.8, 1.8e9, True),
        (2e9, 0.8, 3e9, False),
        (0.2e9, 0.5, 0.25e9, False),
        (0.2e9, 0.5, 20e9, False),
        (2e9, 0.99, 0.4e9, False),
    ],
)
def test_the_choice_settles_and_stays(encode, ratio, write, coding):
    """After two saves to learn from, every further one does what the true rates ask for."""
    pipeline = Model(encode, ratio, write)
    for _ in range(2):
        pipeline.save()
    assert {pipeline.save() for _ in range(3 * REMEASURE)} == {float(coding)}


def test_the_first_save_is_coded_if_its_first_frames_shrink():
    """A state that does not shrink is found out after a few frames; one that does is coded to its end."""
    assert Model(2e9, 0.8, 9e9).save() == 1.0
    assert Model(2e9, 0.98, 9e9).save() == SAMPLE / FRAMES


def test_what_changes_is_noticed():
    """A slower store shows at once, faster encoders when they are measured anew, a faster store in the end."""
    pipeline = Model(2e9, 0.8, 9e9)
    for _ in range(3):
        pipeline.save()
    assert pipeline.save() == 0.0
    pipeline.write = 0.5e9
    pipeline.save()
    assert pipeline.save() == 1.0
    pipeline.write = 9e9
    assert 0.0 in [pipeline.save() for _ in range(DOUBT + 1)]
    assert pipeline.save() == 0.0
    pipeline.rate = 40e9
    assert [pipeline.save() for _ in range(2 * REMEASURE)][-1] == 1.0


def test_measuring_anew_stores_frames_as_they_are():
    """Of a save whose frames are not coded a few, spread over it, are coded for their time only."""
    pipeline = Model(2e9, 0.8, 9e9)
    for _ in range(2):
        pipeline.save()
    meters = [pipeline.auto.begin(FRAMES) for _ in range(REMEASURE)]
    assert [meter is None for meter in meters].count(False) == 1
    meter = next(meter for meter in meters if meter is not None)
    before = pipeline.clock.now
    assert [meter.encode(memoryview(bytes(FRAME)), "f4") for _ in range(FRAMES)] == [None] * FRAMES
    assert pipeline.clock.now - before == pytest.approx(SAMPLE * FRAME / 1e9)


def test_each_change_is_logged_once_with_its_reason(caplog):
    """The line names the choice and the three rates behind it; the model's last write costs some of its 0.5 GB/s."""
    caplog.set_level(logging.INFO, "asyncckpt")
    pipeline = Model(2e9, 0.8, 9e9)
    for _ in range(5):
        pipeline.save()
    pipeline.write = 0.5e9
    for _ in range(5):
        pipeline.save()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "as they are" in lines[0]
    assert "codes frames" in lines[1]
    assert "0.80 of the size at 2.00 GB/s, the store takes 0.47 GB/s" in lines[1]


def test_a_doubtful_rate_is_looked_at_again():
    """Where encoding hides how fast the store is, one save in many goes as it is; if coding pays, it goes on."""
    pipeline = Model(2e9, 0.8, 1.8e9)
    shares = [pipeline.save() for _ in range(3 * DOUBT)]
    assert shares[-1] == 1.0
    assert 2 <= shares.count(0.0) <= 4


def test_small_saves_teach_nothing(caplog):
    """What takes a moment is all overhead: no rate is taken from it."""
    caplog.set_level(logging.INFO, "asyncckpt")
    pipeline = Model(2e9, 0.8, 9e9)
    for _ in range(3):
        codec = pipeline.auto.begin(1)
        assert codec.encode(memoryview(bytes(1000)), "f4") is not None
        pipeline.auto.learn(Written(1000, 800, 1.0, 1.0))
    assert not caplog.records
