"""Index and manifest: what is written is read, what is damaged or wrong is refused, and memory is bounded."""

import contextlib
import json
import math

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncckpt.errors import FormatError, IntegrityError
from asyncckpt.manifest.format import (
    MANIFEST_NAME,
    MAX_FRAME_BYTES,
    FrameTable,
    IndexDocument,
    Manifest,
    ShardEntry,
    attempt_of,
    decode_index,
    decode_manifest,
    encode_index,
    encode_manifest,
    file_digest,
    is_temporary_manifest,
    new_save_id,
    parse_step_folder,
    part_name,
    step_folder,
)
from asyncckpt.manifest.tree import NOT_LEAF, flatten

SAVE = "0123456789ab"
FILE = "step-000000000007/" + part_name(SAVE, 0, 1, "index")


def frames(**changes):
    """A frame table of two frames, with changes."""
    columns = {
        "raw": [8, 4],
        "stored": [5, 4],
        "kinds": ["f4", "b1"],
        "encodings": ["zstd", "raw"],
        "digests": "0f" * 32,
    }
    return FrameTable(**{**columns, **changes})


def index(**changes):
    """A small index, with changes."""
    fields = {
        "version": 1, "step": 7, "save_id": SAVE, "rank": 0, "world": 1, "raw_bytes": 12, "pack_bytes": 9,
        "frames": frames(),
        "tree": ["dict", "w", ["tensor", "float32", [2], None, 0, 8, 0, "cpu", ""]],
    }  # fmt: skip
    return IndexDocument(**{**fields, **changes})


def entry_for(stored, raw_len, **changes):
    """What a manifest would say of this index file."""
    fields = {
        "pack": part_name(SAVE, 0, 1, "pack"), "pack_bytes": 9, "index": part_name(SAVE, 0, 1, "index"),
        "index_bytes": len(stored), "index_raw_bytes": raw_len, "index_digest": file_digest(stored),
    }  # fmt: skip
    return ShardEntry(**{**fields, **changes})


def manifest(**changes):
    """A small manifest, with changes."""
    fields = {
        "version": 1, "digest": "", "step": 7, "save_id": SAVE, "created": 1.7e9, "metrics": {"digest": 0.5},
        "metadata": ["dict", '"digest": "00000000000000000000000000000000"', "é"], "raw_bytes": 12, "stored_bytes": 29,
        "timings": {"copy": 0.5}, "versions": {"digest": "f" * 32}, "shards": [entry_for(b"x" * 20, 100)],
    }  # fmt: skip
    return Manifest(**{**fields, **changes})


def forged_index(changes, *, compress=True):
    """Bytes of an index whose JSON has been edited, as one that this library would not write."""
    document = {**json.loads(msgspec.json.encode(index())), **changes}
    raw = json.dumps(document).encode()
    return zstandard.compress(raw) if compress else raw


def forged_manifest(edit):
    """Bytes of a manifest with a right digest, whose JSON has been edited."""
    document = json.loads(encode_manifest(manifest()))
    edit(document)
    document["digest"] = "0" * 32
    data = json.dumps(document, indent=2).encode()
    return data.replace(b'"digest": "' + b"0" * 32, f'"digest": "{file_digest(data)}'.encode(), 1)


# ---- names ---------------------------------------------------------------------------------------------------------


def test_step_folders_are_known_by_number_whatever_their_padding():
    """Any zero padding is read, foreign names are not (cases 38 and 40)."""
    assert parse_step_folder(step_folder(1000)) == 1000
    assert [parse_step_folder(f"step-{name}") for name in ("0", "7", "007", "0" * 300 + "9", str(10**15))] == [
        0,
        7,
        7,
        9,
        10**15,
    ]
    foreign = [
        "step_1",
        "step-",
        "step--1",
        "step-1.bak",
        "step-1/",
        "step-1x",
        "Step-1",
        "step-\N{ARABIC-INDIC DIGIT ONE}",
        "step-1\n",
        "latest",
        "step-" + "9" * 19,
    ]
    assert [parse_step_folder(name) for name in foreign] == [None] * len(foreign)


def test_files_tell_their_attempt():
    """Packs and indexes name the attempt that wrote them, also in their temporary form; nothing else does."""
    save_id = new_save_id()
    name = part_name(save_id, 3, 100_000, "pack")
    assert attempt_of(name) == attempt_of(name + ".0a1b2c3d.tmp") == save_id
    for foreign in (MANIFEST_NAME, name + "x", "x" + name, name + ".tmp", "notes.txt", ".tmp"):
        assert attempt_of(foreign) is None
    assert is_temporary_manifest(MANIFEST_NAME + ".0a1b2c3d.tmp")
    assert not is_temporary_manifest(MANIFEST_NAME)


# ---- index ---------------------------------------------------------------------------------------------------------


