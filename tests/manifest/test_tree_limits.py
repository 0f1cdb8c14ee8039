"""What the tree refuses, on save and on load, and how it asks for the values of others."""

import dataclasses
import datetime as dt
import enum
import pickle
import zoneinfo
from collections import OrderedDict, defaultdict, deque, namedtuple

import msgspec
import numpy as np
import pytest

from asyncckpt.errors import FormatError, RestoreError, UnsupportedStateError
from asyncckpt.manifest import registry
from asyncckpt.manifest.tree import (
    INLINE_BYTES,
    MAX_DEPTH,
    NOT_LEAF,
    Attribute,
    Pickled,
    flatten,
    leaves,
    register_type,
    render,
    unflatten,
)


class Tensor:
    """Stands for a value that another room knows how to save."""


class Colour(enum.Enum):
    RED = 1


class Count(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Config:
    lr: float


class Name(str):
    __slots__ = ()


Pair = namedtuple("Pair", "a b")
carrying = OrderedDict()
carrying.note = "x"


def no_leaves(value, path):
    """A leaf callback that takes nothing."""
    return NOT_LEAF


def no_build(tag, args, path):
    """A build callback that knows nothing."""
    raise FormatError(f"unknown tag {tag}", defect="unknown tag")


def nested(depth):
    """Lists in each other."""
    value = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.fixture
def registrations():
    """Leave the table of registered types as it was."""
    saved = dict(registry._by_type), dict(registry._by_name)
    yield
    for table, old in zip((registry._by_type, registry._by_name), saved, strict=True):
        table.clear()
        table.update(old)


# ---- save ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        lambda: 0, print, object(), Colour.RED, Count.ONE, Config(0.1), Name("x"), Pair(1, 2), int, Tensor(), iter([]),
        defaultdict(lambda: 0), defaultdict(Config), carrying, {}.keys(), type("D", (dict,), {})(), np.zeros(2),
        dt.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")), np.zeros(1, "i4,f4")[0], ValueError("x"),
        memoryview(b""),
        np.dtype("i4,f4"), np.dtype("i4", metadata={"a": 1}),
    ],
)  # fmt: skip
def test_an_unsupported_value_is_refused_by_its_path(value):
    """Functions, enums, dataclasses, subclasses and the like are a TypeError that names the key path (case 65)."""
    with pytest.raises(UnsupportedStateError) as caught:
        flatten({"scheduler": {"lr_lambdas": [value]}}, no_leaves)
    assert caught.value.path == "scheduler.lr_lambdas[0]"
    assert isinstance(caught.value, TypeError)
    for word in ("scheduler.lr_lambdas[0]", "register_type", "allow_pickle=True"):
        assert word in str(caught.value)


def test_a_subclass_is_told_what_it_is_not():
    """The message says that it is the subclass that is in the way."""
    with pytest.raises(UnsupportedStateError, match="only tuple itself is plain"):
        flatten({"pair": Pair(1, 2)}, no_leaves)


def test_a_cycle_is_refused():
    """A container that contains itself is refused by name, in any kind of container (case 65)."""
    cyclic = []
    cyclic.append({"again": (cyclic,)})
    with pytest.raises(UnsupportedStateError, match="contains itself") as caught:
        flatten({"x": cyclic}, no_leaves)
    assert caught.value.path == "x[0].again[0]"


def test_nesting_up_to_the_limit_is_fine_and_beyond_it_refused():
    """The same limit holds for saving and loading, for every kind of container (case 65)."""
    assert unflatten(flatten(nested(MAX_DEPTH), no_leaves), no_build) == nested(MAX_DEPTH)
    for deep in (nested(MAX_DEPTH + 1), nested(5000), {"a": nested(MAX_DEPTH)}):
        with pytest.raises(UnsupportedStateError, match="200 containers"):
            flatten(deep, no_leaves)


def test_the_deepest_state_dict_survives():
    """Containers that need more of Python's stack reach the same depth."""
    value = OrderedDict()
    for _ in range(MAX_DEPTH - 1):
        outer = OrderedDict(x=1)
        outer._metadata = value
        value = outer
    raw = msgspec.json.encode(flatten(value, no_leaves))
    assert flatten(unflatten(msgspec.json.decode(raw), no_build), no_leaves) == msgspec.json.decode(raw)


def test_running_out_of_stack_is_an_ordinary_refusal():
    """A state within the limit, given from the very depth of the stack, never ends in a RecursionError."""

    def dig():
        try:
            return dig()
        except RecursionError:
            return flatten(nested(150), no_leaves)

    with pytest.raises((UnsupportedStateError, RecursionError)) as caught:
        dig()
    assert isinstance(caught.value, UnsupportedStateError)


def test_tensors_cannot_be_keys():
    """A key must come back from the tree alone, so what holds data is refused there (also inside a tuple or a set)."""
    tensor = Tensor()
    for state in ({"m": {tensor: 1}}, {"m": {(1, tensor): 1}}, {"m": {tensor}}):
        with pytest.raises(UnsupportedStateError, match="as a key"):
            flatten(state, lambda value, path: ["tensor", 0])


