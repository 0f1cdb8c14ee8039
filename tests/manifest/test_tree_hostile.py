"""Trees from a file that nobody has checked: a value or a refusal, never another error."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.errors import FormatError, RestoreError
from asyncckpt.manifest.tree import MAX_DEPTH, leaves, unflatten


def no_build(tag, args, path):
    """A build callback that knows nothing."""
    raise FormatError(f"unknown tag {tag}", defect="unknown tag")


HOSTILE = [
    {}, [], [1], [None], [["list"]], ["nonsense"], ["list", {}], ["dict", 1], ["dict", ["list"], 1],
    ["dict", 1, 2, 1, 3],
    ["dict", True, 1, 1, 2], ["dict", "a", 1, "a", 2], ["set", 1, 1], ["set", ["list"]], ["frozenset", ["dict"]],
    ["int"],
    ["int", "zz"], ["int", 5], ["int", "5"], ["int", "-"], ["int", "0x10000000000000000"],
    ["int", "1_0000000000000000000"],
    ["int", "00000000000000000000000001"], ["int", None], ["int", "1", "2"], ["float"], ["float", "nan"],
    ["float", 1.0],
    ["float", "0000000000000000"], ["float", "7ff8000000 00000"], ["complex", 1.0], ["complex", "1", 1.0],
    ["complex", 1, 1.0],
    ["str", 1], ["str", "!"], ["str", "/w=="], ["bytes"], ["bytes", "a"], ["bytes", 5], ["bytes", "é"],
    ["bytearray", None],
    ["range", 1, 2], ["range", 0, 1, 0], ["range", 0.5, 1, 1], ["range", ["int", "q"], 1, 1], ["range", True, 1, 1],
    ["Decimal", "garbage"], ["Decimal", 1], ["Decimal", " 1"], ["Decimal", "1_0"],
    ["Decimal", "1E+99999999999999999999"],
    ["deque"], ["deque", -1], ["deque", 2**63, 1], ["deque", "1"], ["deque", 1, 1, 2], ["deque", True, 1],
    ["slice", 1],
    ["defaultdict"], ["defaultdict", "eval"], ["defaultdict", 1], ["defaultdict", ["list"]], ["defaultdict", None, 1],
    ["state_dict"], ["state_dict", None, 1], ["path", "os", "x"], ["path", "PosixPath"], ["path", ["x"], "x"],
    ["path", "PosixPath", 1], ["date", 0, 1, 1], ["date", 1], ["date", 1.0, 1, 1], ["date", 2**70, 1, 1],
    ["date", True, 1, 1],
    ["time", 25, 0, 0, 0, 0, None], ["time", 1, 0, 0, 0, 2, None], ["time", 1, 0, 0, 0, 0, "x"], ["datetime"],
    ["datetime", 1],
    ["datetime", 2024, 1, 1, 1, 1, 1, 1, 0, ["timezone", 5, 0, 0, None]], ["timedelta", 10**10, 0, 0],
    ["timedelta", 0, 90000, 0],
    ["timezone", 0, 0, 0, 5], ["timezone"], ["numpy", "<f8", ""], ["numpy", "|O8", "AAAAAAAAAAA="],
    ["numpy", "f8", "AAAAAAAAAAA="],
    ["numpy", "|b1", "Ag=="], ["numpy", "<M8[xx]", "AAAAAAAAAAA="], ["numpy", "<f99", ""], ["numpy", 5, ""], ["numpy"],
    ["numpy", "|V999999999", "AA=="], ["numpy.str_", 1], ["numpy.bytes_"], ["numpy.dtype", "i4,f4"],
    ["numpy.dtype", "<f3"],
    ["numpy.dtype", "|V999999999999"], ["registered"], ["registered", 1, 1], ["dict", ["tensor", 0], 1],
    ["set", ["data", 0, 1]],
    ["dict", ["Decimal", "sNaN"], 1], ["dict", ["tuple", ["list"]], 1], ["int", "f" * 50 + "g"],
]  # fmt: skip


@pytest.mark.parametrize("node", HOSTILE, ids=lambda node: str(node)[:40])
def test_a_malformed_node_is_a_format_error(node):
    """Whatever is wrong with a node, reading answers with a FormatError that names the defect and the place."""
    for whole in (node, ["dict", "a", ["list", 1, node]]):
        with pytest.raises(FormatError) as caught:
            unflatten(whole, no_build)
        assert caught.value.defect
    assert "a[1]" in str(caught.value) or "unknown tag" in str(caught.value)


def test_a_tree_that_is_too_deep_is_a_format_error():
    """Deep documents neither exhaust the stack nor pass the limit."""
    for depth in (MAX_DEPTH + 1, 5000, 100_000):
        node = 1
        for _ in range(depth):
            node = ["list", node]
        with pytest.raises(FormatError):
            unflatten(node, no_build)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
    | st.sampled_from(sorted({node[0] for node in HOSTILE if node and type(node[0]) is str})),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=20,
)  # fmt: skip
tagged = st.sampled_from([node[0] for node in HOSTILE if type(node) is list and node and type(node[0]) is str])


@given(st.builds(lambda tag, rest: [tag, *rest], tagged, st.lists(json_values, max_size=6)))
@settings(max_examples=200, deadline=None)
def test_any_json_is_a_value_or_a_refusal(node):
    """Arbitrary JSON never raises anything but the errors of restoring, whether built or only walked."""
    for read in (lambda: unflatten(node, no_build), lambda: list(leaves(node))):
        with contextlib.suppress(RestoreError):
            read()
