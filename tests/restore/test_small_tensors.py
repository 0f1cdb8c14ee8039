"""Many small tensors: read together, handed out one by one, and nobody can tell."""

import pytest
import torch
from checkpoint_by_hand import Hand, reads_of

from asyncckpt.encode.codec import Zstd
from asyncckpt.errors import FormatError, IntegrityError

CODECS = pytest.mark.parametrize("codec", [None, Zstd()], ids=["raw", "zstd"])
DTYPES = [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16]


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def many(count=300):
    """Small tensors of every dtype in turn, and of several shapes."""
    shapes = [(10,), (2, 5), (), (3, 1, 2), (1,)]
    noise = [torch.randint(0, 2, shapes[i % 5]) for i in range(count)]
    return {f"t{i}": noise[i].to(DTYPES[i % len(DTYPES)]) for i in range(count)}


@CODECS
def test_every_one_comes_back_by_itself(codec):
    """Small tensors come back with bits, dtype and shape, each the only owner of memory just large enough for it."""
    state = many()
    loaded = Hand(frame_size=256, codec=codec).write(state).load()
    assert list(loaded) == list(state)
    for name, saved in state.items():
        found = loaded[name]
        assert (found.dtype, found.shape, found.stride()) == (saved.dtype, saved.shape, saved.stride())
        assert bits(found) == bits(saved)
        assert found.untyped_storage().nbytes() == saved.untyped_storage().nbytes()
        assert not found._is_view()
    versions = {name: value._version for name, value in loaded.items() if name != "t7"}
    loaded["t7"].zero_()
    assert all(loaded[name]._version == version for name, version in versions.items())
    assert len({found.data_ptr() for found in loaded.values()}) == len(state)


def test_they_are_read_together():
    """1,000 small tensors in one run of the pack cost a few reads, not 1,000."""
    hand = Hand(frame_size=1 << 20).write({f"t{i}": torch.full((16,), float(i)) for i in range(1000)})
    calls = reads_of(hand.store)
    loaded = hand.load()
    assert all(loaded[f"t{i}"].eq(i).all() for i in range(1000))
    assert sum(key == hand.pack_key for key, _, _ in calls) == 1


def test_only_the_chosen_ones_are_touched():
    """Small tensors that lie between the chosen ones are left out."""
    hand = Hand(frame_size=128).write({"x": {f"t{i}": torch.full((16,), float(i)) for i in range(100)}})
    loaded = hand.load(only=["x.t3", "x.t4", "x.t90"])
    assert {name: value[0].item() for name, value in loaded["x"].items()} == {"t3": 3, "t4": 4, "t90": 90}


@CODECS
def test_live_ones_are_filled_as_they_are(codec):
    """Small live tensors and parameters get the bytes in place, with a new version; a graph is not recorded."""
    state = many()
    live = {name: torch.zeros_like(value) for name, value in state.items()}
    live["t0"] = torch.nn.Parameter(live["t0"])
    versions = {name: value._version for name, value in live.items()}
    loaded = Hand(frame_size=256, codec=codec).write(state).fill({(name,): value for name, value in live.items()})
    for name, value in live.items():
        assert loaded[name] is value
        assert bits(value) == bits(state[name])
        assert value._version > versions[name]
        assert value.grad_fn is None


def test_small_ones_that_share_memory_share_it_again():
    """Two small tensors of one region are views of one memory, whichever of them comes first."""
    for order in (1, -1):
        base = torch.arange(12.0)
        pieces = [("whole", base), ("table", base.view(3, 4)), ("column", base.view(3, 4)[:, 1])][::order]
        loaded = Hand().write(dict(pieces)).load()
        loaded["column"].fill_(-1)
        assert loaded["table"][:, 1].eq(-1).all()
        assert loaded["whole"].tolist() == [0, -1, 2, 3, 4, -1, 6, 7, 8, -1, 10, 11]


def test_damage_names_a_tensor_of_the_damaged_frame_and_leaves_small_ones_alone():
    """A flipped bit names a value with bytes in that very frame, and no small live tensor has been written."""
    hand = Hand(frame_size=256).write({f"t{i}": torch.full((16,), float(i)) for i in range(64)})
    good = hand.store.objects[hand.pack_key]
    for frame in (0, 5, 15):
        bad = bytearray(good)
        bad[256 * frame + 77] ^= 1
        hand.store.damage(hand.pack_key, bytes(bad))
        live = {(f"t{i}",): torch.full((16,), -1.0) for i in range(64)}
        with pytest.raises(IntegrityError) as caught:
            hand.fill(live)
        assert int(caught.value.key[1:]) // 4 == frame
        assert all(tensor.eq(-1).all() for tensor in live.values())


GOOD = ["tensor", "float32", [4], None, 0, 16, 0, "cpu", ""]


@pytest.mark.parametrize(
    "changes",
    [{4: -16}, {4: 10**9}, {5: -16}, {5: 10**9}, {5: 8}, {6: -4}, {6: 4}, {4: 0.0}, {2: [True]}, {2: [4.0]}],
    ids=str,
)
def test_a_good_leaf_vouches_for_no_bad_one_of_its_form(changes):
    """Rules are checked for every leaf, also if another of the same dtype and shape has kept them."""
    hand = Hand()
    hand.region(bytes(32))
    bad = [changes.get(i, part) for i, part in enumerate(GOOD)]
    one = ["tensor", "float32", [1], None, 0, 16, 0, "cpu", ""]
    hand.write(tree=["dict", "state", ["dict", "good", GOOD, "one", one, "bad", bad]])
    with pytest.raises(FormatError, match="bad"):
        hand.load()
