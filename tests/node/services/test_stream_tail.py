"""Tails: each record once and in order, live, behind, resumed, over many streams and nodes."""

import asyncio
import random
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import errors
from onelog.node.config.schema import LimitSettings
from onelog.node.services import stream_tail
from onelog.node.watch import feeds
from onelog.projections.stream import reads as pages
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, until
from tests.node.services.streams import S, append, new, on_a_node, values
from tests.node.services.test_stream_groups import create, join


class Tail:
    """A tail and what it has said."""

    def __init__(self, node: Node, *starts: pb.TailStart, **fields: Any) -> None:
        self.call = node.stream.Tail(pb.TailRequest(streams=starts, **fields))
        self.records: list[pb.Record] = []
        self.cursor = common_pb2.Cursor()

    async def read(self) -> int:
        message = await self.call.read()
        assert message is not grpc.aio.EOF
        self.records += message.records
        self.cursor = message.cursor
        return len(message.records)

    async def collect(self, number: int) -> list[bytes]:
        async with asyncio.timeout(20):
            while len(self.records) < number:
                await self.read()
        return values(self.records)

    async def begin(self) -> "Tail":
        await self.read()
        return self


def at(stream: str = S, **fields: Any) -> pb.TailStart:
    return pb.TailStart(stream=stream, **fields)


async def create_streams(node: Node, *names: str, partitions: int = 1) -> None:
    for name in names:
        request = pb.CreateStreamRequest(stream=name, partition_count=partitions)
        await eventually(partial(node.stream.CreateStream, request))


