"""Two states compared bit by bit: types, order of keys, shapes, dtypes and every byte (NaN and -0.0 included)."""

import struct
from collections.abc import Iterator
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Leaf(NamedTuple):
    """One thing that must be equal: where it is, what it is, and its value as bytes."""

    path: str
    kind: str
    value: bytes


class Verdict(NamedTuple):
    """``difference`` names the first one, or is None; the rest says how much was compared."""

    difference: str | None
    tensors: int
    nbytes: int


def compare(left: object, right: object) -> Verdict:
    ours = list(leaves(left))
    pairs = zip_longest(ours, leaves(right))
    difference = next((spell(one, other) for one, other in pairs if one != other), None)
    return Verdict(difference, sum("tensor" in leaf.kind for leaf in ours), sum(len(leaf.value) for leaf in ours))


def leaves(value: Any, path: str = "state") -> Iterator[Leaf]:
    """Every container (its kind and keys) and every value of a state, in order."""
    kind = type(value).__name__
    if isinstance(value, Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield Leaf(path, f"{value.dtype} tensor of shape {tuple(value.shape)}", raw.numpy().tobytes())
    elif isinstance(value, dict):
        yield Leaf(path, f"{kind} with keys {list(value)}", b"")
        for key, item in value.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        yield Leaf(path, f"{kind} of length {len(value)}", b"")
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}[{index}]")
    else:
        yield Leaf(path, kind, struct.pack("d", value) if isinstance(value, float) else repr(value).encode())


def spell(left: Leaf | None, right: Leaf | None) -> str:
    """Say in words how two leaves differ."""
    if left is None or right is None:
        present = left or right
        return f"only one of them has {present.path if present else 'this'}"
    if left[:2] != right[:2]:
        return f"{left.path} is a {left.kind:.200} against a {right.kind:.200} at {right.path}"
    where = next(at for at, (one, other) in enumerate(zip_longest(left.value, right.value)) if one != other)
    return f"{left.path} ({left.kind}) differs from its byte {where} on"
