"""Saves a state with everything that the front door would note, and restores it, without the front door."""

from checkpoint_by_hand import FOLDER, Hand

from asyncckpt.encode.frame import known_codecs
from asyncckpt.training.restore import restore_state
from asyncckpt.training.stateful import payload_of


def saved(state, *, rng=False, **keywords):
    return Hand(**keywords).write(payload=payload_of(state, rng=rng)[0])


def restored(hand, state, **keywords):
    keywords.setdefault("rng", False)
    return restore_state(state, hand.store, FOLDER, hand.manifest, codecs=known_codecs(), **keywords)