def test_a_tail_begins_anywhere_and_goes_on_with_what_is_new(tmp_path: Path) -> None:
    """E3"""

    async def test(node: Node) -> None:
        await create_streams(node, S, partitions=2)
        offsets = await append(node, b"0", b"1", b"2")
        record = pb.NewRecord(value=b"3", key=b"k", tag="t", partition=1)
        record.headers.add(name="h", value=b"v")
        await node.stream.AppendRecords(pb.AppendRecordsRequest(stream=S, records=[record]))
        tails = {
            "new": await Tail(node, at()).begin(),
            "first": await Tail(node, at(from_offset=0)).begin(),
            "offset": await Tail(node, at(from_offset=offsets[2])).begin(),
            "partition": await Tail(node, at(from_offset=0, partition=1)).begin(),
        }
        await tails["first"].collect(4)
        full = tails["first"].records[3]
        assert (full.key, full.tag, full.partition, full.stream) == (b"k", "t", 1, S)
        assert [(each.name, each.value) for each in full.headers] == [("h", b"v")]
        assert full.timestamp_ns
        tails["time"] = await Tail(node, at(from_ns=full.timestamp_ns)).begin()
        future = await Tail(node, at(from_ns=full.timestamp_ns + 10**15)).begin()
        await append(node, b"4", partition=0)
        (last,) = await append(node, b"5", partition=1)
        everything = [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert await tails["new"].collect(2) == everything[4:]
        assert await tails["first"].collect(6) == everything
        assert await tails["offset"].collect(4) == everything[2:]
        assert await tails["time"].collect(3) == everything[3:]
        in_second = [b"%d" % n for n in range(3) if offsets[n] % 2 == 1] + [b"3", b"5"]
        assert await tails["partition"].collect(len(in_second)) == in_second
        assert [each.offset for each in tails["first"].records][-1] == last
        assert await future.collect(2) == [b"4", b"5"]

    on_a_node(tmp_path, test)


def test_a_tail_filters_live_and_behind_alike(tmp_path: Path) -> None:
    """E7"""

    async def test(node: Node) -> None:
        await create_streams(node, S)
        wanted = pb.RecordFilter(tags=["red"], keys=[b"a", b"b"])
        live = await Tail(node, at(), filter=wanted).begin()
        expected = []
        for number in range(30):
            tag, key = ("red", "blue")[number % 2], b"abc"[number % 3 : number % 3 + 1]
            await append(node, b"%d" % number, tag=tag, key=key)
            if tag == "red" and key in (b"a", b"b"):
                expected.append(b"%d" % number)
        assert await live.collect(len(expected)) == expected
        behind = Tail(node, at(from_offset=0), filter=wanted)
        assert await behind.collect(len(expected)) == expected

    on_a_node(tmp_path, test)


def test_one_tail_over_streams_of_several_shards_resumes_from_its_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11"""
    monkeypatch.setattr(stream_tail, "PROGRESS_DEFAULT_MS", 20)

    async def test(node: Node) -> None:
        names = [f"stream {number}" for number in range(6)]
        await create_streams(node, *names, partitions=2)
        edge = node.context.edge
        assert edge is not None
        assert {edge.find_shard(name.encode()) for name in names} == {0, 1}
        cursor = (await Tail(node, *map(at, names)).begin()).cursor
        chance = random.Random(7)
        written: dict[str, list[bytes]] = {name: [] for name in names}
        seen: dict[str, list[bytes]] = {name: [] for name in names}
        for number in range(40):
            for name in names:
                await append(node, b"%d" % number, stream=name)
                written[name].append(b"%d" % number)
            if chance.random() < 0.3:
                tail = await Tail(node, *map(at, names), cursor=cursor).begin()
                for _ in range(chance.randrange(3)):
                    await tail.read()
                cursor = tail.cursor
                tail.call.cancel()
                for record in tail.records:
                    seen[record.stream].append(record.value)
        tail = Tail(node, *map(at, names), cursor=cursor)
        await tail.collect(240 - sum(map(len, seen.values())))
        for record in tail.records:
            seen[record.stream].append(record.value)
        assert seen == written

    on_a_node(tmp_path, test)


def test_streams_of_one_tail_may_begin_at_different_places_also_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E11"""
    monkeypatch.setattr(stream_tail, "PAGE_EVENTS_MAX", 3)
    monkeypatch.setattr(stream_tail, "PROGRESS_DEFAULT_MS", 20)

    async def test(node: Node) -> None:
        names = ("old{t}", "new{t}", "some{t}")
        await create_streams(node, *names)
        offsets: dict[str, list[int]] = {name: [] for name in names}
        for number in range(8):
            for name in names:
                offsets[name] += await append(node, b"%d" % number, stream=name)
        starts = (
            at("old{t}", from_offset=0),
            at("new{t}"),
            at("some{t}", from_offset=offsets["some{t}"][5]),
        )
        tail = await Tail(node, *starts).begin()
        got: list[pb.Record] = []
        await append(node, b"8", stream="new{t}")
        for _ in range(6):
            # Resumed after each page: what is new stays what was new then.
            await tail.read()
            got += tail.records
            tail.call.cancel()
            tail = await Tail(node, *starts, cursor=tail.cursor).begin()
        await tail.collect(12 - len(got))
        got += tail.records
        by_stream = {name: [each.value for each in got if each.stream == name] for name in names}
        assert by_stream == {
            "old{t}": [b"%d" % number for number in range(8)],
            "new{t}": [b"8"],
            "some{t}": [b"5", b"6", b"7"],
        }

    on_a_node(tmp_path, test)


def test_a_tail_that_was_overtaken_by_a_trim_is_told_what_it_lost(tmp_path: Path) -> None:
    """E6"""

    async def test(node: Node) -> None:
        await create_streams(node, S)
        offsets = await append(node, *(b"%d" % number for number in range(10)))
        fresh = await Tail(node, at(from_offset=0)).begin()
        cursor = common_pb2.Cursor(positions=[common_pb2.Position(shard=0, index=offsets[1])])
        await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=offsets[4]))
        resumed = Tail(node, at(from_offset=0), cursor=cursor)
        await resumed.collect(7)
        (gap, *records) = resumed.records
        assert gap.gap == pb.Gap(
            first_offset=offsets[1] + 1, last_offset=offsets[4] - 1, reason="TRIMMED"
        )
        assert (gap.stream, gap.partition) == (S, 0)
        assert values(records) == [b"%d" % number for number in range(4, 10)]
        # Who begins with the first that is kept has lost nothing.
        begun = Tail(node, at(from_offset=0))
        assert await begun.collect(6) == values(records)
        fresh.call.cancel()

    on_a_node(tmp_path, test, shards=1)


