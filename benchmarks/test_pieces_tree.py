"""Timed pieces: walking a state, planning its snapshot, coding its index, planning its restore.

    python -m pytest benchmarks --benchmark-only

Each has its plain reference beside it, in the same group.
"""

import json

import pytest
import torch
from torch.utils._pytree import tree_flatten

from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.manifest.format import FrameTable, IndexDocument, decode_index, encode_index
from asyncckpt.manifest.names import new_save_id, part_name
from asyncckpt.manifest.tree import flatten
from asyncckpt.restore.plan import Want, plan_reads

TENSORS = 1000
FRAME = 4 << 20


@pytest.fixture(scope="module")
def state():
    """1,000 small tensors in the nesting of an optimizer's state."""
    moments = {i: {"step": torch.tensor(1.0), "a": torch.zeros(64, 8), "b": torch.zeros(64, 8)} for i in range(333)}
    return {"state": moments, "param_groups": [{"lr": 1e-3, "params": list(range(333))}]}


def as_leaf(tensor, _path):
    return ["tensor", "float32", list(tensor.shape), None, 0, 0, 0, "cpu", ""]


@pytest.mark.benchmark(group="flatten 1,000 tensors")
def test_flatten(benchmark, state):
    """Our tree of a state."""
    assert benchmark(flatten, state, as_leaf)[0] == "dict"


@pytest.mark.benchmark(group="flatten 1,000 tensors")
def test_flatten_reference(benchmark, state):
    """torch's pytree, which checks and describes nothing."""
    assert len(benchmark(tree_flatten, state)[0]) >= TENSORS


@pytest.mark.benchmark(group="plan a snapshot of 1,000 tensors")
def test_plan_snapshot(benchmark, state):
    """Tree, regions, layout."""
    assert benchmark(plan_snapshot, state).raw_bytes > 333 * 2 * 64 * 8 * 4


@pytest.mark.benchmark(group="plan a snapshot of 1,000 tensors")
def test_plan_snapshot_reference(benchmark, state):
    """Only asking each tensor for where its memory is, and how much."""
    leaves = [leaf for leaf in tree_flatten(state)[0] if isinstance(leaf, torch.Tensor)]
    assert sum(benchmark(lambda: [(leaf.data_ptr(), leaf.nbytes)[1] for leaf in leaves])) > 0


# ---- index ---------------------------------------------------------------------------------------------------------


def index_of(tensors):
    """An index of that many tensors of 4 KiB in frames of 4 MiB."""
    size = 4096
    whole = tensors * size
    raw = [min(FRAME, whole - at) for at in range(0, whole, FRAME)]
    table = FrameTable(raw, raw, ["f4"] * len(raw), ["raw"] * len(raw), "0123456789abcdef" * 2 * len(raw))
    leaves = [["tensor", "float32", [1024], None, i * size, size, 0, "cpu", ""] for i in range(tensors)]
    tree = ["dict", *(part for i, leaf in enumerate(leaves) for part in (f"layer{i}.weight", leaf))]
    return IndexDocument(1, 7, new_save_id(), 0, 1, whole, whole, table, tree)


@pytest.fixture(scope="module")
def document():
    return index_of(TENSORS)


@pytest.mark.benchmark(group="encode an index of 1,000 tensors")
def test_encode_index(benchmark, document):
    """Checked, as JSON, compressed."""
    assert benchmark(encode_index, document)[1] > TENSORS


@pytest.mark.benchmark(group="encode an index of 1,000 tensors")
def test_encode_index_reference(benchmark, document):
    """The tree alone through the standard library's json."""
    assert len(benchmark(json.dumps, document.tree)) > TENSORS


@pytest.mark.benchmark(group="decode an index of 1,000 tensors")
def test_decode_index(benchmark, document):
    """Decompressed, decoded by its types, checked."""
    stored, name = encode_index(document)[0], part_name(document.save_id, 0, 1, "index")
    assert benchmark(decode_index, stored, file=name, entry=None) == document


@pytest.mark.benchmark(group="decode an index of 1,000 tensors")
def test_decode_index_reference(benchmark, document):
    """The tree alone through the standard library's json."""
    assert benchmark(json.loads, json.dumps(document.tree)) == document.tree


@pytest.mark.benchmark(group="plan a restore of 10,000 tensors")
def test_plan_reads(benchmark):
    """Which frames are read, and where their bytes go."""
    frames = index_of(10_000).frames
    wants = [Want(i * 4096, 4096, i) for i in range(10_000)]
    reads = benchmark(plan_reads, frames, wants)
    assert sum(read.nbytes for read in reads) == sum(frames.stored)


@pytest.mark.benchmark(group="plan a restore of 10,000 tensors")
def test_plan_reads_reference(benchmark):
    """One tuple for each tensor, and nothing decided."""
    assert len(benchmark(lambda: [(i * 4096, 4096, i) for i in range(10_000)])) == 10_000
