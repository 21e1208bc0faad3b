"""Options of a read: every wrong one is refused by a stable reason that names it."""

from pathlib import Path

import pytest

from onelog.errors import InvalidArgument, NotFound, OnelogError, OutOfRange
from onelog.spark.columns.selection import TIME_NS_MAX
from onelog.spark.columns.views import VIEWS
from onelog.spark.directory import DirectoryOrigin
from onelog.spark.options import LIST_ITEMS_MAX, ReadOptions, parse_time, split_list
from onelog.spark.origin import Cut, Range, ShardCut
from onelog.spark.table import find_ranges, load_table
from tests.spark.shard_dirs import Shard
from tests.ual.shards import drop_before

SECOND = 1_000_000_000


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({"view": "log", "path": "/data", **options}, VIEWS)


@pytest.mark.parametrize(
    ("reason", "options"),
    [
        ("OPTION_UNKNOWN", {"form_index": "1"}),
        ("VIEW_UNKNOWN", {"view": "logs"}),
        ("SOURCE_MISSING", {"path": ""}),
        ("OPTION_CONFLICT", {"endpoint": "h:1"}),
        ("OPTION_UNCONCERNED", {"bytes_per_second_max": "1"}),
        ("OPTION_UNCONCERNED", {"tls_name": "t"}),
        ("OPTION_UNCONCERNED", {"view": "kv_operations", "streams": "s"}),
        ("OPTION_UNCONCERNED", {"view": "kv_operations", "queues": "q"}),
        ("OPTION_UNCONCERNED", {"view": "kv_operations", "owners": "kv"}),
        ("OPTION_INVALID", {"from_index": "0"}),
        ("OPTION_INVALID", {"from_index": "-1"}),
        ("OPTION_INVALID", {"from_index": "x"}),
        ("OPTION_INVALID", {"from_index": "9" * 5_000}),
        ("OPTION_INVALID", {"from_index": "1=5,1=6"}),
        ("OPTION_INVALID", {"from_index": "1=5,2"}),
        ("OPTION_INVALID", {"to_index": "=5"}),
        ("OPTION_INVALID", {"to_index": "0=0"}),
        ("RANGE_BACKWARDS", {"from_index": "9", "to_index": "8"}),
        ("RANGE_BACKWARDS", {"from_index": "1=9", "to_index": "8"}),
        ("RANGE_BACKWARDS", {"from_index": "9", "to_index": "1=8"}),
        ("RANGE_BACKWARDS", {"from_time": "2", "to_time": "1"}),
        ("TIME_INVALID", {"from_time": "yesterday"}),
        ("TIME_INVALID", {"from_time": "-5"}),
        ("TIME_INVALID", {"to_time": "1969-12-31T23:59:59Z"}),
        ("TIME_INVALID", {"to_time": str(TIME_NS_MAX + 1)}),
        ("OPTION_INVALID", {"shards": "1,x"}),
        ("OPTION_INVALID", {"shards": "70000"}),
        ("OPTION_CONFLICT", {"shards": "1", "from_index": "2=5"}),
        ("OPTION_CONFLICT", {"since": "/receipt", "from_index": "5"}),
        ("OWNER_UNKNOWN", {"owners": "kv,keys"}),
        ("TYPE_UNKNOWN", {"types": "putt"}),
        ("TYPE_UNKNOWN", {"types": "kv.enqueue"}),
        ("TYPE_UNKNOWN", {"view": "kv_operations", "types": "enqueue"}),
        ("TYPE_UNKNOWN", {"types": "65535"}),
        ("COLUMN_UNKNOWN", {"columns": "index,payloads"}),
        ("OPTION_INVALID", {"namespaces": ""}),
        ("OPTION_INVALID", {"namespaces": "a,,b"}),
        ("OPTION_INVALID", {"namespaces": '["a", 1]'}),
        ("OPTION_INVALID", {"namespaces": '["a"'}),
        ("OPTION_INVALID", {"namespaces": "[]"}),
        ("OPTION_INVALID", {"namespaces": ",".join(map(str, range(LIST_ITEMS_MAX + 1)))}),
        ("OPTION_INVALID", {"key_prefix_hex": "0g"}),
        ("OPTION_CONFLICT", {"key_prefix_hex": "00", "key_prefix": "a"}),
    ],
)
def test_a_wrong_option_is_refused_by_name(reason: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        parse(**options)
    assert refused.value.reason == reason
    assert refused.value.metadata["option"] in str(refused.value)
    assert "allowed: " in str(refused.value)


def test_options_of_others_pass_where_somebody_checks_them() -> None:
    assert (
        ReadOptions.parse(
            {"VIEW": "log", "path": "/d", "max_rows": "5"}, VIEWS, others=("max_rows",)
        ).path
        == "/d"
    )


def test_lists_are_separated_by_commas_or_are_json() -> None:
    assert split_list("streams", " a, b ,a") == ("a", "b")
    assert split_list("streams", '["a,b", "c", " "]') == ("a,b", "c", " ")
    read = parse(streams='["x,y"]', queues="q1,q2", namespaces="n", measurements="m")
    assert read.streams == frozenset((b"x,y",))
    assert read.queues == ("q1", "q2")
    assert read.namespaces == frozenset((b"n",))
    assert read.measurements == frozenset((b"m",))


def test_times_are_iso_or_nanoseconds() -> None:
    assert parse_time("from_time", "12") == 12
    assert parse_time("from_time", "1970-01-01T00:00:01") == SECOND
    assert parse_time("from_time", "1970-01-01T00:00:01.000001Z") == SECOND + 1_000
    assert parse_time("from_time", "1970-01-01T01:00:00+01:00") == 0
    assert parse(from_time="0").from_time_ns == 0
    assert parse().to_time_ns == TIME_NS_MAX


def test_types_are_names_names_with_owner_or_numbers() -> None:
    assert parse(types="put").types == frozenset((0x0101,))
    assert parse(types="ack").types == frozenset((0x0203, 0x0410))
    assert parse(types="queue.ack, 257").types == frozenset((0x0203, 0x0101))
    assert parse(owners="kv,stream").owners == frozenset((1, 4))
    assert parse(key_prefix="ab").key_prefix == b"ab"
    assert parse(key_prefix_hex="00ff").key_prefix == b"\x00\xff"


NOWHERE = DirectoryOrigin("/nowhere")
CUT = Cut(
    "cluster", 3, (ShardCut(0, 1, 100, 50, 0), ShardCut(1, 40, 90, 60, 20), ShardCut(2, 1, 0, 0))
)


def test_ranges_are_what_was_asked_for_within_what_there_is() -> None:
    assert list(find_ranges(parse(), NOWHERE, CUT)) == [
        Range(0, 1, 100),
        Range(1, 40, 90),
        Range(2, 1, 0),
    ]
    read = parse(from_index="0=7,1=41", to_index="1=41")
    assert list(find_ranges(read, NOWHERE, CUT)) == [
        Range(0, 7, 100),
        Range(1, 41, 41),
        Range(2, 1, 0),
    ]


@pytest.mark.parametrize(
    ("kind", "reason", "said", "options"),
    [
        (OutOfRange, "INDEX_IN_FUTURE", "shard 0 has entries 1 to 100", {"to_index": "0=101"}),
        (OutOfRange, "INDEX_IN_FUTURE", "shard 0 has entries 1 to 100", {"from_index": "0=101"}),
        (OutOfRange, "INDEX_IN_FUTURE", "shard 2 has no entries", {"from_index": "2=1"}),
        (OutOfRange, "COMPACTED", "shard 1 has entries 40 to 90", {"from_index": "39"}),
        (OutOfRange, "COMPACTED", "begins at entry 40 with 20 ns", {"from_time": "19"}),
        (OutOfRange, "TIME_IN_FUTURE", "the last entry has 60 ns", {"from_time": "61"}),
        (NotFound, "SHARD_UNKNOWN", "there are shards 0, 1, 2", {"from_index": "3=1"}),
        (NotFound, "SHARD_UNKNOWN", "there are shards 0, 1, 2", {"to_index": "9=1"}),
    ],
)
def test_a_range_outside_of_the_log_is_refused_with_what_there_is(
    kind: type[OnelogError], reason: str, said: str, options: dict[str, str]
) -> None:
    with pytest.raises(kind) as refused:
        list(find_ranges(parse(**options), NOWHERE, CUT))
    assert refused.value.reason == reason
    assert said in str(refused.value)
    assert next(iter(options)) in str(refused.value)


def test_queues_of_a_directory_are_found_in_its_log(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.write_queues(("jobs", "other", "jobs2"))
    shard.live.snapshot()
    path = {"path": str(shard.path), "view": "log"}
    table = load_table(ReadOptions.parse({**path, "queues": "jobs"}, VIEWS))
    rows = [
        row
        for split in table.splits()
        for batch in table.batches(split, frozenset(("operation", "name_text")))
        for row in batch.to_pylist()
    ]
    assert rows == [
        {"operation": "queue_create", "name_text": "jobs"},
        {"operation": "enqueue", "name_text": "jobs"},
    ]
    with pytest.raises(NotFound, match=r"QUEUE_UNKNOWN.*'nothing'"):
        load_table(ReadOptions.parse({**path, "queues": "nothing"}, VIEWS))


def test_a_queue_whose_creation_is_gone_is_found_in_the_snapshot(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.write_queues(("jobs", "jobs2"))
    shard.write(60)
    shard.seal()
    shard.live.snapshot()
    drop_before(shard.live.log, shard.sealed_index)
    jobs = shard.live.state.queue.list_queues("default")
    assert jobs == [("jobs", 1), ("jobs2", 3)]
    path = {"path": str(shard.path), "view": "log", "queues": "jobs,jobs2"}
    table = load_table(ReadOptions.parse(path, VIEWS))
    assert table.cut.shards[0].first_index > 3
    assert table.selection(0).queues == frozenset((1, 3))
    with pytest.raises(NotFound, match=r"QUEUE_UNKNOWN.*'job'"):
        load_table(ReadOptions.parse({**path, "queues": "job"}, VIEWS))
