"""Every supported value comes back equal, with its type; nothing is shared with the live state."""

import datetime as dt
import math
import pathlib
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.manifest.tree import NOT_LEAF, flatten, leaves, unflatten


def no_leaves(value, path):
    """A leaf callback that takes nothing."""
    return NOT_LEAF


def no_build(tag, args, path):
    """A build callback that knows nothing."""
    raise AssertionError(tag)


def through_json(value):
    """A value after a trip through JSON text."""
    raw = msgspec.json.encode(flatten(value, no_leaves))
    return unflatten(msgspec.json.decode(raw), no_build)


def canonical(value):  # noqa: PLR0911 - one line a type
    """A form in which equal means equal in value, type, order and every bit of a float."""
    kind = type(value)
    if kind is float:
        return kind, struct.pack(">d", value)
    if kind is complex:
        return kind, canonical(value.real), canonical(value.imag)
    if isinstance(value, np.generic):
        return kind, value.dtype.str, value.tobytes()
    if isinstance(value, dict):
        extra = (getattr(value, "default_factory", None), canonical(getattr(value, "_metadata", None)))
        return kind, extra, [(canonical(k), canonical(v)) for k, v in value.items()]
    if kind in {list, tuple}:
        return kind, [canonical(item) for item in value]
    if kind is deque:
        return kind, value.maxlen, [canonical(item) for item in value]
    if kind in {set, frozenset}:
        return kind, sorted((canonical(item) for item in value), key=repr)
    if kind is slice:
        return kind, canonical((value.start, value.stop, value.step))
    if kind is Decimal:
        return kind, str(value)
    if kind in {dt.datetime, dt.time}:
        return kind, value.replace(tzinfo=None), value.fold, canonical(value.tzinfo)
    if kind is dt.timezone:
        return kind, value.__getinitargs__()
    return kind, value


def returns(value):
    """Assert that a value survives the trip in every detail."""
    assert canonical(through_json(value)) == canonical(value)


state_dict = OrderedDict(weight=1, bias=2)
state_dict._metadata = OrderedDict({"": {"version": 1}})
NAN_PAYLOAD = struct.unpack(">d", bytes.fromhex("fff8000000000abc"))[0]

