"""What went in comes out: types, dtypes, shapes, sharing, random states."""

import collections
import datetime
import decimal
import math
import pathlib
import random
import warnings

import numpy as np
import pytest
import torch

import asyncckpt
from asyncckpt import AsyncCheckpointer


@pytest.fixture
def trip(tmp_path):
    """Save a state and load it without a template."""

    def go(state, **keywords):
        with AsyncCheckpointer(tmp_path / "run", **keywords) as ck:
            go.info = ck.save(1, state).result(60)
        return asyncckpt.load(tmp_path / "run")

    return go


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_python_random_states(trip):
    """Case 45: states of python's and numpy's generators come back in their own types and draw the same numbers."""
    python, legacy, modern = random.Random(3), np.random.RandomState(3), np.random.default_rng(3)
    generator = torch.Generator().manual_seed(3)
    loaded = trip(
        {
            "python": python.getstate(),
            "numpy": legacy.get_state(),
            "modern": modern.bit_generator.state,
            "torch": generator.get_state(),
        }
    )
    expected = [python.random(), legacy.rand(), modern.random(), torch.rand(1, generator=generator).item()]
    a, b, c, d = random.Random(), np.random.RandomState(), np.random.default_rng(), torch.Generator()
    a.setstate(loaded["python"])
    b.set_state(loaded["numpy"])
    c.bit_generator.state = loaded["modern"]
    d.set_state(loaded["torch"])
    assert [a.random(), b.rand(), c.random(), torch.rand(1, generator=d).item()] == expected


def test_generators_in_the_state_are_restored_in_place(tmp_path):
    """Generators of torch, numpy and python count as stateful."""

    def make():
        return {"t": torch.Generator().manual_seed(1), "n": np.random.default_rng(1), "p": random.Random(1)}

    def draw(state):
        return [torch.rand(1, generator=state["t"]).item(), state["n"].random(), state["p"].random()]

    state = make()
    draw(state)
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, state)
        expected = draw(state)
        fresh = make()
        assert dict(ck.restore(fresh)) == {}
        assert draw(fresh) == expected


def test_global_random_states_are_saved_and_restored(tmp_path):
    """Random state of python, numpy and torch is part of every checkpoint unless ``rng=False``."""

    def draw():
        return [random.random(), float(np.random.rand()), torch.rand(1).item()]

    with AsyncCheckpointer(tmp_path / "a") as ck:
        ck.save(1, {})
        expected = draw()
        draw()
        ck.restore({})
        assert draw() == expected
    with AsyncCheckpointer(tmp_path / "b", rng=False) as ck:
        ck.save(1, {})
        first = draw()
        ck.restore({})
        assert draw() != first


def test_generator_states_stay_on_the_cpu(trip, tmp_path):
    """Case 44: whatever map_location says, a saved generator state is a uint8 tensor on the CPU."""
    trip({"rng": torch.get_rng_state(), "w": torch.ones(3)})
    expected = torch.rand(3)
    loaded = asyncckpt.load(tmp_path / "run", map_location="meta")
    assert loaded["w"].device.type == "meta"
    assert (loaded["rng"].device.type, loaded["rng"].dtype) == ("cpu", torch.uint8)
    torch.set_rng_state(loaded["rng"])
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("used", [True, False])
def test_grad_scaler(tmp_path, used):
    """Case 48: scale and growth tracker come back, also of a scaler that was never used."""

    def scaler():
        return torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)

    def use(one):
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        for _ in range(3):
            one.scale(weight.sum()).backward()
            one.step(optimizer)
            one.update()

    saved = scaler()
    if used:
        use(saved)
    for before in (True, False):
        with AsyncCheckpointer(tmp_path / str(before)) as ck:
            ck.save(1, {"scaler": saved}).result(30)
            fresh = scaler()
            if not before:
                use(fresh)
            ck.restore({"scaler": fresh})
            assert fresh.state_dict() == saved.state_dict()
            assert fresh.get_scale() == saved.get_scale()


