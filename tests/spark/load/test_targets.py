"""Every column of every target arrives, and what cannot be written is refused with its row."""

import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from onelog import Client
from onelog.errors import InvalidArgument, OnelogError, TooLarge
from onelog.spark.load.settings import parse_write
from onelog.spark.load.targets import KEY_SIZE_MAX, VALUE_SIZE_MAX
from onelog.v1 import admin_pb2
from tests.spark.load.writing import write

NOBODY = "127.0.0.1:1"
SECOND_NS = 10**9
HEADERS = pa.map_(pa.string(), pa.binary())


def batch(**columns: Any) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict(columns)]


def test_keys_have_values_and_lifetimes(endpoint: str, client: Client) -> None:
    options = {"to": "keys", "namespace": "lives"}
    client.admin.create_namespace("lives")
    lives = client.namespace("lives").kv
    ttls = pa.array([None, 0, 3_600 * SECOND_NS], pa.int64())
    rows = batch(key=[b"\x00\xff", b"b", b"c"],
                 value=["1", "", "ü"], ttl_ns=ttls)  # fmt: skip
    write(endpoint, options, rows, "lives")
    found = {item.key: item for item in lives.scan() if not item.key.startswith(b"_load{")}
    assert {key: item.value for key, item in found.items()} == {
        b"\x00\xff": b"1", b"b": b"", b"c": "ü".encode(),
    }  # fmt: skip
    assert [bool(found[key].expires_ns) for key in (b"\x00\xff", b"b", b"c")] == [
        False,
        False,
        True,
    ]


