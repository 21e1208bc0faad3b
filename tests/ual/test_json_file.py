"""A small JSON file is believed whole or refused; nothing in between."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual import json_file
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import DiskFiles
from onelog.ual.json_file import (
    U64_MAX,
    Fields,
    decode_json_file,
    encode_json_file,
    read_json_file,
    write_json_file,
)

SAMPLE: dict[str, Any] = {
    "version": 1,
    "name": "knoten-ä \u2028 \ud83d\ude00",
    "numbers": [0, U64_MAX, -1],
    "nested": {"none": None, "yes": True, "text": "A\\a/\n\x7f"},
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
field_names = st.text(max_size=12).filter(lambda name: name not in ("crc32c", "version"))


def short(value: object) -> str:
    """Return a test id that fits a line."""
    return repr(value)[:30]


def with_checksum(fields: dict[str, Any]) -> bytes:
    """Return what a writer with other ideas but a right checksum would have written."""
    plain = json.dumps(fields, sort_keys=True, indent=2).encode() + b"\n"
    whole = {**fields, "crc32c": f"{crc32c(plain):08x}"}
    return json.dumps(whole, sort_keys=True, indent=2).encode() + b"\n"


def test_the_bytes_of_a_file_are_as_documented() -> None:
    """The format is on people's disks: this literal only ever gets a sibling."""
    assert encode_json_file({"version": 1, "b": "ä", "a": [2]}) == (
        b'{\n  "a": [\n    2\n  ],\n  "b": "\\u00e4",\n  "crc32c": "c7ed660b",\n  "version": 1\n}\n'
    )


@settings(max_examples=50)
@given(st.dictionaries(field_names, json_values, max_size=5))
def test_what_was_encoded_is_decoded(fields: dict[str, Any]) -> None:
    fields = {**fields, "version": 1}

    assert decode_json_file("FILE", encode_json_file(fields), 1) == fields


def test_every_flipped_bit_is_found() -> None:
    """Exhaustive, because JSON forgives a lot: whitespace, letter case in escapes, key order."""
    data = encode_json_file(SAMPLE)

    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position >> 3] ^= 1 << (position & 7)
        with pytest.raises(CorruptFile):
            decode_json_file("FILE", bytes(damaged), 1)


@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:0e-. \n', max_size=40).map(str.encode))
def test_foreign_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_json_file("FILE", data, 1)


def test_a_file_cut_at_any_byte_is_refused() -> None:
    data = encode_json_file(SAMPLE)

    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_json_file("FILE", data[:size], 1)


@pytest.mark.parametrize(
    ("data", "rule", "offset"),
    [
        (b"", "not JSON", 0),
        (b'{"a": \xff}', "not JSON: a byte outside ASCII", 6),
        (b'{"version": 1.5}', "not JSON: 1.5 is not a whole number", None),
        (b'{"version": NaN}', "not JSON: NaN is not a whole number", None),
        (b'{"version": ' + b"9" * 5000 + b"}", "not JSON", None),
        (b"[" * 200_000, "not JSON", None),
        (b"[1]", "not a JSON object", None),
        (b'{"version": 1}', "field crc32c missing", None),
        (b'{"version": 1, "crc32c": "00000000"}', "checksum", None),
        (b'{"version": 1, "crc32c": 7}', "checksum", None),
        (with_checksum({"version": 0}), "field version is 0", None),
        (with_checksum({"version": True}), "field version is True", None),
        (with_checksum({"version": "1"}), "field version is '1'", None),
        (with_checksum({"a": 1}), "field version is None", None),
        (encode_json_file({"version": 1}) + b"\n", "not in canonical form", 43),
    ],
    ids=short,
)
def test_the_refusal_names_the_rule(data: bytes, rule: str, offset: int | None) -> None:
    with pytest.raises(CorruptFile) as caught:
        decode_json_file("some/FILE", data, 1)

    assert caught.value.path == "some/FILE"
    assert caught.value.rule.startswith(rule)
    assert caught.value.offset == offset


def test_a_repeated_key_is_not_canonical() -> None:
    """JSON parsers keep the last one; two readers could see two different files."""
    data = encode_json_file({"version": 1, "a": 1}).replace(b'"a": 1,', b'"a": 2, "a": 1,')

    with pytest.raises(CorruptFile, match="not in canonical form"):
        decode_json_file("FILE", data, 1)


