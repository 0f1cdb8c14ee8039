"""Leaves that come from a file: their types, and that they reach nothing outside the logical byte string."""

import json

import msgspec
import pytest

from asyncckpt.errors import FormatError
from asyncckpt.manifest.format import ArrayLeaf, BytesLeaf, TensorLeaf, check_leaf, read_leaf


def tensor(**changes):
    """A dense float32 leaf, with changes."""
    fields = {
        "dtype": "float32", "shape": (2, 3), "strides": None, "region": 64, "region_bytes": 24, "offset": 0,
        "device": "cuda:0",
        "flags": "pg",
    }  # fmt: skip
    return TensorLeaf(**{**fields, **changes})


GOOD_LEAVES = [
    (tensor(), 4), (tensor(strides=(3, 1)), 4), (tensor(strides=(1, 2)), 4),
    (tensor(strides=(0, 0), region_bytes=4), 4),
    (tensor(shape=(), region_bytes=4), 4), (tensor(shape=(0, 5), region_bytes=0, region=0), 4),
    (tensor(shape=(1,), offset=20), 4),
    (tensor(shape=(0,), strides=(7,), region_bytes=0, region=128), 4), (tensor(device="meta", flags=""), 1),
    (ArrayLeaf("<f8", (3,), "C", 0, 24), 8), (ArrayLeaf([["a", "<i4"]], (), "F", 100, 4), 4), (BytesLeaf(128, 0), 1),
    (BytesLeaf(0, 128), 1),
]  # fmt: skip
BAD_LEAVES = [
    (tensor(region=-1), 4), (tensor(region_bytes=-1), 4), (tensor(region=105), 4), (tensor(shape=(2, 4)), 4),
    (tensor(shape=(-2, -3)), 4),
    (tensor(offset=1), 4), (tensor(offset=-4), 4), (tensor(strides=(3,)), 4), (tensor(strides=(3, -1)), 4),
    (tensor(strides=(4, 1)), 4),
    (tensor(shape=(2**40, 2**40), strides=(0, 0)), 4), (tensor(shape=(2**62,)), 8), (tensor(shape=(2**64, 0)), 4),
    (tensor(flags="gp"), 4),
    (tensor(flags="x"), 4), (tensor(device="cpu;rm"), 4), (tensor(device=""), 4), (tensor(shape=(1,) * 65), 4),
    (tensor(), 8),
    (tensor(strides=(2**63, 1)), 4), (ArrayLeaf("<f8", (3,), "A", 0, 24), 8), (ArrayLeaf("<f8", (3,), "C", 0, 23), 8),
    (ArrayLeaf("<f8", (-3,), "C", 0, 24), 8), (BytesLeaf(120, 9), 1), (BytesLeaf(2**70, 1), 1), (BytesLeaf(-1, 1), 1),
]  # fmt: skip


@pytest.mark.parametrize(("leaf", "itemsize"), GOOD_LEAVES)
def test_a_leaf_inside_its_region_passes(leaf, itemsize):
    """Dense, strided, expanded, empty and scalar leaves pass."""
    check_leaf(leaf, 128, itemsize=itemsize)


@pytest.mark.parametrize(("leaf", "itemsize"), BAD_LEAVES)
def test_a_leaf_that_reaches_outside_is_refused(leaf, itemsize):
    """Nothing outside the region, or outside the logical byte string, can be reached, whatever the numbers."""
    with pytest.raises(FormatError):
        check_leaf(leaf, 128, itemsize=itemsize, what="model.w")


def test_leaves_are_read_by_their_types():
    """The arguments of a node become a leaf, or a FormatError that names the key path."""
    args = json.loads(msgspec.json.encode(tensor()))
    assert read_leaf(TensorLeaf, args, "w") == tensor()
    for bad in ([], args[:3], [*args, 1], [1, *args[1:]], [*args[:3], "x", *args[4:]]):
        with pytest.raises(FormatError, match=r"model\.w"):
            read_leaf(TensorLeaf, bad, "model.w")
