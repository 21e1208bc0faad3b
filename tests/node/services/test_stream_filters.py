"""Filters of readers, tails and consumer groups, through a client made of the protos alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog import errors
from onelog.v1 import common_pb2
from onelog.v1 import queue_pb2 as q
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, refusal, run, single, until
from tests.node.services.streams import (
    S,
    append,
    in_session,
    on_a_node,
    open_session,
    read,
    values,
)
from tests.node.services.test_stream_groups import G, create, join, places, shown

READ = common_pb2.ReadOptions(with_cost=True)
WRITE = common_pb2.WriteOptions(with_cost=True)


async def append_all(node: Node) -> None:
    """Append records 0 to 11 with keys, tags and headers of several kinds."""
    records = []
    for number in range(12):
        record = pb.NewRecord(value=b"%d" % number, key=b"k%d:%d" % (number % 3, number))
        record.tag = ("red", "blue")[number % 2]
        if number % 4 == 0:
            record.headers.add(name="size", value=b"%d" % number)
        records.append(record)
    records[11].ClearField("key")
    answer = await node.stream.AppendRecords(pb.AppendRecordsRequest(stream=S, records=records))
    assert len(answer.results) == 12


CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({"key_prefix": b"k1:"}, [1, 4, 7, 10]),
    ({"key_prefix": b"k"}, [*range(11)]),
    ({"key_prefix": b"k2:", "tags": ["red"]}, [2, 8]),
    ({"header_names": ["size"]}, [0, 4, 8]),
    ({"header_names": ["size"], "key_prefix": b"k2"}, [8]),
    ({"headers": [q.Header(name="size", value=b"4")], "header_names": ["size"]}, [4]),
    ({"header_names": ["weight"]}, []),
    ({"keys": [b"k0:0", b"k1:7"]}, [0, 7]),
]


@pytest.mark.parametrize(("conditions", "expected"), CASES)
def test_readers_tails_and_groups_get_the_same_records_of_a_filter(
    tmp_path: Path, conditions: dict[str, Any], expected: list[int]
) -> None:
    """E7"""

    async def test(node: Node) -> None:
        wanted = pb.RecordFilter(**conditions)
        await create(node, filter=wanted)
        member = await join(node)
        await append_all(node)
        found = [int(each.value) for each in (await read(node, filter=wanted)).records]
        assert found == expected
        fetched = await member.fetch()
        assert [int(each.value) for each in fetched] == expected
        tail = node.stream.Tail(
            pb.TailRequest(streams=[pb.TailStart(stream=S, from_offset=0)], filter=wanted)
        )
        tailed: list[int] = []
        async with asyncio.timeout(20):
            while len(tailed) < len(expected):
                tailed += [int(each.value) for each in (await tail.read()).records]
        tail.cancel()
        assert tailed == expected

    on_a_node(tmp_path, test)


LOOKS: tuple[dict[str, Any], ...] = ({"wait_ms": 1}, {}, {"limit": 1})


def test_a_filtered_read_that_finds_nothing_says_what_it_cost(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        nothing = pb.RecordFilter(tags=["green"])
        await create(node, filter=nothing)
        member = await join(node)
        for bounds in LOOKS:
            page = await read(node, filter=nothing, options=READ, **bounds)
            assert (page.header.cost.scanned, len(page.records)) == (0, 0)
        await append_all(node)
        for bounds in LOOKS:
            page = await read(node, filter=nothing, options=READ, **bounds)
            assert (page.header.cost.scanned, len(page.records)) == (12, 0)
        fetched = await node.stream.FetchRecords(member.asks(options=WRITE))
        assert (fetched.header.cost.scanned, len(fetched.records)) == (12, 0)
        fetched = await node.stream.FetchRecords(member.asks(options=WRITE))
        assert (fetched.header.cost.scanned, fetched.header.HasField("cost")) == (0, True)
        claims = pb.ClaimRecordsRequest(
            **G, member_id=member.member_id, generation=member.generation, options=WRITE
        )
        assert not (await node.stream.ClaimRecords(claims)).records

    on_a_node(tmp_path, test)


def test_what_a_group_does_not_want_counts_as_done_and_costs_one_entry(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await create(node, filter=pb.RecordFilter(tags=["red"]))
            member = await join(node)
            edge = node.context.edge
            assert edge is not None
            log = edge.replica(0).shard.log
            waits = edge.waits(0)
            polling = asyncio.create_task(member.fetch(wait_ms=30_000))
            await until(lambda: len(waits) == 1)
            before = log.last_index
            for _ in range(20):
                await append(node, b"no", tag="blue")
            (offset,) = await append(node, b"yes", tag="red")
            (record,) = await polling
            assert (record.value, record.offset) == (b"yes", offset)
            assert log.last_index == before + 20 + 1 + 1  # records, and one delivery
            assert await member.ack(record) == 1
            group = await shown(node)
            assert [each.lag for each in group.partitions] == [0]
            # Nothing that it wants: the cursor moves on all the same, once.
            await append(node, b"no", b"no", tag="blue")
            before = log.last_index
            assert await member.fetch() == []
            assert log.last_index == before + 1
            assert [each.lag for each in (await shown(node)).partitions] == [0]
            assert await member.fetch() == []
            assert log.last_index == before + 1
        # The filter is part of the state, and of the log.
        async with single(tmp_path, shards=1) as node:
            group = await shown(node)
            assert list(group.config.filter.tags) == ["red"]

    run(test())


def test_a_new_filter_concerns_what_is_delivered_from_then_on(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(
            node, shared=True, filter=pb.RecordFilter(key_prefix=b"k1", header_names=["h"])
        )
        config = (await shown(node)).config
        assert (config.filter.key_prefix, list(config.filter.header_names)) == (b"k1", ["h"])
        config.filter.CopyFrom(pb.RecordFilter(tags=["blue"]))
        await node.stream.ConfigureGroup(pb.ConfigureGroupRequest(**G, config=config))
        member = await join(node)
        await append_all(node)
        first = await member.fetch(limit=2)
        assert values(first) == [b"1", b"3"]
        config.ClearField("filter")
        await node.stream.ConfigureGroup(pb.ConfigureGroupRequest(**G, config=config))
        assert not (await shown(node)).config.HasField("filter")
        assert values(await member.fetch(limit=3)) == [b"4", b"5", b"6"]
        # A seek forgets what was passed over.
        await node.stream.SeekGroup(pb.SeekGroupRequest(**G, offset=0))
        assert values(await member.fetch(limit=2)) == [b"0", b"1"]

    on_a_node(tmp_path, test)


def test_a_fetch_in_a_session_passes_over_records_and_is_exact(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(node, partitions=2, filter=pb.RecordFilter(tags=["red"]))
        member = await join(node)
        session = await open_session(node)
        await append(node, b"no", tag="blue", partition=0)
        assert await member.fetch(options=in_session(session, 1)) == []
        await append(node, b"yes", tag="red", partition=1)
        first = await member.fetch(options=in_session(session, 1))
        assert values(first) == [b"yes"]
        assert await member.fetch(options=in_session(session, 1)) == first
        assert await member.fetch(options=in_session(session, 2)) == []
        request = pb.AckRecordsRequest(**G, member_id=member.member_id, places=places(*first))
        await node.stream.AckRecords(request)
        assert [each.lag for each in (await shown(node)).partitions] == [0, 0]

    on_a_node(tmp_path, test)


@pytest.mark.parametrize(
    ("conditions", "kind", "reason"),
    [
        ({"key_prefix": bytes(4_097)}, errors.InvalidArgument, "KEY_SIZE_INVALID"),
        ({"header_names": ["h"] * 1_001}, errors.InvalidArgument, "LIMIT_INVALID"),
        ({"keys": [b""]}, errors.InvalidArgument, "KEY_SIZE_INVALID"),
        ({"tags": ["t" * 256]}, errors.InvalidArgument, "TAG_INVALID"),
        ({"header_names": [""]}, errors.InvalidArgument, "HEADER_INVALID"),
        ({"header_names": ["h" * 256]}, errors.InvalidArgument, "HEADER_INVALID"),
        (
            {"keys": [b"%04d" % number + bytes(200) for number in range(100)]},
            errors.TooLarge,
            "FILTER_TOO_LARGE",
        ),
    ],
)
def test_a_filter_that_a_group_cannot_have_is_refused(
    tmp_path: Path, conditions: dict[str, Any], kind: type[Exception], reason: str
) -> None:
    async def test(node: Node) -> None:
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        config = pb.GroupConfig(filter=pb.RecordFilter(**conditions))
        request = pb.CreateGroupRequest(**G, config=config)
        error = await refusal(node.stream.CreateGroup(request))
        assert (type(error), error.reason) == (kind, reason)
        error = await refusal(node.stream.GetGroup(pb.GetGroupRequest(**G)))
        assert error.reason == "GROUP_UNKNOWN"

    on_a_node(tmp_path, test)