def test_keys_expire_at_a_time(endpoint: str, client: Client) -> None:
    now_ns = time.time_ns()
    hour = now_ns + 3_600 * SECOND_NS
    expires = pa.array([None, hour // 1_000], pa.timestamp("us", "UTC"))
    write(endpoint, {"to": "keys"}, batch(key=["e:never", "e:soon"], value=["", ""],
                                          expires=expires), "expire")  # fmt: skip
    never, soon = client.kv.scan("e:")
    assert never.expires_ns == 0
    assert abs(soon.expires_ns - hour) < 60 * SECOND_NS
    over = pa.array([1], pa.int64())  # in 1970: it is gone at once
    write(endpoint, {"to": "keys"}, batch(key=["over"], value=[""], expires=over), "over")


def test_records_have_keys_headers_tags_and_partitions(endpoint: str, client: Client) -> None:
    client.stream("records").create(partitions=4)
    headers = pa.array([[("a", b"\xff"), ("b", b"2")], None, []], HEADERS)
    rows = batch(
        value=["1", "2", "3"],
        key=["ann", None, None],
        headers=headers,
        tag=[None, "t", ""],
        partition=pa.array([None, 3, 1], pa.int32()),
    )
    write(endpoint, {"to": "stream", "stream": "records"}, rows, "records")
    stream = client.stream("records")
    records = {record.value: record for at in range(4) for record in stream.read(partition=at)}
    assert records[b"1"].key == b"ann"
    assert records[b"1"].headers == {"a": b"\xff", "b": b"2"}
    assert (records[b"2"].partition, records[b"2"].tag, records[b"2"].key) == (3, "t", None)
    assert (records[b"3"].partition, records[b"3"].headers) == (1, {})


def test_headers_may_be_a_struct_as_json_has_them(endpoint: str, client: Client) -> None:
    client.stream("structs").create()
    headers = pa.array([{"a": "1", "b": None}, {"a": None, "b": "2"}, None])
    rows = batch(value=["1", "2", "3"], headers=headers)
    write(endpoint, {"to": "stream", "stream": "structs"}, rows, "structs")
    assert [dict(record.headers) for record in client.stream("structs").read()] == [
        {"a": b"1"}, {"b": b"2"}, {},
    ]  # fmt: skip


def test_a_column_may_name_the_stream(endpoint: str, client: Client) -> None:
    names = [f"named-{number}" for number in range(6)]
    for name in names:
        client.stream(name).create()
    write(endpoint, {"to": "stream"}, batch(stream=names * 3, value=["v"] * 18), "named")
    assert [len(list(client.stream(name).read())) for name in names] == [3] * 6


def test_messages_have_everything_that_messages_have(endpoint: str, client: Client) -> None:
    queue = client.queue("messages")
    queue.create()
    rows = batch(
        body=["1", "2", "2 again", "later"],
        priority=pa.array([1, None, None, 0], pa.int8()),
        delay_ns=pa.array([None, 0, 0, 3_600 * SECOND_NS], pa.int64()),
        ttl_ns=pa.array([None, 3_600 * SECOND_NS, None, None], pa.int64()),
        headers=pa.array([[("by", b"ann")], None, None, None], HEADERS),
        dedup=[None, "same", "same", None],
        group=["g", None, None, None],
        tenant=[b"t", None, None, None],
    )
    write(endpoint, {"to": "queue", "queue": "messages"}, rows, "messages")
    first, second = queue.lease(10)
    assert (first.body, first.priority, first.group, first.tenant) == (b"1", 1, b"g", b"t")
    assert first.headers == {"by": b"ann"}
    assert (second.body, second.priority) == (b"2", 8)
    assert queue.info().delayed == 1


def test_points_are_grouped_into_series(endpoint: str, client: Client) -> None:
    count = 3_000
    times = np.arange(count) * SECOND_NS
    rows = batch(
        time=pa.array(times // 1_000, pa.timestamp("us")),
        host=[f"h{number % 7}" if number % 7 else None for number in range(count)],
        load=np.arange(count) * 0.5,
        used=pa.array([None if number % 2 else number for number in range(count)], pa.int32()),
        up=pa.array([number % 3 == 0 for number in range(count)]),
    )
    options = {"to": "series", "measurement": "cpu", "tags": "host"}
    outcome = write(endpoint, options, rows, "cpu")
    assert outcome.row_count == count
    query = client.ts.query("cpu", "load", 0, 2**62, by_series=True)
    found = {series.tags.get("host", ""): series for series in query}
    assert sorted(found) == ["", "h1", "h2", "h3", "h4", "h5", "h6"]
    for number in range(7):
        series = found[f"h{number}" if number else ""]
        assert series.times_ns.tolist() == times[number::7].tolist()
        assert series.values.tolist() == (np.arange(count) * 0.5)[number::7].tolist()
    used = client.ts.query("cpu", "used", 0, 2**62, by_series=True)
    assert sum(len(series) for series in used) == count // 2
    assert write(endpoint, options, rows, "cpu").skipped_row_count == count


def test_fields_and_the_time_may_have_names(endpoint: str, client: Client) -> None:
    options = {"to": "series", "measurement": "named", "time": "at", "fields": "a, b"}
    rows = batch(at=pa.array([1, 2], pa.int64()), a=[1.5, 2.5], b=[True, False])
    write(endpoint, options, rows, "named points")
    (series,) = client.ts.query("named", "a", 0, 100)
    assert series.values.tolist() == [1.5, 2.5]


def test_many_fields_make_small_chunks(endpoint: str, client: Client) -> None:
    fields = {f"f{number}": np.arange(100) for number in range(500)}
    rows = batch(time=pa.array(range(100), pa.int64()), **fields)
    write(endpoint, {"to": "series", "measurement": "wide"}, rows, "wide")
    (series,) = client.ts.query("wide", "f499", 0, 1_000)
    assert series.values.tolist() == list(range(100))


BAD_OPTIONS = [
    ({}, "TARGET_UNKNOWN"),
    ({"to": "table"}, "TARGET_UNKNOWN"),
    ({"to": "keys", "stream": "s"}, "OPTION_UNKNOWN"),
    ({"to": "keys", "colour": "red"}, "OPTION_UNKNOWN"),
    ({"to": "keys", "timeout": "soon"}, "OPTION_INVALID"),
    ({"to": "keys", "timeout": "0s"}, "OPTION_INVALID"),
    ({"to": "keys", "progress_ttl": "7"}, "OPTION_INVALID"),
    ({"to": "keys", "endpoint": "nowhere"}, "ENDPOINT_INVALID"),
    ({"to": "keys", "endpoint": " , "}, "ENDPOINT_INVALID"),
    ({"to": "keys", "tls": "perhaps"}, "OPTION_INVALID"),
    ({"to": "keys", "tls_cert": "/there/is/none"}, "OPTION_INVALID"),
    ({"to": "keys", "tls_ca": "/there/is/none"}, "OPTION_INVALID"),
    ({"to": "stream", "stream": "a:b"}, "STREAM_NAME_INVALID"),
    ({"to": "stream", "stream": "x" * 129}, "STREAM_NAME_INVALID"),
    ({"to": "queue", "queue": "x" * 129}, "QUEUE_NAME_INVALID"),
    ({"to": "series"}, "SERIES_NAME_INVALID"),
    ({"to": "series", "measurement": "m", "tags": "a,a"}, "COLUMN_TWICE"),
    ({"to": "series", "measurement": "m", "tags": "x" * 129}, "SERIES_NAME_INVALID"),
    ({"to": "series", "measurement": "m", "tags": ",".join(map(str, range(33)))},
     "SERIES_NAME_INVALID"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "reason"), BAD_OPTIONS)
def test_options_that_are_wrong_are_refused(options: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_write(options)
    assert caught.value.reason == reason


STREAM = {"to": "stream", "stream": "s"}
QUEUE = {"to": "queue", "queue": "q"}
SERIES = {"to": "series", "measurement": "m", "tags": "host"}
BAD_COLUMNS = [
    ({"to": "keys"}, {"key": pa.string()}, "COLUMN_MISSING"),
    ({"to": "keys"}, {"key": pa.string(), "value": pa.string(), "x": pa.string()},
     "COLUMN_UNKNOWN"),
    ({"to": "keys"}, {"key": pa.int64(), "value": pa.string()}, "COLUMN_TYPE_INVALID"),
    ({"to": "keys"}, {"key": pa.string(), "value": pa.struct([])}, "COLUMN_TYPE_INVALID"),
    ({"to": "keys"}, {"key": pa.string(), "value": pa.string(), "ttl_ns": pa.float64()},
     "COLUMN_TYPE_INVALID"),
    ({"to": "keys"}, {"key": pa.string(), "value": pa.string(), "ttl_ns": pa.int64(),
                      "expires": pa.int64()}, "COLUMNS_CONFLICT"),
    ({"to": "stream"}, {"value": pa.string()}, "COLUMN_MISSING"),
    (STREAM, {"value": pa.string(), "stream": pa.string()}, "COLUMN_UNKNOWN"),
    (STREAM, {"value": pa.string(), "headers": pa.map_(pa.string(), pa.int64())},
     "COLUMN_TYPE_INVALID"),
    (STREAM, {"value": pa.string(), "headers": pa.string()}, "COLUMN_TYPE_INVALID"),
    (QUEUE, {"body": pa.string(), "priority": pa.string()}, "COLUMN_TYPE_INVALID"),
    (QUEUE, {"value": pa.string()}, "COLUMN_UNKNOWN"),
    (SERIES, {"time": pa.int64(), "host": pa.string()}, "COLUMN_MISSING"),
    (SERIES, {"time": pa.int64(), "load": pa.float64()}, "COLUMN_MISSING"),
    (SERIES, {"host": pa.string(), "load": pa.float64()}, "COLUMN_MISSING"),
    (SERIES, {"time": pa.int32(), "host": pa.string(), "x": pa.float64()}, "COLUMN_TYPE_INVALID"),
    (SERIES, {"time": pa.int64(), "host": pa.int64(), "x": pa.float64()}, "COLUMN_TYPE_INVALID"),
    (SERIES, {"time": pa.int64(), "host": pa.string(), "x": pa.string()}, "COLUMN_TYPE_INVALID"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "columns", "reason"), BAD_COLUMNS)
def test_columns_that_are_wrong_are_refused(
    options: dict[str, str], columns: dict[str, pa.DataType], reason: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_write(options).target.check_schema(pa.schema(columns))
    assert caught.value.reason == reason


def test_a_column_that_comes_twice_is_refused() -> None:
    schema = pa.schema([("key", pa.string()), ("key", pa.string()), ("value", pa.string())])
    with pytest.raises(InvalidArgument, match="COLUMN_TWICE"):
        parse_write({"to": "keys"}).target.check_schema(schema)


def keys(**columns: Any) -> dict[str, Any]:
    return {"key": ["a", "b", "c"], "value": ["", "", ""], **columns}


def points(**columns: Any) -> dict[str, Any]:
    base = {"time": pa.array([1, 2, 3], pa.int64()), "host": ["a", "b", "c"], "x": [1.0, 2.0, 3.0]}
    return {**base, **columns}


BAD_ROWS = [
    ({"to": "keys"}, keys(key=["a", "b", None]), "COLUMN_NULL"),
    ({"to": "keys"}, keys(value=["a", "b", None]), "COLUMN_NULL"),
    ({"to": "keys"}, keys(key=["a", "b", ""]), "KEY_SIZE_INVALID"),
    ({"to": "keys"}, keys(key=["a", "b", "x" * (KEY_SIZE_MAX + 1)]), "KEY_SIZE_INVALID"),
    ({"to": "keys"}, keys(key=["a", "b", "cg:x"]), "KEY_RESERVED"),
    ({"to": "keys"}, keys(key=["a", "b", "_load{x"]), "KEY_RESERVED"),
    ({"to": "keys"}, keys(value=["", "", b"x" * (VALUE_SIZE_MAX + 1)]), "VALUE_TOO_LARGE"),
    ({"to": "keys"}, keys(ttl_ns=[1, 2, -1]), "TTL_INVALID"),
    ({"to": "keys"}, keys(ttl_ns=[1, 2, 2**62]), "TTL_INVALID"),
    ({"to": "keys"}, keys(ttl_ns=pa.array([1, 2, 2**63], pa.uint64())), "NUMBER_INVALID"),
    ({"to": "keys"}, keys(expires=pa.array([1, 2, 2**61], pa.timestamp("s"))),
     "POINT_TIME_INVALID"),
    (STREAM, {"value": ["a", "b", None]}, "COLUMN_NULL"),
    (STREAM, {"value": ["a"] * 3, "key": ["", "", "x" * 4_097]}, "KEY_SIZE_INVALID"),
    (STREAM, {"value": ["a"] * 3, "partition": [0, 255, 256]}, "PARTITION_UNKNOWN"),
    (STREAM, {"value": ["a"] * 3,
              "headers": pa.array([None, [], [(str(n), b"") for n in range(65)]], HEADERS)},
     "HEADER_INVALID"),
    (STREAM, {"value": ["a"] * 3, "headers": pa.array([None, [], [("a", None)]], HEADERS)},
     "HEADER_INVALID"),
    ({"to": "stream"}, {"value": ["a"] * 3, "stream": ["a", "b", None]}, "COLUMN_NULL"),
    ({"to": "stream"}, {"value": ["a"] * 3, "stream": ["a", "b", ""]}, "STREAM_NAME_INVALID"),
    (QUEUE, {"body": ["a", "b", b"x" * (VALUE_SIZE_MAX + 1)]}, "MESSAGE_TOO_LARGE"),
    (QUEUE, {"body": ["a"] * 3, "priority": [0, 15, 16]}, "PRIORITY_INVALID"),
    (QUEUE, {"body": ["a"] * 3, "delay_ns": [0, 1, -1]}, "DELAY_INVALID"),
    (QUEUE, {"body": ["a"] * 3, "ttl_ns": [0, 1, -1]}, "TTL_INVALID"),
    (QUEUE, {"body": ["a"] * 3, "dedup": ["a", "b", "x" * 129]}, "MESSAGE_KEY_INVALID"),
    (SERIES, points(x=[1.0, 2.0, float("nan")]), "VALUE_NOT_FINITE"),
    (SERIES, points(x=[1.0, 2.0, float("inf")]), "VALUE_NOT_FINITE"),
    (SERIES, points(x=pa.array([1.0, 2.0, None])), "COLUMN_NULL"),
    (SERIES, points(time=pa.array([1, 2, None], pa.int64())), "COLUMN_NULL"),
    (SERIES, points(time=pa.array([1, 2, 2**62], pa.int64())), "POINT_TIME_INVALID"),
    (SERIES, points(host=["a", "b", ""]), "SERIES_NAME_INVALID"),
    (SERIES, points(host=["a", "b", "x" * 257]), "SERIES_NAME_INVALID"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "columns", "reason"), BAD_ROWS)
def test_rows_that_cannot_be_written_are_refused_before_anybody_is_asked(
    options: dict[str, str], columns: dict[str, Any], reason: str
) -> None:
    """The third row is the one that is wrong, and there are five before its batch."""
    good = pa.RecordBatch.from_pydict(columns).slice(0, 2)
    target = parse_write(options).target
    target.prepare(good, 0)
    with pytest.raises(OnelogError) as caught:
        target.prepare(pa.RecordBatch.from_pydict(columns), 5)
    assert caught.value.reason == reason
    if reason != "STREAM_NAME_INVALID" or "row" in caught.value.metadata:
        assert caught.value.metadata["row"] == "7"
    assert isinstance(caught.value, TooLarge) == reason.endswith("TOO_LARGE")


def test_a_value_above_what_a_namespace_takes_is_refused_with_its_row(
    endpoint: str, client: Client
) -> None:
    client.admin.create_namespace("small", admin_pb2.NamespaceLimits(value_size_max=100))
    names = [f"{number}{{one}}" for number in range(5)]
    values = ["x" * 100] * 3 + ["x" * 101, "x"]
    for extra in ({}, {"ttl_ns": [10**12] * 5}):
        rows = batch(key=names, value=values, **extra)
        with pytest.raises(TooLarge) as caught:
            write(endpoint, {"to": "keys", "namespace": "small"}, rows, f"small{len(extra)}")
        assert caught.value.reason == "VALUE_TOO_LARGE"
        assert caught.value.metadata["row"] == "3"
        assert client.namespace("small").kv.get_many(names) == [None] * 5


def test_a_field_of_another_type_is_refused_by_the_database(endpoint: str, client: Client) -> None:
    times = pa.array([1], pa.int64())
    options = {"to": "series", "measurement": "typed"}
    write(endpoint, options, batch(time=times, x=[1.5]), "typed 1")
    with pytest.raises(OnelogError) as caught:
        write(endpoint, options, batch(time=times, x=[True]), "typed 2")
    assert caught.value.reason == "FIELD_TYPE_MISMATCH"
