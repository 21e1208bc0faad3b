"""Consumer groups through a client that is made of the protos alone."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from onelog import errors
from onelog.node.edge.shards import Edge
from onelog.node.services.stream_groups import Fetches
from onelog.v1 import admin_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, until
from tests.node.services.streams import (
    S,
    append,
    in_session,
    new,
    on_a_node,
    open_session,
    read,
    values,
)

G: dict[str, Any] = {"stream": S, "group": "g"}


class Member:
    """A member of the group."""

    def __init__(self, node: Node, joined: pb.JoinGroupResponse) -> None:
        self.node = node
        self.member_id = joined.member_id
        self.generation = joined.generation
        self.partitions = list(joined.partitions)

    def asks(self, **fields: Any) -> pb.FetchRecordsRequest:
        return pb.FetchRecordsRequest(
            **G, member_id=self.member_id, generation=self.generation, **fields
        )

    async def fetch(self, **fields: Any) -> list[pb.Record]:
        return list((await self.node.stream.FetchRecords(self.asks(**fields))).records)

    async def ack(self, *records: pb.Record) -> int:
        request = pb.AckRecordsRequest(**G, member_id=self.member_id, places=places(*records))
        return int((await self.node.stream.AckRecords(request)).acked_count)

    async def nack(self, *records: pb.Record, **fields: Any) -> pb.NackRecordsResponse:
        request = pb.NackRecordsRequest(
            **G, member_id=self.member_id, places=places(*records), **fields
        )
        answer = await self.node.stream.NackRecords(request)
        assert isinstance(answer, pb.NackRecordsResponse)
        return answer

    async def claim(self, **fields: Any) -> list[pb.Record]:
        request = pb.ClaimRecordsRequest(
            **G, member_id=self.member_id, generation=self.generation, **fields
        )
        return list((await self.node.stream.ClaimRecords(request)).records)

    async def beat(self) -> None:
        request = pb.HeartbeatGroupRequest(**G, member_id=self.member_id)
        answer = await self.node.stream.HeartbeatGroup(request)
        self.generation, self.partitions = answer.generation, list(answer.partitions)


def places(*records: pb.Record) -> list[pb.Place]:
    return [pb.Place(partition=each.partition, offset=each.offset) for each in records]


async def create(node: Node, *, partitions: int = 1, **config: Any) -> None:
    await node.stream.CreateStream(pb.CreateStreamRequest(stream=S, partition_count=partitions))
    await node.stream.CreateStream(pb.CreateStreamRequest(stream="dead{t}"))
    request = pb.CreateGroupRequest(**G, from_offset=0, config=pb.GroupConfig(**config))
    await node.stream.CreateGroup(request)


async def join(node: Node, **fields: Any) -> Member:
    return Member(node, await node.stream.JoinGroup(pb.JoinGroupRequest(**G, **fields)))


async def shown(node: Node) -> pb.GetGroupResponse:
    answer = await node.stream.GetGroup(pb.GetGroupRequest(**G))
    assert isinstance(answer, pb.GetGroupResponse)
    return answer


def test_records_are_pending_until_acknowledged_and_the_cursor_is_a_key(tmp_path: Path) -> None:
    """E2"""

    async def test(node: Node) -> None:
        await create(node, partitions=2)
        offsets = await append(node, b"a", b"b", b"c", partition=0)
        other = await append(node, b"d", partition=1)
        member = await join(node)
        assert member.partitions == [0, 1]
        got = await member.fetch(limit=3)
        assert values(got) == [b"a", b"b", b"c"]
        assert {each.delivery_count for each in got} == {1}
        # The rest, of another partition; and nothing twice.
        (last,) = await member.fetch()
        assert (last.value, last.partition) == (b"d", 1)
        assert await member.fetch() == []
        group = await shown(node)
        assert [each.pending_count for each in group.partitions] == [3, 1]
        assert [each.pending_count for each in group.members] == [4]
        assert group.members[0].expires_ns
        # Acknowledged out of order, and as a list in any order.
        assert await member.ack(got[2], got[1]) == 2
        group = await shown(node)
        assert group.partitions[0].committed_offset == offsets[0]
        assert await member.ack(last, got[0]) == 2
        key = await node.kv.Get(kv.GetRequest(key=b"cg:s{t}:g"))
        assert key.item.value == b"[%d,%d]" % (offsets[2] + 1, other[0] + 1)
        group = await shown(node)
        assert [each.lag for each in group.partitions] == [0, 0]
        error = await refusal(member.ack(got[0]))
        assert error.reason == "RECORD_NOT_PENDING"
        await node.stream.LeaveGroup(pb.LeaveGroupRequest(**G, member_id=member.member_id))
        assert not (await shown(node)).members
        await node.stream.DeleteGroup(pb.DeleteGroupRequest(**G))
        error = await refusal(node.stream.GetGroup(pb.GetGroupRequest(**G)))
        assert (type(error), error.reason) == (errors.NotFound, "GROUP_UNKNOWN")

    on_a_node(tmp_path, test)


def test_a_record_that_is_given_back_comes_again_and_at_last_is_a_dead_letter(
    tmp_path: Path,
) -> None:
    """E2"""

    async def test(node: Node) -> None:
        await create(node, max_deliveries=3, dead_letter_stream="dead{t}")
        (offset,) = await append(node, b"poison", key=b"k")
        member = await join(node)
        (record,) = await member.fetch()
        assert (await member.nack(record, reason="no")).nacked_count == 1
        (again,) = await member.fetch(wait_ms=10_000)
        assert (again.offset, again.value, again.delivery_count) == (offset, b"poison", 2)
        # A delay holds it back, for whoever waits.
        given_back = await member.nack(again, delay_ms=150, reason="later")
        assert given_back.dead_count == 0
        assert await member.fetch() == []
        (third,) = await member.fetch(wait_ms=10_000)
        assert third.delivery_count == 3
        last = await member.nack(third, reason="never")
        assert (last.nacked_count, last.dead_count) == (1, 1)
        answer = await read(node, "dead{t}", wait_ms=10_000)
        (dead,) = answer.records
        headers = {each.name: each.value for each in dead.headers}
        assert (dead.value, dead.key) == (b"poison", b"k")
        assert headers["dlq.original_offset"] == b"%d" % offset
        assert headers["dlq.original_stream"] == S.encode()
        assert headers["dlq.failure_reason"] == b"never"
        assert headers["dlq.retry_count"] == b"3"
        assert await member.fetch() == []
        assert (await shown(node)).partitions[0].committed_offset == offset + 1

    on_a_node(tmp_path, test)


def test_what_a_member_does_not_finish_is_claimed_and_what_it_leaves_is_fetched(
    tmp_path: Path,
) -> None:
    """E2"""

    async def test(node: Node) -> None:
        await create(node, shared=True)
        await append(node, b"a", b"b")
        first, second = await join(node), await join(node)
        held = await first.fetch(limit=1)
        assert await second.claim(idle_ms=60_000) == []
        (taken,) = await second.claim(idle_ms=0)
        assert (taken.offset, taken.delivery_count) == (held[0].offset, 2)
        assert (await refusal(first.ack(*held))).reason == "RECORD_NOT_PENDING"
        (mine,) = await first.fetch()
        assert mine.value == b"b"
        # Who leaves, leaves its records to the others.
        waiting = asyncio.create_task(second.fetch(wait_ms=20_000))
        await node.stream.LeaveGroup(pb.LeaveGroupRequest(**G, member_id=first.member_id))
        (left,) = await waiting
        assert (left.value, left.delivery_count) == (b"b", 2)
        assert await second.ack(taken, left) == 2

    on_a_node(tmp_path, test)


def test_partitions_move_with_the_members_and_old_generations_are_fenced(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(node, partitions=4)
        first = await join(node)
        assert first.partitions == [0, 1, 2, 3]
        second = await join(node, session_ms=4_000)
        assert len(second.partitions) == 2
        for number in range(4):
            await append(node, b"%d" % number, partition=number)
        for call in (first.fetch(), first.claim(idle_ms=0)):
            stale = await refusal(call)
            assert (type(stale), stale.reason) == (errors.ConditionFailed, "GENERATION_STALE")
        commit = pb.CommitOffsetsRequest(
            **G, member_id=first.member_id, generation=first.generation, places=[pb.Place(offset=1)]
        )
        assert (await refusal(node.stream.CommitOffsets(commit))).reason == "GENERATION_STALE"
        await first.beat()
        assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
        # Several partitions in one fetch: each of them as far as the limit goes.
        got = await first.fetch()
        assert sorted(each.partition for each in got) == sorted(first.partitions)
        # The other one sends no heartbeat: its partitions, and its records, come here.
        assert len(await second.fetch(limit=1)) == 1

        async def alone() -> None:
            await first.beat()
            assert len(first.partitions) == 4

        await eventually(alone)
        rest = [*await first.fetch(wait_ms=5_000), *await first.fetch(wait_ms=5_000)]
        assert {each.value for each in (*got, *rest)} == {b"0", b"1", b"2", b"3"}
        error = await refusal(second.fetch())
        assert (type(error), error.reason) == (errors.NotFound, "MEMBER_UNKNOWN")

    on_a_node(tmp_path, test)


def test_a_group_goes_on_from_an_offset_or_a_time(tmp_path: Path) -> None:
    """E3"""

    async def test(node: Node) -> None:
        await create(node)
        offsets = await append(node, *(b"%d" % number for number in range(6)))
        records = (await read(node)).records
        member = await join(node)
        await member.ack(*await member.fetch())

        async def after(**target: Any) -> list[bytes]:
            await node.stream.SeekGroup(pb.SeekGroupRequest(**G, **target))
            await member.beat()
            return values(await member.fetch())

        assert await after(offset=offsets[4]) == [b"4", b"5"]
        assert await after(offset=0, partition=0) == [b"%d" % number for number in range(6)]
        middle = records[3].timestamp_ns
        expected = [each.value for each in records if each.timestamp_ns >= middle]
        assert await after(time_ns=middle) == expected
        assert await after(time_ns=records[-1].timestamp_ns + 10**12) == []
        # Groups that begin somewhere.
        for name, start, count in (
            ("new", {}, 0),
            ("first", {"from_offset": 0}, 6),
            ("fourth", {"from_offset": offsets[3]}, 3),
            ("time", {"from_ns": middle}, len(expected)),
        ):
            await node.stream.CreateGroup(pb.CreateGroupRequest(stream=S, group=name, **start))
            joined = await node.stream.JoinGroup(pb.JoinGroupRequest(stream=S, group=name))
            request = pb.FetchRecordsRequest(
                stream=S, group=name, member_id=joined.member_id, generation=joined.generation
            )
            assert len((await node.stream.FetchRecords(request)).records) == count, name

    on_a_node(tmp_path, test)


def test_what_a_session_compares_of_a_request_and_what_not(tmp_path: Path) -> None:
    """The list in docs/api.md."""

    async def test(node: Node) -> None:
        await create(node, partitions=2)
        session_id = await open_session(node)

        def appending(*written: bytes, sequence: int) -> pb.AppendRecordsRequest:
            options = in_session(session_id, sequence)
            return pb.AppendRecordsRequest(stream=S, records=new(*written), options=options)

        await node.stream.AppendRecords(appending(b"1", b"2", sequence=1))
        # Each record is refused or done by itself.
        mixed = await node.stream.AppendRecords(appending(b"x", b"3", b"4", sequence=2))
        reasons = [each.error.reason for each in mixed.results]
        assert reasons == ["SEQUENCE_REUSED", "", ""]
        written = [
            value for n in (0, 1) for value in values((await read(node, partition=n)).records)
        ]
        assert sorted(written) == [b"1", b"2", b"3", b"4"]
        member = await join(node)
        fetch = member.asks(limit=1, options=in_session(session_id, 5))
        (fetched,) = (await node.stream.FetchRecords(fetch)).records
        fetch.limit = 9
        assert list((await node.stream.FetchRecords(fetch)).records) == [fetched]
        claim = pb.ClaimRecordsRequest(
            **G, member_id=member.member_id, generation=member.generation, options=fetch.options
        )
        assert list((await node.stream.ClaimRecords(claim)).records) == [fetched]
        trim = pb.TrimRequest(stream=S, keep_count=1, options=in_session(session_id, 6))
        trim.past_groups = True
        assert not (await node.stream.Trim(trim)).header.duplicate
        trim.keep_count, trim.partition = 2, 1
        assert (await node.stream.Trim(trim)).header.duplicate
        seek = pb.SeekGroupRequest(**G, offset=0, options=in_session(session_id, 7))
        await node.stream.SeekGroup(seek)
        seek.offset = 1
        assert (await node.stream.SeekGroup(seek)).header.duplicate
        # What is gone.
        await node.stream.DeleteGroup(pb.DeleteGroupRequest(**G))
        for call in (node.stream.FetchRecords(fetch), node.stream.ClaimRecords(claim)):
            assert (await refusal(call)).reason == "GROUP_UNKNOWN"
        assert (await node.stream.SeekGroup(seek)).header.duplicate
        await node.stream.DeleteStream(pb.DeleteStreamRequest(stream=S))
        seek.time_ns = 1
        make = pb.CreateGroupRequest(**G, from_ns=1, options=in_session(session_id, 8))
        for call in (
            node.stream.FetchRecords(fetch),
            node.stream.ClaimRecords(claim),
            node.stream.Trim(trim),
            node.stream.SeekGroup(seek),
            node.stream.CreateGroup(make),
        ):
            assert (await refusal(call)).reason == "STREAM_UNKNOWN"
        await node.stream.CreateStream(pb.CreateStreamRequest(stream=S))
        assert (await refusal(node.stream.Trim(trim))).reason == "SEQUENCE_REUSED"

    on_a_node(tmp_path, test)


def test_a_time_that_is_repeated_is_the_same_request_although_the_stream_has_grown(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        await create(node, partitions=2)
        await append(node, b"0", partition=0)
        session_id = await open_session(node)
        soon = (await read(node)).records[0].timestamp_ns + 10**15
        make = pb.CreateGroupRequest(
            stream=S, group="new", from_ns=soon, options=in_session(session_id, 1)
        )
        seek = pb.SeekGroupRequest(**G, time_ns=soon, options=in_session(session_id, 2))
        calls = (b"1", node.stream.CreateGroup, make), (b"2", node.stream.SeekGroup, seek)
        for value, call, request in calls:
            first = await call(request)
            await append(node, value, partition=0)
            again = await call(request)
            assert (again.header.index, again.header.duplicate) == (first.header.index, True)
        # Each was done once: they begin where the stream ended then.
        for name, expected in (("new", [b"1", b"2"]), ("g", [b"2"])):
            joined = await node.stream.JoinGroup(pb.JoinGroupRequest(stream=S, group=name))
            fetch = pb.FetchRecordsRequest(
                stream=S, group=name, member_id=joined.member_id, generation=joined.generation
            )
            assert values((await node.stream.FetchRecords(fetch)).records) == expected
        # The settings of the group and the partition are compared.
        make.config.shared = True
        seek.partition = 1
        for another in (node.stream.CreateGroup(make), node.stream.SeekGroup(seek)):
            assert (await refusal(another)).reason == "SEQUENCE_REUSED"

    on_a_node(tmp_path, test)


def test_a_group_without_a_pending_list_reads_and_commits(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(node)
        offsets = await append(node, b"a", b"b")
        commit = pb.CommitOffsetsRequest(**G, places=[pb.Place(offset=offsets[0] + 1)])
        await node.stream.CommitOffsets(commit)
        partition = (await shown(node)).partitions[0]
        assert partition.committed_offset == partition.next_offset == offsets[0] + 1
        ahead = pb.CommitOffsetsRequest(**G, places=[pb.Place(offset=offsets[1] + 999)])
        error = await refusal(node.stream.CommitOffsets(ahead))
        assert (type(error), error.reason) == (errors.OutOfRange, "OFFSET_IN_FUTURE")
        await node.stream.CommitOffsets(commit)
        behind = pb.CommitOffsetsRequest(**G, places=[pb.Place(offset=1)])
        assert (await refusal(node.stream.CommitOffsets(behind))).reason == "CURSOR_BEHIND"

    on_a_node(tmp_path, test)


def test_a_member_whose_records_were_trimmed_is_told_what_it_lost(tmp_path: Path) -> None:
    """E6"""

    async def test(node: Node) -> None:
        await create(node)
        offsets = await append(node, b"a", b"b", b"c")
        trim = pb.TrimRequest(stream=S, below_offset=offsets[2], past_groups=True)
        await node.stream.Trim(trim)
        member = await join(node)
        session_id = await open_session(node)
        request = member.asks(options=in_session(session_id, 1))
        for _ in range(2):
            gap, record = (await node.stream.FetchRecords(request)).records
            assert (gap.gap.last_offset, gap.gap.reason) == (offsets[2] - 1, "TRIMMED")
            assert record.value == b"c"

    on_a_node(tmp_path, test)


def test_a_fetch_in_a_session_is_given_the_same_records_again(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(node, partitions=3)
        for number in range(3):
            await append(node, b"%d" % number, b"more", partition=number)
        member = await join(node)
        session_id = await open_session(node)
        request = member.asks(options=in_session(session_id, 1), limit=4)
        first = await node.stream.FetchRecords(request)
        assert len(first.records) == 4
        again = await node.stream.FetchRecords(request)
        assert again.header.duplicate
        assert list(again.records) == list(first.records)
        request.options.session.sequence = 2
        assert len((await node.stream.FetchRecords(request)).records) == 2
        assert len((await node.stream.FetchRecords(request)).records) == 2
        # What was given back is claimed by the fetch: that is exact as well.
        await member.nack(*first.records)
        request.options.session.sequence = 3
        third = await node.stream.FetchRecords(request)
        assert {each.delivery_count for each in third.records} == {2}
        assert list((await node.stream.FetchRecords(request)).records) == list(third.records)
        # Anything else is another request, and so is the fetch of another member.
        await node.kv.Put(kv.PutRequest(key=b"{t}", options=in_session(session_id, 4)))
        request.options.session.sequence = 4
        assert (await refusal(node.stream.FetchRecords(request))).reason == "SEQUENCE_REUSED"
        other = (await join(node)).asks(options=in_session(session_id, 3))
        assert (await refusal(node.stream.FetchRecords(other))).reason == "SEQUENCE_REUSED"

    on_a_node(tmp_path, test)


def test_a_repetition_is_answered_although_the_group_has_another_generation(
    tmp_path: Path,
) -> None:
    """Else its records would be pending with a member that never got them."""

    async def test(node: Node) -> None:
        await create(node)
        await append(node, b"1", b"2", b"3", b"4")
        member = await join(node)
        session_id = await open_session(node)
        fetch = member.asks(options=in_session(session_id, 1), limit=2)
        fetched = await node.stream.FetchRecords(fetch)
        assert values(fetched.records) == [b"1", b"2"]
        await member.nack(*fetched.records)
        claim = pb.ClaimRecordsRequest(
            **G,
            member_id=member.member_id,
            generation=member.generation,
            limit=2,
            options=in_session(session_id, 2),
        )
        claimed = await node.stream.ClaimRecords(claim)
        assert {each.delivery_count for each in claimed.records} == {2}
        await join(node)
        again = await node.stream.FetchRecords(fetch)
        assert (list(again.records), again.header.duplicate) == (list(fetched.records), True)
        taken = await node.stream.ClaimRecords(claim)
        assert (list(taken.records), taken.header.duplicate) == (list(claimed.records), True)
        # Also without the member; what is new is refused, in the session and outside it.
        await node.stream.LeaveGroup(pb.LeaveGroupRequest(**G, member_id=member.member_id))
        again = await node.stream.FetchRecords(fetch)
        assert list(again.records) == list(fetched.records)
        fetch.options.session.sequence = claim.options.session.sequence = 3
        for call in (node.stream.FetchRecords(fetch), node.stream.ClaimRecords(claim)):
            assert (await refusal(call)).reason == "MEMBER_UNKNOWN"

    on_a_node(tmp_path, test)


def test_two_hundred_members_wait_and_each_record_is_one_entry_for_one_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Fetches] = []
    make = Fetches.__init__

    def noted(self: Fetches, edge: Edge) -> None:
        make(self, edge)
        made.append(self)

    monkeypatch.setattr(Fetches, "__init__", noted)

    async def test(node: Node) -> None:
        await create(node, shared=True)
        members = [await join(node) for _ in range(20)]
        shard = node.context.drivers[0].shard
        edge = node.context.edge
        assert edge is not None
        before = shard.log.last_index
        assert await members[0].fetch() == []
        lines = made[0]._lines
        fetches: list[asyncio.Task[Any]] = []
        for number in range(200):
            # One after the other: calls that are made at once may arrive in any order.
            fetch = members[number % 20].fetch(wait_ms=50_000, limit=1)
            fetches.append(asyncio.create_task(fetch))
            await until(lambda: sum(line.count for line in lines.values()) == len(fetches))
        assert len(edge.waits(0)) == 1
        assert shard.log.last_index == before, "an empty poll has written something"
        # Nobody who does not want to wait waits behind those who do.
        assert await members[1].fetch() == []
        await append(node, b"one")
        await until(lambda: sum(each.done() for each in fetches) == 1)
        # The record, and its delivery to the one who came first.
        assert shard.log.last_index == before + 2
        assert fetches[0].done()
        await append(node, *(b"%d" % number for number in range(5)))
        await until(lambda: sum(each.done() for each in fetches) == 6)
        assert all(each.done() for each in fetches[:6])
        # Whoever hangs up leaves the line.
        for each in fetches[6:100]:
            each.cancel()
        await append(node, b"next")
        await until(lambda: fetches[100].done())
        assert values(fetches[100].result()) == [b"next"]
        # The end of the node is the end of all.
        node.server.stop()
        await until(lambda: all(each.done() for each in fetches))
        await asyncio.gather(*fetches, return_exceptions=True)
        assert len(edge.waits(0)) == 0

    on_a_node(tmp_path, test, shards=1)


def test_a_fetch_that_waits_keeps_its_member(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await create(node)
        member = await join(node, session_ms=9_000)
        begun_ns = (await shown(node)).members[0].expires_ns
        waiting = asyncio.create_task(member.fetch(wait_ms=50_000))

        async def renewed() -> None:
            assert (await shown(node)).members[0].expires_ns > begun_ns

        await eventually(renewed)
        await append(node, b"late")
        assert values(await waiting) == [b"late"]

    on_a_node(tmp_path, test)


def test_a_fetch_that_waits_follows_the_leader(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            (leader,) = [node for node in nodes if node.leads(0)]
            await create(leader)
            member = await join(leader)
            (follower, _) = [node for node in nodes if node is not leader]
            member.node = follower
            waiting = asyncio.create_task(member.fetch(wait_ms=30_000, limit=1))
            edge = leader.context.edge
            assert edge is not None
            await until(lambda: len(edge.waits(0)) == 1)
            move = admin_pb2.TransferLeadershipRequest(shard=0)
            await eventually(lambda: leader.admin.TransferLeadership(move))
            await until(lambda: len(edge.waits(0)) == 0)
            await eventually(lambda: append(follower, b"late"))

            async def fetched() -> list[pb.Record]:
                if waiting.done() and not waiting.exception() and waiting.result():
                    return waiting.result()
                assert waiting.done()
                return await member.fetch(wait_ms=1_000)

            assert values(await eventually(fetched)) == [b"late"]

    run(test())