def test_containers_and_keys_keep_their_types(trip):
    """Case 50: int keys stay int, empty containers stay, optimizer states without moments are ``{}``."""
    model = torch.nn.Linear(2, 2)
    state = {
        "a": [],
        "b": {},
        "c": (),
        "d": [{"k": 1}, {"k": 2}],
        0: {"x": 1},
        (1, 2): "t",
        None: 3,
        2.5: 4,
        True: 5,
        "sgd": torch.optim.SGD(model.parameters()).state_dict(),
        "adam": torch.optim.Adam(model.parameters()).state_dict(),
    }
    loaded = trip(state)
    assert loaded == state
    assert [type(k) for k in loaded] == [type(k) for k in state]
    assert loaded["sgd"]["state"] == {}
    assert trip({}) == {}


def test_keys_neither_collide_nor_escape(trip, tmp_path):
    """Case 51: keys that look alike flattened, on disk or by case stay apart; nothing is written elsewhere."""
    keys = [
        "a.b",
        "a/b",
        "W",
        "w",
        "../../x",
        "",
        "k" * 5000,
        "nul\0",
        "line\n",
        "\u00e9",
        "e\u0301",
        "\U0001f600",
        1,
        "1",
    ]
    state = {key: torch.tensor(i) for i, key in enumerate(keys)} | {"a": {"b": torch.tensor(99)}}
    loaded = trip(state)
    assert list(loaded) == list(state)
    assert [int(loaded[k]) for k in keys] == list(range(len(keys)))
    assert int(loaded["a"]["b"]) == 99
    assert {p.name for p in tmp_path.iterdir()} == {"run"}


def test_plain_values_of_every_kind(trip):
    """Case 65: scalars, dates, paths and numbers of any size come back exactly, in their own types."""
    state = {
        "np": [np.float64(0.1), np.int32(3), np.bool_(True), np.float16(2)],
        "path": pathlib.PurePosixPath("x/y"),
        "dtype": torch.float8_e4m3fn,
        "device": torch.device("cuda:3"),
        "float": [math.inf, -math.inf, -0.0, 1e-308],
        "int": [2**200, -(2**63), 2**64],
        "complex": 1 - 2j,
        "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 6),
        "money": decimal.Decimal("1.10"),
        "range": range(1, 9, 2),
        "slice": slice(None, 3),
        "frozen": frozenset({1, "a"}),
        "od": collections.OrderedDict(b=1, a=2),
        "dd": collections.defaultdict(list, {"x": [1]}),
        "dq": collections.deque([1, 2], maxlen=5),
        "big": b"x" * 100_000,
        "ba": bytearray(b"y" * 2000),
        "text": "lone \ud800 surrogate",
    }
    loaded = trip(state)
    assert loaded == state
    assert [type(v) for v in loaded.values()] == [type(v) for v in state.values()]
    assert loaded["dd"].default_factory is list
    assert loaded["dq"].maxlen == 5
    assert math.copysign(1, loaded["float"][2]) == -1
    assert math.isnan(trip({"nan": math.nan})["nan"])


def test_deep_and_cyclic_states_are_refused(tmp_path):
    """Case 65: absurd nesting and cycles are refused in the call, never a RecursionError in the worker."""
    deep = leaf = {}
    for _ in range(5000):
        leaf["x"] = {}
        leaf = leaf["x"]
    cyclic = []
    cyclic.append(cyclic)
    with AsyncCheckpointer(tmp_path) as ck:
        for bad in ({"deep": deep}, {"cyclic": cyclic}):
            with pytest.raises(asyncckpt.UnsupportedStateError):
                ck.save(1, bad)


