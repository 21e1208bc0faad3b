"""Columns as text: the same as Python's json, base64 and csv make of them, value by value."""

import base64
import csv
import io
import json
import math
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

from onelog.spark.export.text import base64_text, csv_columns, csv_schema, json_lines

SCHEMA = pa.schema(
    [
        pa.field("number", pa.int64()),
        pa.field("flag", pa.bool_()),
        pa.field('te"xt', pa.string()),
        pa.field("bytes", pa.binary()),
        pa.field("real", pa.float64()),
        pa.field("moment", pa.timestamp("us", tz="UTC")),
        pa.field("headers", pa.map_(pa.string(), pa.binary())),
        pa.field("weights", pa.map_(pa.binary(), pa.int32())),
        pa.field("list", pa.list_(pa.float64())),
        pa.field("struct", pa.struct([("name", pa.string()), ("values", pa.list_(pa.int64()))])),
    ]
)
TEXTS = ("", "plain", 'quo"te', "back\\slash", "new\nline", "\x00\x01\x1f\x7f", "größe €😀", "a,b")
REALS = (0.0, -1.5, 1e300, 0.1, math.nan, math.inf, -math.inf, 5.0)


def rows(count: int, seed: int = 1) -> list[dict[str, Any]]:
    rng = Random(seed)

    def value() -> dict[str, Any]:
        return {
            "number": rng.randrange(-(1 << 63), 1 << 63),
            "flag": rng.random() < 0.5,
            'te"xt': rng.choice(TEXTS),
            "bytes": rng.randbytes(rng.randrange(8)),
            "real": rng.choice(REALS),
            "moment": datetime(2026, 1, 1, tzinfo=UTC)
            + timedelta(microseconds=rng.randrange(9**9)),
            "headers": [(text, rng.randbytes(2)) for text in rng.sample(TEXTS, rng.randrange(3))],
            "weights": [(name, 7) for name in rng.sample((b"", b"\xff", b"bob"), rng.randrange(3))],
            "list": [rng.choice((None, 1.5)) for _ in range(rng.randrange(3))],
            "struct": {"name": rng.choice(TEXTS), "values": [1, None][: rng.randrange(3)]},
        }

    return [
        {name: None if rng.random() < 0.2 else each for name, each in value().items()}
        for _ in range(count)
    ]


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, list) and value and isinstance(value[0], tuple):
        return {plain(name): plain(each) for name, each in value}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def batch(count: int, seed: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows(count, seed), schema=SCHEMA)


@pytest.mark.parametrize(("start", "count"), [(0, 500), (3, 200), (499, 1), (100, 0)])
def test_lines_of_json_are_those_that_python_would_write(start: int, count: int) -> None:
    lines = bytes(json_lines(batch(500).slice(start, count))).decode().split("\n")
    assert lines.pop() == ""
    found = [json.loads(line) for line in lines]
    wanted = [
        {
            name: {} if name in ("headers", "weights") and value == [] else plain(value)
            for name, value in row.items()
        }
        for row in rows(500)[start : start + count]
    ]
    assert found == wanted


def test_base64_is_that_of_python() -> None:
    rng = Random(3)
    values = [None if rng.random() < 0.1 else rng.randbytes(rng.randrange(20)) for _ in range(999)]
    expected = [None if each is None else base64.b64encode(each).decode() for each in values]
    array = pa.array(values, pa.binary())
    assert base64_text(array).to_pylist() == expected
    assert base64_text(array.slice(7, 900)).to_pylist() == expected[7:907]
    assert base64_text(pa.array([], pa.binary())).to_pylist() == []


def test_csv_is_read_back_by_python() -> None:
    made = batch(300, seed=5)
    sink = io.BytesIO()
    with pyarrow.csv.CSVWriter(sink, csv_schema(made.schema)) as writer:
        writer.write_batch(csv_columns(made))
    found = list(csv.DictReader(io.StringIO(sink.getvalue().decode(), newline="")))
    for line, row in zip(found, rows(300, seed=5), strict=True):
        assert line['te"xt'] == (row['te"xt'] or "")
        assert line["number"] == ("" if row["number"] is None else str(row["number"]))
        assert line["bytes"] == (plain(row["bytes"]) or "")
        if row["struct"] is not None:
            assert json.loads(line["struct"]) == row["struct"]
