"""The view of time series operations: equal to the projection's decoders, and never more than
a payload holds."""

import os
from random import Random
from typing import Any

import pytest

from onelog.projections.codec import encode_prefix
from onelog.projections.errors import BadPayload
from onelog.projections.timeseries.commands import Write, encode_command, encode_write_batch
from onelog.projections.timeseries.names import parse_series, series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.types import FieldType
from onelog.spark.columns import log, timeseries, view
from onelog.spark.columns.operations import OPERATIONS
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.series_names import parse_series_name
from onelog.spark.columns.timeseries import entries_with_measurement
from onelog.spark.columns.view import Request
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptPayload
from tests.formats.golden import load_golden
from tests.projections.timeseries import ts_samples
from tests.spark.columns.series_rows import (
    Row,
    blocks_of,
    expected_rows,
    micros,
    name_of,
    random_draft,
    series_of,
)

# Rows to compare; SPARK_PAYLOADS=1000000 takes some minutes.
ROWS_MIN = int(os.environ.get("SPARK_PAYLOADS", "20000"))
PART_ENTRIES = 2_000
NAMES = sorted(ts_samples.COMMANDS)


def rows_of(drafts: list[Draft], **limits: Any) -> list[Row]:
    """Return the rows of drafts, without what is null and without what follows from the rest."""
    request = Request(Selection(**limits))
    rows = []
    for block in blocks_of(drafts):
        for batch in timeseries.VIEW.batches(block, request):
            assert batch.schema.equals(timeseries.VIEW.schema)
            batch.validate(full=True)
            rows += batch.to_pylist()
    for row in rows:
        time, moment = row.pop("time"), row.pop("timestamp")
        assert micros(moment) == row["timestamp_ns"] // 1_000
        assert (time is None) == (row["time_ns"] is None)
        assert time is None or micros(time) == row["time_ns"] // 1_000
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def all_expected(drafts: list[Draft]) -> list[Row]:
    return [
        row
        for index, draft in enumerate(drafts, 1)
        for row in expected_rows(index, OPERATIONS[draft.entry_type], draft)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_golden_payload_has_the_rows_of_its_command(name: str) -> None:
    draft = Draft(ts_samples.samples()[name].entry_type, load_golden(f"payloads/{name}"))

    assert rows_of([draft]) == all_expected([draft])


def test_random_entries_have_the_rows_that_the_projection_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Small batches, so that blocks are decoded in parts."""
    monkeypatch.setattr(view, "BATCH_ROWS_MAX", 3_000)
    draw = Random(18)
    count = 0
    seen = set()
    while count < ROWS_MIN:
        drafts = [random_draft(draw) for _ in range(PART_ENTRIES)]
        seen |= {draft.entry_type for draft in drafts}
        expected = all_expected(drafts)
        assert rows_of(drafts) == expected
        count += len(expected)
    assert frozenset(seen) == timeseries.VIEW.types


def test_an_entry_without_points_has_a_row() -> None:
    empty = encode_write_batch(encode_batch([]), "default")

    assert [row["operation"] for row in rows_of([empty, empty])] == ["ts_write_batch"] * 2


def test_columns_that_nobody_wants_are_not_made() -> None:
    (block,) = blocks_of(list(ts_samples.samples().values()))
    request = Request(columns=frozenset({"index", "value", "rule"}))

    (batch,) = timeseries.VIEW.batches(block, request)

    assert batch.schema.names == ["index", "value", "rule"]
    assert batch.num_rows == len(all_expected(list(ts_samples.samples().values())))


def test_the_largest_batch_is_one_batch_of_rows_and_others_are_bounded() -> None:
    def batch_of(points: int) -> Draft:
        run = Run(series_name("m"), "f", FieldType.BOOL, range(points), [True] * points)
        return encode_write_batch(encode_batch([run]), "default")

    drafts = [batch_of(100_000), batch_of(60_000), batch_of(60_000), batch_of(60_000)]
    (block,) = blocks_of(drafts)

    sizes = [batch.num_rows for batch in timeseries.VIEW.batches(block, Request())]

    assert sizes == [100_000, 120_000, 60_000]


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_cut_at_any_byte_is_damaged(name: str) -> None:
    draft = ts_samples.samples()[name]
    body_end = len(draft.payload)
    if name == "ts_block":  # its body has no size of its own
        body_end -= len(ts_samples.BLOCK_BODY)
    neighbour = ts_samples.samples()["ts_write_batch"]
    # Without its last field an entry that continues a deletion is one that begins it.
    whole = body_end - 8 if name.endswith("_continued") else None
    for end in set(range(body_end)) - {whole}:
        cut = Draft(draft.entry_type, draft.payload[:end])
        with pytest.raises(CorruptPayload):
            rows_of([neighbour, cut, neighbour])


@pytest.mark.parametrize("seed", range(3))
def test_a_changed_byte_is_damage_or_another_value_and_never_anything_else(seed: int) -> None:
    draw = Random(seed)
    samples = list(ts_samples.samples().values())
    for _ in range(300):
        draft = draw.choice(samples)
        payload = bytearray(draft.payload)
        for _ in range(draw.randint(1, 3)):
            payload[draw.randrange(len(payload))] = draw.randrange(256)
        changed = Draft(draft.entry_type, bytes(payload))
        (block,) = blocks_of([samples[0], changed, samples[1]])
        try:
            for batch in timeseries.VIEW.batches(block, Request()):
                batch.validate(full=True)
        except CorruptPayload:
            continue


def test_bytes_behind_the_last_field_are_damage() -> None:
    for name, draft in ts_samples.samples().items():
        if name == "ts_block":
            continue
        with pytest.raises(CorruptPayload):
            rows_of([Draft(draft.entry_type, draft.payload + b"\0")])


def test_what_contradicts_itself_is_damage() -> None:
    batch = ts_samples.samples()["ts_write_batch"]
    body = len(encode_prefix(ts_samples.NAMESPACE))
    times_at, points_at = body + 8, body + 12
    for at, total in ((times_at, 2), (times_at, 4), (points_at, 5), (points_at, 7)):
        payload = bytearray(batch.payload)
        payload[at : at + 4] = total.to_bytes(4, "little")
        with pytest.raises(CorruptPayload):
            rows_of([Draft(batch.entry_type, bytes(payload))])
    delete = ts_samples.samples()["ts_delete"]
    operator_at = delete.payload.index(b"\x03\x04host")
    for operator in (0, 5, 255):
        payload = bytearray(delete.payload)
        payload[operator_at] = operator
        with pytest.raises(CorruptPayload):
            rows_of([Draft(delete.entry_type, bytes(payload))])


def test_rows_are_counted_before_they_are_made() -> None:
    draw = Random(4)
    drafts = [random_draft(draw) for _ in range(300)]
    (block,) = blocks_of(drafts)
    rows = [row["index"] for row in all_expected(drafts)]

    assert timeseries.VIEW.count is not None
    assert timeseries.VIEW.count(block).tolist() == [rows.count(index) for index in range(1, 301)]


def test_a_count_that_the_payload_cannot_hold_is_refused_before_anything_is_made() -> None:
    batch = ts_samples.samples()["ts_write_batch"]
    points_at = len(encode_prefix(ts_samples.NAMESPACE)) + 12
    payload = bytearray(batch.payload)
    payload[points_at : points_at + 4] = b"\xff" * 4
    (block,) = blocks_of([Draft(batch.entry_type, bytes(payload))])

    assert timeseries.VIEW.count is not None
    with pytest.raises(CorruptPayload):
        timeseries.VIEW.count(block)


# Names


@pytest.mark.parametrize(
    "raw", [b"m", b"m{", b"m{}x", b"{}", b"m{a}", b"m{a=}", b"m{a=1,a=2}", b"m{b=1,a=2}", b"m{=1}"]
)
def test_what_is_no_canonical_name_is_damage(raw: bytes) -> None:
    with pytest.raises(BadPayload):
        parse_series(raw)
    with pytest.raises(CorruptPayload):
        parse_series_name(raw)


@pytest.mark.parametrize("seed", range(5))
def test_a_name_is_taken_apart_as_the_projection_does(seed: int) -> None:
    draw = Random(seed)
    for _ in range(500):
        raw = series_of(draw)
        assert tuple(parse_series_name(raw)) == tuple(parse_series(raw))
        changed = bytearray(raw)
        changed[draw.randrange(len(changed))] = draw.choice(b"\\,={}ab\xff")
        try:
            expected = tuple(parse_series(bytes(changed)))
        except BadPayload:
            with pytest.raises(CorruptPayload):
                parse_series_name(bytes(changed))
        else:
            assert tuple(parse_series_name(bytes(changed))) == expected


def test_special_characters_in_names_come_out_as_they_were_meant() -> None:
    draft = encode_command(
        Write(series_name("load{7}", {"a=b": "x,y", "c": "\\"}), 5, (("f", 1.0),)), "default"
    )

    (row,) = rows_of([draft])

    assert row["measurement"] == "load{7}"
    assert row["tags"] == [("a=b", "x,y"), ("c", "\\")]
    assert row["series"] == r"load\{7\}{a\=b=x\,y,c=\\}"


# Selection


def test_a_selection_keeps_the_rows_of_its_namespaces_and_measurements() -> None:
    draw = Random(5)
    drafts = [random_draft(draw) for _ in range(1_500)]
    expected = all_expected(drafts)
    names = {name_of(draw) for _ in range(4)} | {"a", "{"}
    of_names = [row for row in expected if is_of(row, names)]

    found = rows_of(drafts, measurements=frozenset(name.encode() for name in names))

    assert found == of_names
    assert {row["operation"] for row in found} == set(OPERATIONS.values()) & {
        row["operation"] for row in expected
    } - {"ts_block"}
    assert rows_of(drafts, namespaces=frozenset({"räume".encode()})) == [
        row for row in expected if row["namespace"] == "räume"
    ]
    assert rows_of(drafts, measurements=frozenset({b"none"})) == []


def is_of(row: Row, names: set[str]) -> bool:
    return row.get("measurement") in names or row.get("source") in names


def test_the_log_keeps_the_entries_that_have_a_row_of_a_measurement() -> None:
    draw = Random(6)
    drafts = [random_draft(draw) for _ in range(1_500)]
    drafts.insert(700, Draft(0x0101, b"\x01\x00\x01x\x00\x01\x00aa"))  # a put of the key "a"
    (block,) = blocks_of(drafts)
    names = frozenset({b"a", b"b"})
    expected = sorted(
        {row["index"] for row in all_expected_of_series(drafts) if is_of(row, {"a", "b"})}
    )

    mask = entries_with_measurement(block, names)
    shown = [
        row["index"]
        for batch in log.VIEW.batches(block, Request(Selection(measurements=names)))
        for row in batch.to_pylist()
    ]

    assert block.headers["index"][mask].tolist() == expected == shown
    assert 50 < len(expected) < 1_400


def all_expected_of_series(drafts: list[Draft]) -> list[Row]:
    return [
        row
        for index, draft in enumerate(drafts, 1)
        if draft.entry_type >> 8 == 3
        for row in expected_rows(index, OPERATIONS[draft.entry_type], draft)
    ]