def every_dtype():
    found = {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    return sorted(found, key=str)


@pytest.mark.parametrize("dtype", every_dtype(), ids=str)
def test_every_dtype_is_exact_or_refused(trip, dtype):
    """Case 60: random bytes seen as any dtype come back to the bit, or are refused naming key and dtype."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            width = torch.empty(1, dtype=dtype).element_size()
            raw = torch.randint(0, 2 if dtype == torch.bool else 256, (48 * width,), dtype=torch.uint8)
            tensor = raw.view(dtype)
    except (RuntimeError, TypeError, NotImplementedError):
        pytest.skip("torch cannot make a tensor of it")
    try:
        loaded = trip({"key": {"t": tensor}})["key"]["t"]
    except asyncckpt.UnsupportedStateError as error:
        assert "key.t" in str(error)
        assert str(dtype) in str(error)
        return
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert loaded.untyped_storage().tolist() == raw.tolist()


def test_views_store_their_range_only(trip):
    """Case 55: a small view neither copies nor stores the storage behind it."""
    big = torch.rand(5_000_000)
    state = {"view": big[7:17], "chunks": list(torch.chunk(torch.rand(10_000), 10)), "step": big[::500_000]}
    loaded = trip(state, rng=False)
    assert trip.info.raw_bytes < 45_000
    assert torch.equal(loaded["view"], state["view"])
    assert torch.equal(loaded["step"], state["step"])
    assert all(torch.equal(a, b) for a, b in zip(loaded["chunks"], state["chunks"], strict=True))


def test_tied_weights_are_stored_once_and_come_back_tied(trip, tmp_path):
    """Case 56: one copy on disk; shared again when loaded; restored into tied and untied models."""

    class Tied(torch.nn.Module):
        def __init__(self, tie=True):
            super().__init__()
            self.emb, self.head = torch.nn.Embedding(300, 40), torch.nn.Linear(40, 300, bias=False)
            if tie:
                self.head.weight = self.emb.weight

    model = Tied()
    loaded = trip({"m": model}, rng=False)
    assert trip.info.raw_bytes == 300 * 40 * 4
    assert torch.equal(loaded["m"]["emb.weight"], model.emb.weight)
    assert loaded["m"]["emb.weight"].data_ptr() == loaded["m"]["head.weight"].data_ptr()
    for tie in (True, False):
        target = Tied(tie)
        with AsyncCheckpointer(tmp_path / "run") as ck:
            ck.restore({"m": target})
        assert torch.equal(target.emb.weight, model.emb.weight)
        assert torch.equal(target.head.weight, model.emb.weight)
        assert (target.emb.weight is target.head.weight) == tie


def test_expanded_tensors_come_back_writable(trip):
    """Case 58: stride-0 tensors are right, writable, and independent per element."""
    rows, scalar = torch.randn(3).expand(1000, 3), torch.tensor(2.0).expand(10_000)
    loaded = trip({"rows": rows, "scalar": scalar})
    assert torch.equal(loaded["rows"], rows)
    loaded["rows"].add_(1)
    loaded["scalar"][0] = 5
    assert torch.equal(loaded["rows"], rows + 1)
    assert loaded["scalar"].sum() == 20_003


def test_empty_and_scalar_tensors(trip):
    """Case 61: shapes and dtypes of empty and 0-dim tensors are exact; empties are not tied."""
    state = {
        "e1": torch.tensor([]),
        "e2": torch.tensor([]),
        "a": torch.zeros(0, 3),
        "b": torch.zeros(3, 0, dtype=torch.int16),
        "c": torch.ones(4)[:0],
        "d": torch.tensor(5),
        "f": torch.tensor(5.0).expand(1),
    }
    loaded = trip(state)
    for key, value in state.items():
        assert (loaded[key].shape, loaded[key].dtype) == (value.shape, value.dtype), key
        assert torch.equal(loaded[key], value)


def test_layouts_subclasses_and_graph_tensors(trip):
    """Case 62: sparse, quantized, non-leaf, parameters, conj and negative views come back right; others are refused."""
    weight = torch.nn.Parameter(torch.randn(3, 3))
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    state = {
        "coo": dense.to_sparse_coo(),
        "graph": weight * 2,
        "param": weight,
        "conj": torch.randn(3, dtype=torch.complex64).conj(),
        "neg": torch.randn(3, dtype=torch.complex64).conj().imag,
        "last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state["csr"] = dense.to_sparse_csr()
        state["quant"] = torch.quantize_per_tensor(dense, 0.1, 3, torch.qint8)
        loaded = trip(state)
        assert torch.equal(loaded["csr"].to_dense(), dense)
        assert loaded["csr"].layout == torch.sparse_csr
        assert torch.equal(loaded["quant"].dequantize(), state["quant"].dequantize())
    assert torch.equal(loaded["coo"].to_dense(), dense)
    assert not loaded["graph"].requires_grad
    assert isinstance(loaded["param"], torch.nn.Parameter)
    assert loaded["last"].stride() == state["last"].stride()
    for key in ("graph", "param", "conj", "neg", "last"):
        assert torch.equal(loaded[key], state[key].detach()), key


class Wrapper(torch.Tensor):
    """A wrapper subclass: it has no data of its own."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_wrapper_subclasses_are_refused(tmp_path):
    """Case 62: never wrong bytes: a wrapper tensor is a TypeError at ``save`` with its path."""
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(TypeError, match="layer.w"):
        ck.save(1, {"layer": {"w": Wrapper(torch.ones(3))}})


def test_many_small_tensors(trip):
    """Case 65: 50,000 scalars: nothing is limited on one side only."""
    state = {f"s{i}": torch.tensor(float(i)) for i in range(50_000)}
    loaded = trip(state)
    assert len(loaded) == 50_000
    assert all(float(loaded[f"s{i}"]) == i for i in (0, 1, 777, 49_999))
    assert trip.info.stored_bytes < 5_000_000


def bf16_run(**keywords):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8).to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, **keywords)