def test_an_index_returns():
    """What was encoded is decoded, with and without a manifest's entry at hand."""
    stored, raw_len = encode_index(index())
    assert decode_index(stored, file=FILE, entry=entry_for(stored, raw_len), step=7) == index()
    assert decode_index(memoryview(stored), file=FILE, entry=None) == index()
    assert index().frames.digest(1) == bytes.fromhex("0f" * 16)


def test_no_flipped_bit_of_an_index_goes_unseen():
    """Every flipped bit and every shortening of an index file is an IntegrityError (case 36)."""
    stored, raw_len = encode_index(index())
    damaged = [bytes(flip(stored, bit)) for bit in range(8 * len(stored))] + [stored[:n] for n in range(len(stored))]
    for data in damaged:
        with pytest.raises(IntegrityError):
            decode_index(data, file=FILE, entry=entry_for(stored, raw_len))


def test_damage_never_changes_an_index_that_no_manifest_names_yet():
    """Without the manifest's digest, a damaged index is refused or, by luck, says the very same (case 36)."""
    stored, _ = encode_index(index())
    for bit in range(8 * len(stored)):
        with contextlib.suppress(IntegrityError, FormatError):
            assert decode_index(flip(stored, bit), file=FILE, entry=None) == index()


def flip(data, bit):
    """The data with one bit flipped."""
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return changed


def test_a_damaged_index_names_its_file():
    """The digest in the manifest is checked first, and the error carries the file's key."""
    stored, raw_len = encode_index(index())
    with pytest.raises(IntegrityError) as caught:
        decode_index(flip(stored, 100), file=FILE, entry=entry_for(stored, raw_len))
    assert caught.value.file == FILE
    with pytest.raises(IntegrityError, match="bytes"):
        decode_index(stored + b"x", file=FILE, entry=entry_for(stored, raw_len))


def test_a_newer_version_is_refused_by_name():
    """A document of version 7 is refused with both versions in the message, whatever fields it has."""
    with pytest.raises(FormatError, match="version 7, this one reads 1"):
        decode_index(forged_index({"version": 7, "novelty": []}), file=FILE, entry=None)
    with pytest.raises(FormatError, match="version 7, this one reads 1"):
        decode_manifest(forged_manifest(lambda m: m.update(version=7, novelty=1)), file=MANIFEST_NAME)
    with pytest.raises(FormatError, match="unknown version 0"):
        decode_manifest(forged_manifest(lambda m: m.update(version=0)), file=MANIFEST_NAME)


def test_a_bomb_is_refused_before_it_is_unpacked():
    """A frame that claims more than the manifest says, more than the limit, or not how much, takes no memory."""
    bomb = zstandard.compress(bytes(50 << 20))
    with pytest.raises(FormatError, match="claims"):
        decode_index(bomb, file=FILE, entry=entry_for(bomb, 1000))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(b"{}")
    for data in (unsized, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + b"\x01\x00\x00"):
        with pytest.raises(FormatError):
            decode_index(data, file=FILE, entry=None)


INDEX_DEFECTS = [
    {"raw_bytes": 13}, {"pack_bytes": 10}, {"raw_bytes": -1}, {"rank": 1}, {"rank": -1}, {"world": 0}, {"step": -1},
    {"step": 8},
    {"save_id": "ab"}, {"save_id": "ffffffffffff"}, {"world": 2}, {"extra": 1}, {"frames": {}}, {"frames": None},
    {"version": "1"},
    {"version": True}, {"step": 7.5}, {"step": "7"}, {"format": "asyncckpt"}, {"format": None}, {"raw_bytes": None},
    {"raw_bytes": 2**80},
    *({"frames": {**msgspec.to_builtins(frames()), **change}} for change in (
        {"raw": [12]}, {"raw": [12, 0]}, {"raw": [13, -1]}, {"raw": [MAX_FRAME_BYTES + 1, 4]}, {"stored": [9, 0]},
        {"stored": [5, 5]},
        {"kinds": ["f4", "q9"]}, {"kinds": ["f4"]}, {"encodings": ["", "raw"]}, {"encodings": ["x" * 65, "raw"]},
        {"digests": "0f" * 31},
        {"digests": "0F" * 32}, {"digests": "zz" * 32}, {"stored": [7, 2]}, {"stored": [2**70, 4]}, {"surplus": []},
        {"raw": ["8", 4]},
    )),
]  # fmt: skip


@pytest.mark.parametrize("change", INDEX_DEFECTS, ids=str)
def test_an_index_that_breaks_a_rule_is_refused(change):
    """Sums, lengths, bounds, kinds, names, types and unknown fields are all checked."""
    with pytest.raises(FormatError) as caught:
        decode_index(forged_index(change), file=FILE, entry=None, step=7)
    assert caught.value.defect


def test_an_index_must_agree_with_the_manifest():
    """A pack size or a step that the manifest tells otherwise is refused."""
    stored, raw_len = encode_index(index())
    with pytest.raises(FormatError):
        decode_index(stored, file=FILE, entry=entry_for(stored, raw_len, pack_bytes=10))
    with pytest.raises(FormatError):
        decode_index(stored, file=FILE, entry=entry_for(stored, raw_len), step=6)


