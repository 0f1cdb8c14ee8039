"""Reading checkpoints that were written by hand."""

import asyncio
import math
import warnings

import numpy as np
import pytest
import torch
from checkpoint_by_hand import FOLDER, Hand, reads_of

from asyncckpt.encode.codec import Zstd
from asyncckpt.errors import FormatError, IntegrityError, RestoreError, StateMismatchError
from asyncckpt.manifest.format import FrameTable

CODECS = pytest.mark.parametrize("codec", [None, Zstd()], ids=["raw", "zstd"])


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@CODECS
def test_values_come_back_bit_for_bit(codec):
    """Tensors, arrays, long bytes and small values of torch come back with their bits, strides and types."""
    state = {
        "w": torch.randn(100, 100),
        "half": [1, {"k": torch.randn(77).to(torch.bfloat16)}],
        "turned": torch.randn(4, 5).t(),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(4),
        "c": np.arange(1000.0).reshape(10, 100),
        "f": np.asfortranarray(np.random.rand(4, 5)),
        "when": np.array(["2026-01-01"], dtype="M8[s]"),
        "b": b"x" * 2000,
        "ba": bytearray(b"y" * 3000),
        "dtype": torch.float16,
        "size": torch.Size([1, 2]),
        torch.int8: "a dtype as a key",
        "p": torch.nn.Parameter(torch.ones(3)),
        "g": torch.ones(2, requires_grad=True),
    }
    loaded = Hand(codec=codec).write(state).load()
    assert list(loaded) == list(state)
    for key in ("w", "turned", "empty", "scalar", "p", "g"):
        assert bits(loaded[key]) == bits(state[key])
        assert (loaded[key].shape, loaded[key].stride()) == (state[key].shape, state[key].stride())
        assert loaded[key].requires_grad == state[key].requires_grad
    assert bits(loaded["half"][1]["k"]) == bits(state["half"][1]["k"])
    for key in ("c", "f", "when"):
        assert np.array_equal(loaded[key], state[key])
        assert loaded[key].dtype == state[key].dtype
    assert loaded["f"].flags.f_contiguous
    for key in ("b", "ba", "dtype", "size", torch.int8):
        assert loaded[key] == state[key]
        assert type(loaded[key]) is type(state[key])
    assert isinstance(loaded["p"], torch.nn.Parameter)


@CODECS
def test_existing_host_tensors_are_filled_in_place(codec):
    """Case 75: a destination that fits gets the bytes itself and stands in the result; one that does not is left alone."""
    state = {"a": torch.randn(64, 33), "b": torch.randn(5), "t": torch.randn(6, 7).t()}
    hand = Hand(codec=codec).write(state)
    a, wrong, t = torch.zeros(64, 33), torch.zeros(5, dtype=torch.float64), torch.zeros(6, 7).t()
    version = a._version
    loaded = hand.fill({("a",): a, ("b",): wrong, ("t",): t})
    assert loaded["a"] is a
    assert loaded["t"] is t
    assert torch.equal(a, state["a"])
    assert torch.equal(t, state["t"])
    assert a._version > version
    assert loaded["b"] is not wrong
    assert not wrong.any()
    assert torch.equal(loaded["b"], state["b"])


def test_strided_and_sliced_destinations():
    """A destination that is a slice of a larger tensor is filled, its neighbours are not touched."""
    hand = Hand().write({"a": torch.arange(10.0)})
    home = torch.zeros(30)
    hand.fill({("a",): home[10:20]})
    assert torch.equal(home[10:20], torch.arange(10.0))
    assert not home[:10].any()
    assert not home[20:].any()


def test_shared_memory_comes_back_shared():
    """Case 56: tensors of one region are views of one memory; each has a version counter of its own."""
    weight = torch.randn(20, 10)
    hand = Hand().write({"emb": weight, "head": weight, "row": weight[3]})
    loaded = hand.load()
    assert loaded["emb"].data_ptr() == loaded["head"].data_ptr()
    loaded["row"].fill_(7)
    assert loaded["emb"][3].eq(7).all()
    one, other = torch.zeros(20, 10), torch.zeros(20, 10)
    hand.fill({("emb",): one, ("head",): other})
    assert torch.equal(one, weight)
    assert torch.equal(other, weight)