def test_a_foreign_value_without_data_can_be_a_key():
    """What other rooms write without data, a torch.dtype say, may be a key; it goes through build on load."""
    key = Tensor()
    node = flatten({key: ["x"], "s": {key}}, lambda value, path: ["torch.dtype", "float32"])
    seen = []

    def build(tag, args, path):
        seen.append((tag, args))
        return key

    assert unflatten(node, build) == {key: ["x"], "s": {key}}
    assert seen == [("torch.dtype", ["float32"])] * 2
    assert not list(leaves(node))


# ---- leaves of other rooms -----------------------------------------------------------------------------------------


def test_leaf_is_asked_with_paths_that_leaves_and_build_repeat():
    """Data is found at the same paths, in the same order, when saving, planning and loading."""
    asked = []
    metadata_holder = OrderedDict(w=Tensor())
    metadata_holder._metadata = {"t": Tensor()}
    state = {
        "a": [Tensor(), 1, (Tensor(),)], 3: {("k", 1): Tensor()}, "long": b"x" * (INLINE_BYTES + 1),
        "short": b"x" * INLINE_BYTES,
        "sd": metadata_holder, "dd": defaultdict(list, t=Tensor()), "dq": deque([Tensor()]),
        "sl": slice(Tensor(), 1, None),
    }  # fmt: skip

    def leaf(value, path):
        asked.append(path)
        return ["data" if type(value) is bytes else "tensor", len(asked)]

    node = flatten(state, leaf)
    assert [path for path, _, _ in leaves(node)] == asked
    built = []
    unflatten(node, lambda tag, args, path: built.append((path, tag, args)))
    assert built == list(leaves(node))
    assert [args for _, _, args in built] == [[i + 1] for i in range(len(asked))]
    assert ("sd", Attribute("_metadata"), "t") in asked
    assert (3, ("k", 1)) in asked
    assert ("long",) in asked


def test_paths_are_spelled_as_people_write_them():
    """Strings after dots, the rest in brackets."""
    assert render(("scheduler", "lr_lambdas", 0)) == "scheduler.lr_lambdas[0]"
    assert render((0, "a.b", (1, 2), None)) == "[0].a.b[(1, 2)][None]"
    assert render(("m", Attribute("_metadata"))) == "m._metadata"
    assert render(()) == ""


def test_pickling_is_offered_only_if_allowed():
    """With allow_pickle an unsupported value is given to leaf as its pickle; a lambda is still refused by its path."""
    offered = []

    def leaf(value, path):
        if type(value) is not Pickled:
            return NOT_LEAF
        offered.append((bytes(value), path))
        return ["data", 0, len(value), "pickle"]

    node = flatten({"c": [Config(0.5)]}, leaf, allow_pickle=True)
    ((data, path),) = offered
    assert pickle.loads(data) == Config(0.5)
    assert path == ("c", 0)
    with pytest.raises(RestoreError, match=r"c\[0\] was saved by pickle.*allow_pickle=True"):
        unflatten(node, no_build)
    assert unflatten(node, lambda tag, args, path: "built", allow_pickle=True) == {"c": ["built"]}
    with pytest.raises(UnsupportedStateError, match="pickle refuses it too"):
        flatten({"f": lambda: 0}, leaf, allow_pickle=True)


# ---- registered types ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registrations")
def test_a_registered_type_returns():
    """A taught type goes through its encode and decode, with what it holds."""
    register_type(Config, name="config", encode=lambda c: {"lr": c.lr, "t": Tensor()}, decode=lambda d: Config(d["lr"]))
    node = flatten({"c": Config(0.5), Colour.__name__: 1}, lambda value, path: ["tensor", *path])
    assert list(leaves(node)) == [(("c", "t"), "tensor", ["c", "t"])]
    assert unflatten(node, lambda tag, args, path: None) == {"c": Config(0.5), "Colour": 1}


@pytest.mark.usefixtures("registrations")
def test_failing_and_endless_encodes_are_refused_by_path():
    """A registered encode that raises, or gives its own type back for ever, is an UnsupportedStateError."""
    register_type(Config, name="config", encode=lambda c: 1 / 0, decode=Config)
    with pytest.raises(UnsupportedStateError, match="c: the registered encode of 'config' failed"):
        flatten({"c": Config(0.5)}, no_leaves)
    register_type(Config, name="config", encode=lambda c: Config(1), decode=Config)
    with pytest.raises(UnsupportedStateError):
        flatten({"c": Config(0.5)}, no_leaves)


@pytest.mark.usefixtures("registrations")
def test_registration_refuses_what_would_be_ambiguous():
    """Plain types, a second name for a type and a second type for a name are refused."""
    register_type(Config, name="config", encode=vars, decode=lambda d: Config(**d))
    for cls, name in ((dict, "d"), (int, "i"), (Config, "other"), (Name, "config")):
        with pytest.raises(ValueError):
            register_type(cls, name=name, encode=str, decode=str)


@pytest.mark.usefixtures("registrations")
def test_decoding_says_what_is_missing():
    """An unknown registered name tells to register it; a decode that fails keeps its cause."""
    with pytest.raises(RestoreError, match="not registered"):
        unflatten(["registered", "nobody's", 1], no_build)
    register_type(Config, name="config", encode=vars, decode=lambda d: 1 / 0)
    with pytest.raises(RestoreError) as caught:
        unflatten(["registered", "config", 1], no_build)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
