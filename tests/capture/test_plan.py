"""What a plan stores of tensors, and that a snapshot holds exactly those bytes."""

import numpy as np
import pytest
import torch

from asyncckpt.capture.plan import plan_snapshot
from asyncckpt.capture.pool import Pool
from asyncckpt.capture.snapshot import Snapshot
from asyncckpt.errors import UnsupportedStateError
from asyncckpt.manifest.tree import leaves

MB = 1 << 20


def bytes_of_snapshot(plan, **keywords):
    """The logical byte string, through a pool."""
    pool = Pool(host_memory=None, max_in_flight=1, **keywords)
    taken = Snapshot(plan, pool.admit(plan.raw_bytes))
    taken.capture()
    raw = b"".join(bytes(taken.read(i)) for i in range(len(taken.frames)))
    for i in range(len(taken.frames)):
        taken.release(i)
    taken.release_all()
    assert pool.usage().bytes_in_use == 0
    pool.close()
    return raw


def tensor_nodes(plan):
    """What stands after the tag of every tensor's node, in the order of their paths."""
    found = [(path, arguments) for path, tag, arguments in leaves(plan.tree) if tag == "tensor"]
    return [arguments for _, arguments in sorted(found, key=lambda entry: entry[0])]


def rebuilt(state):
    """Tensors made from plan and bytes by nothing but the format's description, by their place in the list."""
    plan = plan_snapshot(state)
    raw = np.frombuffer(bytearray(bytes_of_snapshot(plan)), np.uint8)
    result = []
    for name, shape, strides, region, nbytes, offset, *_ in tensor_nodes(plan):
        dtype = getattr(torch, name)
        storage = torch.from_numpy(raw[region : region + nbytes].copy()).untyped_storage()
        empty = torch.empty(0, dtype=dtype)
        contiguous = torch.empty(shape, device="meta").stride()
        result.append(empty.set_(storage, offset // dtype.itemsize, shape, strides or contiguous))
    return plan, result


def distinct_regions(plan):
    return {(node[3], node[4]) for node in tensor_nodes(plan) if node[4]}


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def test_a_view_stores_its_own_range_only():
    """A row of a large matrix costs one row."""
    base = torch.arange(10_000.0).view(100, 100)
    plan, (row,) = rebuilt([base[7]])
    assert plan.raw_bytes == 400
    assert same(row, base[7])


def test_tied_tensors_are_one_region():
    """A tensor that occurs twice, or as view and base, is stored once."""
    base = torch.arange(100.0)
    plan, results = rebuilt([base, base, base[10:50], base.view(10, 10).t()])
    assert plan.raw_bytes == 400
    assert len(distinct_regions(plan)) == 1
    assert all(same(a, b) for a, b in zip(results, [base, base, base[10:50], base.view(10, 10).t()], strict=True))


def test_neighbours_in_one_storage_are_stored_apart():
    """Slices of one storage that do not overlap are regions of their own; what nobody saves is not stored."""
    base = torch.arange(1000.0)
    plan, results = rebuilt([base[:10], base[500:510]])
    assert plan.raw_bytes == 80
    assert same(results[1], base[500:510])


def test_distant_views_that_overlap_little_are_not_blown_up():
    """A column of a large matrix and a row of it are stored as copies, not as the whole matrix."""
    base = torch.arange(10_000.0).view(100, 100)
    plan, results = rebuilt([base[:, 3], base[5]])
    assert plan.raw_bytes == 800
    assert same(results[0], base[:, 3])
    assert same(results[1], base[5])


def test_expanded_permuted_and_holey_tensors():
    """Repeated elements are stored once, permuted ones as they lie, those with holes gathered."""
    expanded, permuted = torch.arange(5.0).view(5, 1).expand(5, 1000), torch.arange(24.0).view(2, 3, 4).permute(2, 0, 1)
    holes = torch.arange(100.0).view(10, 10)[:, ::2]
    plan, results = rebuilt([expanded, permuted, holes])
    assert plan.raw_bytes == 20 + 96 + 200
    assert all(same(a, b) for a, b in zip(results, [expanded, permuted, holes], strict=True))
    assert results[0].stride() == expanded.stride()
    assert results[1].stride() == permuted.stride()
    assert results[2].is_contiguous()


def test_dtypes_mixed_in_one_storage():
    """Overlapping views of different dtypes share one region of plain bytes, begun where the widest may begin."""
    base = torch.arange(64, dtype=torch.uint8)
    views = [base[3:40], base[8:48].view(torch.float64), base[4:20].view(torch.int32)]
    plan, results = rebuilt(views)
    assert len(distinct_regions(plan)) == 1
    assert plan.outline.regions[0].group == ("b1", "mixed")
    assert all(same(a, b) for a, b in zip(results, views, strict=True))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_storages_that_alias_one_memory(order):
    """Tensors made separately from one numpy array share memory but not a storage; the longer one is the region."""
    array = np.arange(1000, dtype=np.float32)
    tensors = [torch.from_numpy(array[:500]), torch.from_numpy(array)]
    tensors = [tensors[i] for i in order]
    plan, results = rebuilt(tensors)
    assert plan.raw_bytes == 4000
    assert all(same(a, b) for a, b in zip(results, tensors, strict=True))
    assert [t.untyped_storage().nbytes() for t in tensors] == [[2000, 4000][i] for i in order]


def test_empty_and_scalar_tensors():
    """Empty tensors take no bytes and share nothing; scalars take one element."""
    tensors = [torch.empty(0), torch.empty(3, 0, dtype=torch.int64), torch.tensor(2.5), torch.tensor(True)]
    plan, results = rebuilt(tensors)
    assert all(same(a, b) for a, b in zip(results, tensors, strict=True))
    assert sum(region.nbytes for region in plan.outline.regions) == 5
    assert plan_snapshot([]).raw_bytes == 0
    assert bytes_of_snapshot(plan_snapshot([torch.empty(0)])) == b""


def test_conjugate_and_negative_views_are_resolved():
    """A lazy conjugation is part of the value."""
    z = torch.tensor([1 + 2j, 3 - 4j])
    _, (conjugate, negative) = rebuilt([z.conj(), z.conj().imag])
    assert same(conjugate, z.conj().resolve_conj())
    assert same(negative, z.conj().imag.resolve_neg())


@pytest.mark.parametrize("count", [1, 3, 200])
def test_every_dtype_beside_every_other(count):
    """Runs of small tensors of many dtypes, with empty ones and gaps between, are joined into the right places."""
    generator = torch.Generator().manual_seed(count)
    dtypes = [torch.float32, torch.bfloat16, torch.uint8, torch.bool, torch.int64, torch.complex64, torch.float8_e4m3fn]
    tensors = []
    for i in range(count):
        for dtype in dtypes:
            raw = torch.randint(0, 2, (dtype.itemsize * (i % 5),), dtype=torch.uint8, generator=generator)
            tensors.append(raw.view(dtype))
    _, results = rebuilt(tensors)
    for result, tensor in zip(results, tensors, strict=True):
        assert result.dtype == tensor.dtype
        assert torch.equal(result.view(torch.uint8), tensor.view(torch.uint8))


def test_a_large_tensor_with_holes_is_gathered_once(monkeypatch):
    """A copy that spans many buffers makes its tensor contiguous one time."""
    calls = []
    contiguous = torch.Tensor.contiguous
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: calls.append(1) or contiguous(self))
    holes = torch.arange(4.0 * MB).view(-1, 4)[:, :2]
    plan = plan_snapshot([holes])
    calls.clear()
    raw = bytes_of_snapshot(plan)
    assert len(calls) == 1
    assert raw == contiguous(holes).numpy().tobytes()


def test_later_changes_do_not_reach_a_snapshot():
    """The bytes are those of the capture, for tensors, arrays and bytearrays; planning alone copies nothing."""
    state = {"t": torch.zeros(4), "n": np.zeros(4, np.int16), "b": bytearray(1000)}
    pool = Pool(host_memory=None, max_in_flight=1)
    plan = plan_snapshot(state)
    state["t"].fill_(1)
    taken = Snapshot(plan, pool.admit(plan.raw_bytes))
    taken.capture()
    state["t"].fill_(2)
    state["n"][:] = 2
    state["b"][:] = b"x" * 1000
    raw = b"".join(bytes(taken.read(i)) for i in range(len(taken.frames)))
    offset = tensor_nodes(plan)[0][3]
    assert raw[offset : offset + 16] == torch.ones(4).numpy().tobytes()
    assert raw.count(0) == len(raw) - 8
    taken.release_all()
    pool.close()


def freed():
    tensor = torch.ones(1000)
    tensor.untyped_storage().resize_(0)
    return tensor


class Subclass(torch.Tensor):
    pass


def channelwise(dtype):
    return torch.quantize_per_channel(torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, dtype)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: torch.ones(3, device="meta"), "meta device"),
        (lambda: torch.ones(3).as_subclass(Subclass), "Subclass"),
        (freed, "freed"),
        (lambda: np.array([object()]), "Python objects"),
        (lambda: np.zeros(2, dtype=[("a", "O")]), "Python objects"),
        (torch.nn.parameter.UninitializedParameter, "UninitializedParameter"),
        (lambda: torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]), "nested"),
        (lambda: torch.quantize_per_tensor(torch.ones(4), 1.0, 0, torch.quint4x2), "quantized"),
        (object, "object"),
    ],
    ids=["meta", "subclass", "freed", "objects", "fields", "lazy", "nested", "quint4x2", "object"],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_saved_is_refused_by_its_key_path(make, says):
    """Nothing is ever saved as something else: the error names the place and the reason."""
    with pytest.raises(UnsupportedStateError, match=says) as caught:
        plan_snapshot({"a": [0, {"b": make()}]}, path=("state",))
    assert caught.value.path == "state.a[1].b"
    assert "state.a[1].b" in str(caught.value)