def test_expanded_tensors_are_writable_and_independent():
    """Case 58: a tensor whose elements overlap comes back contiguous, every element its own."""
    hand = Hand()
    rows = hand.tensor(torch.tensor([1.0, 2.0, 3.0]))
    rows[2], rows[3] = [1000, 3], [0, 1]
    windows = hand.tensor(torch.arange(5.0))
    windows[2], windows[3] = [3, 3], [1, 1]
    loaded = hand.write(tree=["dict", "state", ["dict", "rows", rows, "windows", windows]]).load()
    loaded["rows"].add_(1)
    assert torch.equal(loaded["rows"], torch.tensor([2.0, 3.0, 4.0]).expand(1000, 3))
    loaded["windows"][0, 1] = 9
    assert loaded["windows"].tolist() == [[0, 9, 2], [1, 2, 3], [2, 3, 4]]


def test_only_the_bytes_asked_for_are_read():
    """``only=`` reads the frames of the chosen values and no others."""
    hand = Hand(frame_size=256).write({"a": torch.randn(64), "b": torch.randn(6400), "c": 1})
    calls = reads_of(hand.store)
    assert hand.load(only=["a", "c"]).keys() == {"a", "c"}
    assert sum(n for key, _, n in calls if key == hand.pack_key) == 256
    with pytest.raises(StateMismatchError) as caught:
        hand.load(only="d")
    assert caught.value.missing == ("d",)


def test_sparse_and_quantized_tensors():
    """Case 62: sparse and quantized tensors are made of their pieces; impossible pieces are refused."""
    hand = Hand()
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coo, csr = dense.to_sparse_coo().coalesce(), dense.to_sparse_csr()
        quantized = torch.quantize_per_tensor(dense, 0.1, 3, torch.qint8)
        channels = torch.quantize_per_channel(dense, torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.quint8)
        nodes = {
            "coo": ["sparse_coo", [2, 2], True, hand.tensor(coo.indices()), hand.tensor(coo.values())],
            "csr": ["sparse_csr", [2, 2], *map(hand.tensor, (csr.crow_indices(), csr.col_indices(), csr.values()))],
            "q": ["quantized", "qint8", "per_tensor_affine", 0.1, 3, hand.tensor(quantized.int_repr())],
            "qc": [
                "quantized", "quint8", "per_channel_affine", 0,
                hand.tensor(channels.q_per_channel_scales()), hand.tensor(channels.q_per_channel_zero_points()),
                hand.tensor(channels.int_repr()),
            ],
        }  # fmt: skip
    hand.write(tree=["dict", "state", ["dict", *(part for pair in nodes.items() for part in pair)]])
    loaded = hand.load()
    assert torch.equal(loaded["coo"].to_dense(), dense)
    assert loaded["coo"].is_coalesced()
    assert loaded["csr"].layout is torch.sparse_csr
    assert torch.equal(loaded["csr"].to_dense(), dense)
    assert torch.equal(loaded["q"].dequantize(), quantized.dequantize())
    assert torch.equal(loaded["qc"].dequantize(), channels.dequantize())
    bad = ["sparse_coo", [1, 1], True, nodes["coo"][3], nodes["coo"][4]]
    with pytest.raises(FormatError, match="impossible"):
        Hand(raw=hand.raw).write(tree=["dict", "state", ["dict", "bad", bad]]).load()


# ---- where tensors go ----------------------------------------------------------------------------------------------