def bf16_step(model, optimizer, value):
    model(torch.full((2, 8), value, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("keywords", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_bf16_training_resumes_exactly(tmp_path, keywords):
    """Case 52: the next step after a restore equals the undisturbed run's, bit by bit, in every implementation."""
    model, optimizer = bf16_run(**keywords)
    bf16_step(model, optimizer, 1.0)
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {"m": model, "o": optimizer}).result(30)
        fresh, again = bf16_run(**keywords)
        ck.restore({"m": fresh, "o": again})
    for one, other in zip(optimizer.state.values(), again.state.values(), strict=True):
        assert one["step"].dtype == other["step"].dtype
        assert one["step"].device == other["step"].device
    bf16_step(model, optimizer, 2.0)
    bf16_step(fresh, again, 2.0)
    assert bits(fresh.weight) == bits(model.weight)


def test_fp32_moments_of_bf16_weights_stay_fp32(tmp_path):
    """Case 52: torch's own ``load_state_dict`` would cut the moments to the weights' dtype; ours does not."""
    model, optimizer = bf16_run()
    bf16_step(model, optimizer, 1.0)
    for entry in optimizer.state.values():
        entry["exp_avg"] = entry["exp_avg"].float() * 1.001
        entry["step"] = entry["step"].double()
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, {"m": model, "o": optimizer}).result(30)
        fresh, again = bf16_run()
        ck.restore({"m": fresh, "o": again})
    loaded = asyncckpt.load(tmp_path)["o"]["state"]
    for i, (one, other) in enumerate(zip(optimizer.state.values(), again.state.values(), strict=True)):
        for key in ("exp_avg", "exp_avg_sq", "step"):
            assert other[key].dtype == loaded[i][key].dtype == one[key].dtype
            assert bits(other[key]) == bits(loaded[i][key]) == bits(one[key])


def test_pickle_needs_both_sides(tmp_path):
    """Nothing is unpickled unless writer and reader both said so."""
    value = {"f": pathlib.Path, "x": slice(1, 2)}
    with AsyncCheckpointer(tmp_path, allow_pickle=True) as ck:
        ck.save(1, value).result(30)
        assert ck.restore()["f"] is pathlib.Path
    with AsyncCheckpointer(tmp_path) as ck, pytest.raises(asyncckpt.RestoreError, match="allow_pickle"):
        ck.restore(step=1)
    with pytest.raises(asyncckpt.RestoreError, match="allow_pickle"):
        asyncckpt.load(tmp_path, step=1)
    assert asyncckpt.load(tmp_path, allow_pickle=True)["f"] is pathlib.Path


def test_named_parameters_keep_their_states_beside_nameless_ones(tmp_path):
    """Two parameters of one shape swapped in the optimizer, beside one in no module: each gets its own state."""
    first, second = torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False)
    bare = torch.nn.Parameter(torch.ones(2))

    def run(order):
        optimizer = torch.optim.Adam([*order, bare], lr=0.1)
        return {"a": first, "b": second, "o": optimizer}, optimizer

    state, optimizer = run([first.weight, second.weight])
    for value, parameter in enumerate((first.weight, second.weight, bare), 1):
        parameter.grad = torch.full_like(parameter, float(value))
    optimizer.step()
    expected = {id(p): e["exp_avg"].clone() for p, e in optimizer.state.items()}
    with AsyncCheckpointer(tmp_path) as ck:
        ck.save(1, state).result(30)
        swapped, again = run([second.weight, first.weight])
        ck.restore(swapped)
    for parameter, entry in again.state.items():
        assert torch.equal(entry["exp_avg"], expected[id(parameter)])