def test_a_newer_version_asks_for_an_upgrade_only_if_it_is_undamaged() -> None:
    data = encode_json_file({"version": 3})

    with pytest.raises(UnknownVersion, match="upgrade onelog"):
        decode_json_file("FILE", data, 2)
    with pytest.raises(CorruptFile, match="checksum"):
        decode_json_file("FILE", encode_json_file({"version": 1}).replace(b": 1", b": 9"), 2)


def test_a_file_survives_the_disk_and_is_replaced_whole(tmp_path: Path) -> None:
    files = DiskFiles()

    write_json_file(files, tmp_path / "FILE", SAMPLE)
    write_json_file(files, tmp_path / "FILE", {"version": 2})

    assert read_json_file(files, tmp_path / "FILE", 2) == {"version": 2}
    assert files.list(tmp_path) == ["FILE"]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = DiskFiles().open(tmp_path / "FILE", create=True)
    file.truncate(1 << 40)  # a hole: reading it would end the test run

    with pytest.raises(CorruptFile, match="limit"):
        read_json_file(DiskFiles(), tmp_path / "FILE", 1)


def test_nothing_is_written_that_could_not_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_file, "JSON_FILE_SIZE_MAX", 100)

    with pytest.raises(AssertionError):
        encode_json_file({"version": 1, "text": "x" * 100})
    with pytest.raises(AssertionError):
        encode_json_file({"crc32c": "00000000", "version": 1})
    with pytest.raises(AssertionError):
        encode_json_file({"version": True})


def test_fields_come_out_by_type() -> None:
    node_id = UUID(int=7)
    fields = Fields(
        "FILE",
        {"n": 3, "none": None, "t": "x", "u": str(node_id), "o": {"n": 1}, "l": [{"n": 2}]},
    )

    fields.only("n", "none", "t", "u", "o", "l")
    assert fields.integer("n") == 3
    assert fields.integer_or_none("n") == 3
    assert fields.integer_or_none("none") is None
    assert fields.text("t", size_max=1) == "x"
    assert fields.uuid("u") == node_id
    assert fields.nested("o").integer("n") == 1
    assert [row.integer("n") for row in fields.rows("l", count_max=1)] == [2]


@pytest.mark.parametrize(
    "value", [None, True, False, "1", -1, 11, 1.0, [], {}, 10**4000], ids=short
)
def test_what_is_not_an_integer_within_the_limits_is_refused(value: object) -> None:
    with pytest.raises(CorruptFile, match=r"field a\.n is ") as caught:
        Fields("FILE", {"n": value}, "a.").integer("n", maximum=10)

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [None, True, 1, "", "xxx", ["x"], {"x": 1}])
def test_what_is_not_a_text_within_the_limits_is_refused(value: object) -> None:
    with pytest.raises(CorruptFile, match="field t "):
        Fields("FILE", {"t": value}).text("t", size_max=2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        "not-a-uuid",
        "00000000000000000000000000000007",
        "{00000000-0000-0000-0000-000000000007}",
        "00000000-0000-0000-0000-00000000000A",
        "00000000-0000-0000-0000-00000000000g",
    ],
)
def test_what_is_not_a_uuid_in_its_usual_form_is_refused(value: object) -> None:
    with pytest.raises(CorruptFile, match="field u "):
        Fields("FILE", {"u": value}).uuid("u")


def test_lists_and_objects_are_checked_down_to_the_row() -> None:
    fields = Fields("FILE", {"l": [{"n": 1}, {"n": "x"}], "o": [], "m": {}, "bad": [{}, 7]})

    with pytest.raises(CorruptFile, match=r"field l\[1\]\.n is 'x', not an integer"):
        [row.integer("n") for row in fields.rows("l", count_max=2)]
    with pytest.raises(CorruptFile, match=r"field bad\[1\] is 7, not an object"):
        fields.rows("bad", count_max=2)
    with pytest.raises(CorruptFile, match="field l has 2 items, limit 1"):
        fields.rows("l", count_max=1)
    with pytest.raises(CorruptFile, match="field o is a list, not an object"):
        fields.nested("o")
    with pytest.raises(CorruptFile, match="field m is an object, not a list"):
        fields.rows("m", count_max=1)
    with pytest.raises(CorruptFile, match=r"field m\.n missing"):
        fields.nested("m").integer("n")
    with pytest.raises(CorruptFile, match="field bad unknown"):
        fields.only("l", "o", "m")


def test_objects_nested_without_end_are_refused() -> None:
    depth = 992  # the parser still takes it, the writer does not
    data = b'{"crc32c": "00000000", "x": ' + b'{"a": ' * depth + b"1" + b"}" * (depth + 1)
    with pytest.raises(CorruptFile):
        decode_json_file("SYSTEM", data, 1)