def test_the_saved_device_is_not_needed():
    """Case 75: a tensor saved on a device that is not here loads on the CPU by default."""
    hand = Hand()
    node = hand.tensor(torch.ones(3), device="cuda:7")
    hand.write(tree=["dict", "state", ["dict", "w", node]])
    assert hand.load()["w"].device.type == "cpu"
    seen = []
    maps = [None, "cpu", torch.device("cpu"), {"cuda:7": "meta"}, {"cuda": "meta"}, {"cpu": "meta"}]
    kinds = [hand.load(map_location=where)["w"].device.type for where in maps]
    assert kinds == ["cpu", "cpu", "cpu", "meta", "meta", "cpu"]
    assert hand.load(map_location=lambda saved: seen.append(saved) or "meta")["w"].device.type == "meta"
    assert seen == ["cuda:7"]
    with pytest.raises(TypeError, match="map_location"):
        hand.load(map_location=3)


def test_generator_states_stay_on_the_cpu():
    """Case 44: what looks like a generator's state stays a uint8 tensor on the CPU whatever map_location says."""
    state = {"rng": torch.get_rng_state(), "cuda": torch.zeros(16, dtype=torch.uint8), "w": torch.ones(2)}
    loaded = Hand().write(state).load(map_location="meta")
    assert [loaded[key].device.type for key in state] == ["cpu", "cpu", "meta"]
    assert torch.equal(loaded["rng"], state["rng"])


# ---- damage --------------------------------------------------------------------------------------------------------