def test_deep_json_in_an_index_is_a_format_error():
    """Nesting that would exhaust the decoder's stack is refused."""
    raw = msgspec.json.encode(index()).replace(b'"tree":', b'"tree":' + b"[" * 200_000 + b"]" * 200_000 + b',"tree":')
    with pytest.raises(FormatError):
        decode_index(zstandard.compress(raw), file=FILE, entry=None)


def test_encode_refuses_what_decode_would_refuse():
    """No index or manifest is written that could not be read."""
    with pytest.raises(FormatError):
        encode_index(index(raw_bytes=1))
    with pytest.raises(FormatError):
        encode_manifest(manifest(timings={"copy": math.inf}))


# ---- manifest ------------------------------------------------------------------------------------------------------


def test_a_manifest_returns_and_can_be_read_by_people():
    """It is indented JSON, ends with a newline, and carries its own digest."""
    data = encode_manifest(manifest())
    assert data.count(b"\n") > 20
    assert data.endswith(b"}\n")
    assert json.loads(data)["format"] == "asyncckpt"
    again = decode_manifest(data, file=MANIFEST_NAME)
    assert again == manifest(digest=again.digest)
    assert encode_manifest(again) == data


def test_no_flipped_bit_of_a_manifest_goes_unseen():
    """Every flipped bit, cut and zeroed tail is an IntegrityError or FormatError (cases 28 and 36)."""
    data = encode_manifest(manifest())
    damaged = [bytes(flip(data, bit)) for bit in range(8 * len(data))]
    damaged += (
        [data[:n] for n in range(len(data))]
        + [data[:n] + bytes(len(data) - n) for n in range(len(data))]
        + [data + b" "]
    )
    for bad in damaged:
        with pytest.raises((IntegrityError, FormatError)):
            decode_manifest(bad, file=MANIFEST_NAME)


def shard_edit(**changes):
    """An edit of the first shard's entry."""
    return lambda document: document["shards"][0].update(changes)


MANIFEST_DEFECTS = [
    lambda m: m.update(step=-1), lambda m: m.update(save_id="x"), lambda m: m.update(created=1e300),
    lambda m: m.update(created=-1.0),
    lambda m: m.update(shards=[]), lambda m: m.update(stored_bytes=1), lambda m: m.update(raw_bytes=-1),
    lambda m: m.pop("metadata"),
    lambda m: m.update(surplus=1), lambda m: m.update(timings={"a": None}), lambda m: m.update(versions={"a": 1}),
    lambda m: m["shards"].append(m["shards"][0]), lambda m: m.update(format="asyncckpt-index"),
    lambda m: m.update(raw_bytes=2**64),
    shard_edit(pack="../../x"), shard_edit(pack="/etc/passwd"), shard_edit(index=part_name(SAVE, 1, 2, "index")),
    shard_edit(pack_bytes=-1),
    shard_edit(pack=part_name("f" * 12, 0, 1, "pack")), shard_edit(index_bytes=0), shard_edit(index_raw_bytes=2 << 30),
    shard_edit(index_raw_bytes=0), shard_edit(index_digest="F" * 32), shard_edit(surplus=1),
    shard_edit(pack_bytes="9"),
]  # fmt: skip


@pytest.mark.parametrize("edit", MANIFEST_DEFECTS)
def test_a_manifest_that_breaks_a_rule_is_refused(edit):
    """Names, ranks, sizes, sums, times, types and unknown fields are all checked, behind a right digest."""
    with pytest.raises(FormatError) as caught:
        decode_manifest(forged_manifest(edit), file=MANIFEST_NAME)
    assert caught.value.defect


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_documents_are_refused_or_right(data):
    """Whatever is done to the JSON of a document, reading it gives a document or a refusal, nothing else."""
    junk = st.sampled_from([None, True, -1, 2**70, 1.5, "", "x", [], {}, [[]], {"a": 1}, "0" * 32])

    def mutate(document):
        place = document
        while True:
            key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
            if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
                place[key] = data.draw(junk)
                return
            place = place[key]

    raw = json.loads(msgspec.json.encode(index()))
    mutate(raw)
    mutations = [
        lambda: decode_index(zstandard.compress(json.dumps(raw).encode()), file=FILE, entry=None, step=7),
        lambda: decode_manifest(forged_manifest(mutate), file=MANIFEST_NAME),
    ]
    for read in mutations:
        with contextlib.suppress(FormatError, IntegrityError):
            read()


def test_a_tree_fits_into_an_index():
    """Big integers, NaN and lone surrogates go through an index file."""
    state = {"big": 2**200, "inf": math.inf, "s": "\ud800", "deep": [[[1]]]}
    tree = flatten(state, lambda value, path: NOT_LEAF)
    stored, _ = encode_index(index(tree=tree))
    assert decode_index(stored, file=FILE, entry=None).tree == tree