def test_what_is_trimmed_while_it_is_being_read_is_a_gap_and_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E6"""
    run_read = pages.PageRead.run
    is_reading, may_go_on = threading.Event(), threading.Event()

    def slowly(self: pages.PageRead, *arguments: Any) -> pages.Page:
        is_reading.set()
        assert may_go_on.wait(20)
        return run_read(self, *arguments)

    async def test(node: Node) -> None:
        await create_streams(node, S)
        offsets = await append(node, b"0", b"1", b"2")
        monkeypatch.setattr(pages.PageRead, "run", slowly)
        request = pb.ReadRecordsRequest(stream=S, from_offset=offsets[0])
        page = asyncio.ensure_future(node.stream.ReadRecords(request))
        await until(is_reading.is_set)
        await node.stream.Trim(pb.TrimRequest(stream=S, below_offset=offsets[2]))
        may_go_on.set()
        gap, record = (await page).records
        assert (gap.gap.first_offset, gap.gap.last_offset) == (offsets[0], offsets[2] - 1)
        assert record.value == b"2"

    on_a_node(tmp_path, test)


def test_a_slow_tail_reads_the_log_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BUFFER_EVENTS_MAX", 8)
    monkeypatch.setattr(feeds, "PAGE_EVENTS_MAX", 5)
    monkeypatch.setattr(stream_tail, "PAGE_EVENTS_MAX", 5)
    reads = 0
    read_on = stream_tail.RecordFeed.read_on

    async def counting(self: stream_tail.RecordFeed, page: feeds.Page) -> None:
        nonlocal reads
        reads += 1
        await read_on(self, page)

    monkeypatch.setattr(stream_tail.RecordFeed, "read_on", counting)

    async def test(node: Node) -> None:
        await create_streams(node, S, partitions=3)
        tail = await Tail(node, at()).begin()
        # A tail that keeps up reads nothing from the log.
        for number in range(3):
            await append(node, b"%d" % number)
            await tail.collect(number + 1)
        assert reads == 0
        for number in range(20):
            await append(node, *(b"%d" % (3 + 50 * number + each) for each in range(50)))
            await node.kv.Put(kv.PutRequest(key=b"{t}between", value=b""))
            if number % 5 == 0:
                await tail.collect(10 * number)
        assert await tail.collect(1003) == [b"%d" % number for number in range(1003)]
        offsets = [each.offset for each in tail.records]
        assert offsets == sorted(set(offsets))

    on_a_node(tmp_path, test, shards=1)
    assert reads > 3


def test_a_dead_letter_is_a_record_of_the_tail_with_the_value_of_its_original(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await create(node, max_deliveries=1, dead_letter_stream="dead{t}")
        tail = await Tail(node, at("dead{t}")).begin()
        await append(node, b"plain", stream="dead{t}")
        await append(node, b"poison")
        member = await join(node)
        await member.nack(*await member.fetch(), reason="why")
        await tail.collect(2)
        await append(node, b"after", stream="dead{t}")
        assert await tail.collect(3) == [b"plain", b"poison", b"after"]
        headers = {each.name: each.value for each in tail.records[1].headers}
        assert headers["dlq.failure_reason"] == b"why"

    on_a_node(tmp_path, test)


def test_a_tail_ends_with_its_stream(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_streams(node, S)
        tail = await Tail(node, at()).begin()
        await append(node, b"last")
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        await tail.collect(1)
        error = await refusal(tail.read())
        assert (type(error), error.reason) == (errors.NotFound, "STREAM_UNKNOWN")
        assert values(tail.records) == [b"last"]

    on_a_node(tmp_path, test)


def test_a_thousand_tails_are_told_and_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_streams(node, S)
        tails = [Tail(node, at()) for _ in range(1000)]
        for tail in tails:
            await tail.begin()
        shard = node.context.drivers[0].shard
        assert len(shard.listeners) == 1
        await append(node, b"1", b"2")
        for tail in tails:
            assert await tail.collect(2) == [b"1", b"2"]
        for tail in tails:
            tail.call.cancel()
        await until(lambda: not shard.listeners)
        edge = node.context.edge
        assert edge is not None
        assert not edge.sources[0]._feeds
        assert len(edge.waits(0)) == 0

    limits = LimitSettings(streams_max=2048)
    on_a_node(tmp_path, test, shards=1, limits=limits)


def test_a_tail_whose_client_never_reads_is_dropped_and_others_go_on(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create_streams(node, S)
        calls = node.context.edge
        assert calls is not None
        calls.calls.stall_s = 0.3
        stalled = node.stream.Tail(pb.TailRequest(streams=[at()]))
        good = await Tail(node, at()).begin()
        source = calls.sources[0]
        await until(lambda: len(source._feeds) == 2)
        sent = 0
        while len(source._feeds) == 2:
            await append(node, *(bytes(100_000) for _ in range(10)))
            sent += 10
            await good.collect(sent)
        # What waited for it was bounded, and it is told why it was dropped.
        feed_bytes = sum(feed._size for feed in source._feeds)
        assert feed_bytes <= 2 * feeds.BUFFER_BYTES_MAX

        async def read_on() -> None:
            while await stalled.read() is not grpc.aio.EOF:
                pass

        error = await refusal(read_on())
        assert (type(error), error.reason) == (errors.ResourceExhausted, "SLOW_READER")

    on_a_node(tmp_path, test, shards=1)


class Chaos:
    """Writers and tails on three nodes whose leaders change; ``chance`` decides."""

    NAMES = tuple(f"chaos-{number}" for number in range(4))

    def __init__(self, nodes: list[Node], seed: int) -> None:
        self.nodes = nodes
        self.chance = random.Random(seed)
        self.is_done = False
        self.written: dict[str, list[bytes]] = {name: [] for name in self.NAMES}

    async def write(self, count: int) -> None:
        sessions: dict[int, list[int]] = {}
        edge = self.nodes[0].context.edge
        assert edge is not None
        for shard in range(2):
            request = pipeline.OpenSessionRequest(shard=shard)
            opened = await eventually(partial(self.nodes[0].pipeline.OpenSession, request))
            sessions[shard] = [opened.session_id, 1]
        for number in range(count):
            node, name = self.chance.choice(self.nodes), self.chance.choice(self.NAMES)
            batch = [b"%d.%d" % (number, each) for each in range(3)]
            session = sessions[edge.find_shard(name.encode())]
            options = common_pb2.WriteOptions()
            options.session.session_id, options.session.sequence = session
            options.session.first_unacknowledged = session[1]
            session[1] += len(batch)
            request = pb.AppendRecordsRequest(stream=name, records=new(*batch), options=options)
            # Sent until it is answered: in a session that is exact.
            answer = await eventually(partial(node.stream.AppendRecords, request, timeout=1))
            assert not any(each.HasField("error") for each in answer.results)
            self.written[name] += batch
            if number % 25 == 10:
                move = admin_pb2.TransferLeadershipRequest(shard=number % 2)
                await eventually(partial(node.admin.TransferLeadership, move, timeout=2))
        self.is_done = True

    async def follow(self, cursor: common_pb2.Cursor) -> list[pb.Record]:
        """Tail, now on this node and now on that, until everything was told."""
        found: list[pb.Record] = []
        starts = [at(name) for name in self.NAMES]
        while not self.is_done or len(found) < sum(map(len, self.written.values())):
            node = self.chance.choice(self.nodes)
            tail = await Tail(node, *starts, cursor=cursor).begin()
            for _ in range(self.chance.randrange(1, 8)):
                try:
                    async with asyncio.timeout(0.3):
                        await tail.read()
                except TimeoutError:
                    break
            found += tail.records
            cursor = tail.cursor
            tail.call.cancel()
        return found


def test_tails_that_move_between_nodes_see_each_record_once_while_leaders_change(
    tmp_path: Path,
) -> None:
    """E11. Half of it is chance: the seed is printed."""
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")

    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            chaos = Chaos(nodes, seed)
            await create_streams(nodes[0], *Chaos.NAMES, partitions=2)
            starts = [at(name) for name in Chaos.NAMES]
            cursor = (await Tail(nodes[0], *starts).begin()).cursor
            writing = asyncio.create_task(chaos.write(100))
            results = await asyncio.gather(*(chaos.follow(cursor) for _ in range(3)))
            await writing
            for found in results:
                by_stream = {
                    name: [each.value for each in found if each.stream == name]
                    for name in Chaos.NAMES
                }
                assert by_stream == chaos.written

    run(test())