@CODECS
def test_a_flipped_bit_names_file_and_value(codec):
    """Case 36: damage in the pack is an IntegrityError that names the file and a value stored there."""
    hand = Hand(codec=codec).write({"a": {"b": torch.zeros(500)}, "c": torch.randn(500)})
    good = hand.store.objects[hand.pack_key]
    for position in range(0, len(good), max(1, len(good) // 20)):
        bad = bytearray(good)
        bad[position] ^= 16
        hand.store.damage(hand.pack_key, bytes(bad))
        for call in (hand.load, lambda: hand.fill({("a", "b"): torch.zeros(500), ("c",): torch.zeros(500)})):
            with pytest.raises(IntegrityError) as caught:
                call()
            assert caught.value.file == hand.pack_key
            assert caught.value.key in {"a.b", "c"}


def test_missing_and_short_files():
    """Case 36: a pack or index that is gone or cut short is an IntegrityError naming it."""
    hand = Hand().write({"a": torch.ones(500)})
    index = f"{FOLDER}/{hand.manifest.shards[0].index}"
    for key in (hand.pack_key, index):
        good = hand.store.objects[key]
        for bad in (None, good[:-3]):
            hand.store.damage(key, bad)
            with pytest.raises(IntegrityError) as caught:
                hand.load()
            assert caught.value.file == key
            asyncio.run(_put(hand.store, key, good))


async def _put(store, key, data):
    from asyncckpt.store.base import single

    await store.put(key, single(data))


def test_an_undecodable_frame_is_a_format_error():
    """A frame that is intact by its digest but not what it claims to be never gives a bare codec error."""
    hand = Hand(codec=Zstd())
    hand.region(bytes(1000))
    from asyncckpt.encode.frame import digest_of

    frames = FrameTable([1000], [100], ["b1"], ["zstd"], digest_of([bytes(100)]).hex())
    leaf = ["data", 0, 1000, "bytes"]
    hand.commit(["dict", "state", ["dict", "x", leaf]], frames, bytes(100))
    with pytest.raises(FormatError, match="frame 0"):
        hand.load()
    with pytest.raises(FormatError, match="codec"):
        hand.load(codecs={})


# ---- hostile documents ---------------------------------------------------------------------------------------------

GOOD = ["tensor", "float32", [4], None, 0, 16, 0, "cpu", ""]


def tensor_but(**changes):
    fields = ["tag", "dtype", "shape", "strides", "region", "region_bytes", "offset", "device", "flags"]
    return [changes.get(name, old) for name, old in zip(fields, GOOD, strict=True)]


HOSTILE = {
    "unknown dtype": tensor_but(dtype="nn"),
    "alias of a dtype": tensor_but(dtype="float"),
    "attribute path": tensor_but(dtype="nn.Module"),
    "too long": tensor_but(shape=[5]),
    "beyond the string": tensor_but(region=10**6),
    "negative": tensor_but(region=-1),
    "misaligned": tensor_but(shape=[1], offset=2),
    "huge": tensor_but(shape=[2**62]),
    "huge and expanded": tensor_but(shape=[2**50, 4], strides=[0, 1]),
    "huge and empty": tensor_but(shape=[0, 2**62, 2**62]),
    "strides too many": tensor_but(strides=[1, 1]),
    "negative stride": tensor_but(strides=[-1]),
    "flags": tensor_but(flags="x"),
    "gradient of ints": tensor_but(dtype="int32", flags="g"),
    "bad device": tensor_but(device="../x"),
    "missing fields": ["tensor"],
    "wrong types": ["tensor", 1, 2, 3, 4, 5, 6, 7, 8],
    "objects": ["array", "|O", [1], "C", 0, 8],
    "structured objects": ["array", [["a", "|O"]], [1], "C", 0, 8],
    "no dtype": ["array", None, [2], "C", 0, 16],
    "bad descr": ["array", [["a"]], [1], "C", 0, 8],
    "deep descr": ["array", [["a", [["b", [["c", "<f4"]], "x"]]]], [1], "C", 0, 4],
    "huge array": ["array", "<f8", [2**61], "C", 0, 16],
    "huge empty array": ["array", "<f8", [2**62, 0, 2**62], "C", 0, 0],
    "array order": ["array", "<f8", [2], "K", 0, 16],
    "data": ["data", 0, 10**9, "bytes"],
    "data kind": ["data", 0, 4, "code"],
    "no data": ["data"],
    "tag": ["os.system", "true"],
    "dtype": ["torch.dtype", "os"],
    "device": ["torch.device", "nowhere"],
    "size": ["torch.Size", -1],
    "coo": ["sparse_coo", [2], True, GOOD],
    "coo shape": ["sparse_coo", ["x"], True, GOOD, GOOD],
    "quantized": ["quantized", "qint8", "odd", 1, GOOD],
    "layout pieces": ["sparse_csr", [2, 2], GOOD, GOOD, GOOD],
}


@pytest.mark.parametrize("node", HOSTILE.values(), ids=HOSTILE)
def test_hostile_leaves_are_format_errors(node):
    """Whatever a leaf claims, the answer is a FormatError before memory is taken for it."""
    hand = Hand(raw=bytearray(range(64)))
    hand.write(tree=["dict", "state", ["dict", "x", node]])
    with pytest.raises(FormatError):
        hand.load()


@pytest.mark.parametrize("tree", [1, ["list"], ["dict"], ["dict", "state", 3], ["dict", "state"]], ids=str)
def test_hostile_roots_are_format_errors(tree):
    """A tree without a state in it is a FormatError."""
    with pytest.raises(FormatError):
        Hand().write(tree=tree).load()


def test_overlapping_regions_cannot_multiply_memory():
    """Many regions over the same bytes are summed up before any memory is taken."""
    hand = Hand(raw=bytearray(1 << 20), frame_size=1 << 20, codec=Zstd())
    nodes = [["array", "|u1", [(1 << 20) - i], "C", i, (1 << 20) - i] for i in range(3)]
    hand.write(tree=["dict", "state", ["dict", "x", ["list", *nodes]]])
    assert len(hand.load()["x"]) == 3
    from asyncckpt.restore import memory

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "physical_memory", lambda: 2 << 20)
        with pytest.raises(FormatError, match="memory"):
            hand.load()


def test_pickles_need_the_readers_word():
    """A pickle is only read when the reader says so too."""
    value = {"f": math.sqrt}
    hand = Hand().write(value, allow_pickle=True)
    with pytest.raises(RestoreError, match="allow_pickle"):
        hand.load()
    assert hand.load(allow_pickle=True) == value