VALUES = [
    None, True, False, 0, -1, 2**63, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**5000, -(3**200), 0.1, -0.0, 5e-324,
    1e308, math.inf, -math.inf, math.nan, NAN_PAYLOAD, 1j, complex(-0.0, math.nan), "", "a", "é", "e\u0301", "\0\n",
    "😀",
    "\ud800", "x\udfff\ud800y", b"", b"\0\xff", bytes(range(256)), bytearray(b"ab"), b"x" * 5000, bytearray(5000),
    [], (), set(), frozenset(), {}, [1, [2, (3,)]], {1, "1", (1, 2)}, frozenset({None, 2.5}), {1: "a", "1": "b"},
    {True: 1, 2: "x", None: 3, 2.5: 4, (1, (2,)): 5, frozenset({1}): 6, b"k": 7, "": 8},
    OrderedDict([("b", 1), ("a", 2)]), state_dict, defaultdict(list, {"a": [1]}), defaultdict(None, {}),
    *(defaultdict(kind) for kind in (dict, set, int, float, str, tuple, bool)), Counter("abca"), Counter({"x": -1.5}),
    deque([1, 2], maxlen=3), deque(), deque([1], 0), range(5), range(10**30, 0, -(10**25)), slice(None, 3),
    slice(1, "a", ()),
    pathlib.Path("a/b"), pathlib.PurePosixPath("/x"), pathlib.PureWindowsPath("C:\\x"), pathlib.PosixPath("\udcff"),
    pathlib.Path(), dt.date(2024, 2, 29), dt.time(1, 2),
    dt.datetime(2024, 1, 1, 2, 3, 4, 5, fold=1),
    dt.timedelta(-1, 5, 7),
    dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-5), "EST")),
    dt.UTC, dt.timezone(dt.timedelta(0), "Z\ud800"), dt.time(1, tzinfo=dt.timezone(dt.timedelta(microseconds=1))),
    Decimal("1.10"), Decimal("-0"), Decimal("sNaN12"), Decimal("Infinity"), Decimal("1E+999999"),
    np.dtype("float32"), np.dtype(">i4"), np.dtype("U7"), np.dtype("M8[25s]"), np.dtype(object), np.dtype("q"),
]  # fmt: skip
SCALARS = [
    *(np.dtype(code).type(1) for code in "?bBhHiIlLqQefdgFDG"), np.float16(math.nan), np.float64(-0.0),
    np.complex64(1j),
    np.datetime64("2024-01-01"), np.datetime64("NaT"), np.datetime64("2024-01-01T00:00:00.000000001"),
    np.timedelta64(5),
    np.timedelta64(7, "25s"), np.str_(""), np.str_("a\0"), np.str_("\ud800"), np.bytes_(b"a\0"), np.bytes_(b""),
    np.void(b"abc"),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_a_value_returns_with_its_type(value):
    """Each plain value and container is the same after a trip through JSON (cases 50 and 65)."""
    returns(value)
    returns({"key": [value]})


@pytest.mark.parametrize("value", SCALARS, ids=lambda value: type(value).__name__)
def test_a_numpy_scalar_returns_with_its_type_and_bits(value):
    """The scalars of numpy of every dtype keep their exact type and bytes (case 65)."""
    returns(value)
    if not isinstance(value, np.void | np.timedelta64):  # those cannot be keys
        returns({value: 1})


def test_keys_that_look_alike_stay_apart():
    """Keys that a flattened name would merge are all distinct on load (cases 50 and 51)."""
    keys = [
        "a.b",
        "a/b",
        "W",
        "w",
        "../../x",
        "",
        "k" * 5000,
        "\0",
        "\n",
        "\u00e9",
        "e\u0301",
        "😀",
        1,
        "1",
        (1,),
        None,
        "\ud800",
    ]
    returns({key: i for i, key in enumerate(keys)})
    returns({"a.b": 1, "a": {"b": 2}})
    returns({"a": [], "b": {}, "c": (), "d": [{"k": 1}, {"k": 2}], 0: {"x": 1}, (1, 2): "t", None: 3, True: 4})


def test_two_nan_keys_stay_two():
    """Keys that are equal to nothing, not even themselves, keep their number."""
    assert len(through_json({float("nan"): 1, float("nan"): 2})) == 2


def test_random_states_of_python_and_numpy_return():
    """The generators' states come back so that the same numbers are drawn (case 45)."""
    source = random.Random(3)
    saved = through_json(source.getstate())
    expected = [source.random() for _ in range(5)]
    source.setstate(saved)
    assert [source.random() for _ in range(5)] == expected
    returns(np.random.default_rng(0).bit_generator.state)


def test_the_tree_shares_nothing_mutable_with_the_state():
    """Whatever is done to the state after flatten, the tree stays as it was (case 4)."""
    state = {"hist": [1, 2], "ba": bytearray(b"ab"), "c": Counter(a=1), "dq": deque([1]), "s": {1}, "d": {"x": [0]}}
    before = through_json(state)
    node = flatten(state, no_leaves)
    state["hist"].append(3)
    state["ba"][0] = 0
    state["c"]["b"] = 1
    state["dq"].append(2)
    state["s"].add(2)
    state["d"]["x"].append(1)
    state["new"] = 1
    assert canonical(unflatten(node, no_build)) == canonical(before)


def test_a_list_that_occurs_twice_comes_back_as_two():
    """Plain containers are not aliased after a load."""
    shared = [1]
    one, two = through_json([shared, shared])
    assert one == two == [1]
    assert one is not two


def test_metadata_of_a_state_dict_is_kept():
    """The ``_metadata`` that torch hangs on a state dict survives."""
    assert through_json(state_dict)._metadata == {"": {"version": 1}}


plain = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.complex_numbers()
    | st.text(st.characters(), max_size=8) | st.text("a\ud800\udc00é", max_size=4) | st.binary(max_size=600)
    | st.decimals() | st.dates() | st.times() | st.datetimes(timezones=st.none() | st.just(dt.UTC))
    | st.timedeltas() | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.int64, st.integers(-9, 9)) | st.builds(range, st.integers())
    | st.builds(pathlib.PurePosixPath, st.text(max_size=5))
)  # fmt: skip
hashable = plain.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan()))
keys = hashable | st.tuples(hashable, hashable) | st.frozensets(hashable, max_size=3)
states = st.recursive(
    plain | st.builds(bytearray, st.binary(max_size=9)),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=3).map(OrderedDict)
        | st.dictionaries(keys, inner, max_size=3).map(lambda d: defaultdict(list, d))
        | st.dictionaries(keys, inner, max_size=3).map(lambda d: Counter(d) if d else Counter())
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 5))
        | st.sets(keys, max_size=3)
        | st.builds(slice, inner, inner, inner)
    ),
    max_leaves=12,
)


@given(states)
@settings(max_examples=200, deadline=None)
def test_any_nested_state_returns(state):
    """Any nesting of supported values is equal in value, type and order after a trip through JSON."""
    returns(state)


@given(states)
@settings(max_examples=100, deadline=None)
def test_a_state_without_data_has_no_leaves(state):
    """The walk for planning finds nothing in plain values, and does not stumble over them."""
    assert not list(leaves(msgspec.json.decode(msgspec.json.encode(flatten(state, no_leaves)))))
