"""The Admin service of real nodes."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import grpc.aio  # type: ignore[import-untyped]

from onelog import errors
from onelog.cluster.raft.member import LEADER
from onelog.node.config.schema import LimitSettings
from onelog.node.services.admin import Members
from onelog.ual.log import Log
from onelog.v1 import admin_pb2 as admin
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import log_pb2
from tests.node.services.nodes import WAIT_S, cluster, eventually, refusal, run, single, until


def has_applied(log: Log, index: int) -> bool:
    return log.applied_index >= index


def test_status_and_topology_say_how_a_node_is_and_who_serves_what(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            put = await nodes[0].kv.Put(kv.PutRequest(key=b"a", value=b"1"))
            shard = put.header.shard
            ids = {str(node.context.node_id): node for node in nodes}
            for node in nodes:
                log = node.context.drivers[shard].shard.log
                await until(partial(has_applied, log, put.header.index))
                status = await node.admin.GetStatus(admin.GetStatusRequest())
                assert ids[status.node_id] is node
                assert status.node_name == node.context.node_name
                assert status.version
                assert len(status.peers) == 2
                assert all(peer.connected for peer in status.peers)
                assert not status.alarms
                assert [each.shard for each in status.shards] == [0, 1]
                mine = status.shards[shard]
                is_leader = node.leads(shard)
                assert mine.role == (admin.ROLE_LEADER if is_leader else admin.ROLE_FOLLOWER)
                assert len(mine.lags) == (2 if is_leader else 0)
                assert mine.counts["keys"] == 1
                assert mine.memory["kv.records"] > 0
                assert mine.applied_index >= put.header.index
                assert mine.log_time_ns
                topology = await node.admin.GetTopology(admin.GetTopologyRequest())
                assert topology.shard_count == 2
                assert topology.partition_count == 16
                assert {each.node_id for each in topology.nodes} == set(ids)
                for each in topology.shards:
                    assert ids[each.leader_id].endpoint == each.leader_endpoint
                    assert set(each.endpoints) == {other.endpoint for other in nodes}
                members = await node.admin.ListMembers(admin.ListMembersRequest())
                assert [each.shard for each in members.shards] == [0, 1]
                for each in members.shards:
                    assert {member.node_id for member in each.members} == set(ids)
                    assert all(member.peer_address for member in each.members)
            hashes = [
                await node.admin.GetStateHash(admin.GetStateHashRequest(shard=shard))
                for node in nodes
            ]
            by_index = {(each.index, each.state_hash) for each in hashes}
            assert len(by_index) == len({each.index for each in hashes})
            assert set(hashes[0].by_owner) >= {0, 1}

    run(test())


def test_an_alarm_says_since_when_until_it_is_gone(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            clock = node.context.clock

            async def alarms() -> list[tuple[str, int, str, int]]:
                status = await node.admin.GetStatus(admin.GetStatusRequest())
                return [
                    (each.reason, each.shard, each.message, each.since_ns) for each in status.alarms
                ]

            report = node.context.snapshots.report(1)
            report.damaged = "snapshot 7"
            before_ns = clock.wall_ns()
            [(reason, shard, _, since_ns)] = await alarms()
            assert (reason, shard) == ("SNAPSHOT_DAMAGED", 1)
            assert before_ns <= since_ns <= clock.wall_ns()
            # Other words, and another alarm beside it, do not make it younger.
            report.damaged = "snapshots 7 and 8"
            node.context.snapshots.report(0).mismatch = "differs"
            (_, _, _, other_ns), again = await alarms()
            assert again == ("SNAPSHOT_DAMAGED", 1, "snapshots 7 and 8", since_ns)
            assert other_ns > since_ns
            report.damaged = ""
            assert len(await alarms()) == 1
            report.damaged = "snapshot 9"
            _, (_, _, _, renewed_ns) = await alarms()
            assert renewed_ns > other_ns

    run(test())


def test_a_leadership_is_handed_to_whom_one_says_through_any_node(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            leader = next(node for node in nodes if node.leads(1))
            target = next(node for node in nodes if node is not leader)
            through = next(node for node in nodes if node not in (leader, target))
            target_id = str(target.context.node_id)
            request = admin.TransferLeadershipRequest(shard=1, node_id=target_id)
            answer = await eventually(lambda: through.admin.TransferLeadership(request, timeout=5))
            assert answer.leader_id == target_id
            await until(lambda: target.leads(1))
            again = await target.admin.TransferLeadership(request)
            assert again.leader_id == target_id
            nobody = admin.TransferLeadershipRequest(shard=1, node_id=str(uuid4()))
            # No retry could succeed, so it is not UNAVAILABLE.
            error = await refusal(target.admin.TransferLeadership(nobody))
            assert (type(error), error.reason) == (errors.FailedPrecondition, "TRANSFER_FAILED")
            learner = str(uuid4())
            add = admin.AddMemberRequest(
                node_id=learner, node_name="n4", peer_address="127.0.0.1:1"
            )
            await eventually(lambda: target.admin.AddMember(add, timeout=5))
            request = admin.TransferLeadershipRequest(shard=1, node_id=learner)
            error = await refusal(target.admin.TransferLeadership(request))
            assert (type(error), error.reason) == (errors.FailedPrecondition, "TRANSFER_FAILED")

    run(test())


def test_members_are_added_and_removed_in_every_shard_and_asking_again_is_harmless(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            newcomer = str(uuid4())
            add = admin.AddMemberRequest(
                node_id=newcomer, node_name="n4", peer_address="127.0.0.1:1"
            )
            for node in nodes:
                await eventually(partial(node.admin.AddMember, add, timeout=5))
            members = await nodes[0].admin.ListMembers(admin.ListMembersRequest())
            for shard in members.shards:
                learners = [each.node_id for each in shard.members if each.is_learner]
                assert learners == [newcomer]
            # One that is a member already is not changed, whatever else the request says.
            voter = str(nodes[1].context.node_id)
            for node_id in (newcomer, voter):
                anew = admin.AddMemberRequest(
                    node_id=node_id, node_name="n9", peer_address="127.0.0.1:9"
                )
                await eventually(partial(nodes[0].admin.AddMember, anew, timeout=5))
            again = await eventually(
                lambda: nodes[0].admin.ListMembers(admin.ListMembersRequest(), timeout=5)
            )
            assert again == members
            await eventually(
                lambda: nodes[0].admin.PromoteMember(
                    admin.PromoteMemberRequest(node_id=voter), timeout=5
                )
            )
            promote = admin.PromoteMemberRequest(node_id=newcomer)
            for _ in range(100):
                await nodes[0].kv.Put(kv.PutRequest(key=b"{0}", value=b""))
                await nodes[0].kv.Put(kv.PutRequest(key=b"{1}", value=b""))
                await nodes[0].kv.Put(kv.PutRequest(key=b"{2}", value=b""))
            error = await refusal(nodes[0].admin.PromoteMember(promote))
            assert (type(error), error.reason) == (errors.FailedPrecondition, "LEARNER_BEHIND")
            remove = admin.RemoveMemberRequest(node_id=newcomer)
            for node in nodes:
                await eventually(partial(node.admin.RemoveMember, remove, timeout=5))
            # A leader that is to go hands over first.
            leader = next(node for node in nodes if node.leads(0))
            other = next(node for node in nodes if node is not leader)
            gone = admin.RemoveMemberRequest(node_id=str(leader.context.node_id))
            await eventually(lambda: other.admin.RemoveMember(gone, timeout=5))
            members = await eventually(
                lambda: other.admin.ListMembers(admin.ListMembersRequest(), timeout=5)
            )
            for shard in members.shards:
                assert gone.node_id not in {each.node_id for each in shard.members}

    run(test())


def test_members_are_changed_by_a_leader_that_was_elected_just_now(tmp_path: Path) -> None:
    """It can change nothing before it has committed something; who asks should not see that."""

    async def test() -> None:
        async with cluster(tmp_path, shards=1) as nodes:
            target = next(node for node in nodes if not node.leads(0))
            member, edge = target.context.drivers[0].shard.member, target.context.edge
            assert edge is not None
            request = admin.TransferLeadershipRequest(shard=0, node_id=str(member.self_id))
            moving = asyncio.create_task(
                eventually(lambda: nodes[0].admin.TransferLeadership(request, timeout=5))
            )
            async with asyncio.timeout(WAIT_S):
                while member.state != LEADER:  # noqa: ASYNC110 - each turn of the loop is looked at
                    await asyncio.sleep(0)
            assert not member.has_applied_noop
            newcomer = uuid4()
            deadline_s = target.context.clock.now_s() + WAIT_S
            await Members(edge).add(0, newcomer, "n9", "127.0.0.1:1", deadline_s)
            assert newcomer in member.membership.learners
            await moving

    run(test())


def test_namespaces_are_in_every_shard_and_half_made_ones_are_finished(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            create = admin.CreateNamespaceRequest(
                namespace="tenant", limits=admin.NamespaceLimits(keys_max=5)
            )
            # Somebody came as far as shard 1.
            leader = next(node for node in nodes if node.leads(1))
            await leader.admin.CreateNamespace(create, metadata=(("onelog-shard", "1"),))
            answer = await nodes[0].admin.CreateNamespace(create)
            assert [header.shard for header in answer.headers] == [0]
            for node in nodes:
                listed = await node.admin.ListNamespaces(admin.ListNamespacesRequest())
                names = {each.namespace: each.limits.keys_max for each in listed.namespaces}
                assert names == {"default": 0, "tenant": 5}
                error = await refusal(node.admin.CreateNamespace(create))
                assert (type(error), error.reason) == (errors.AlreadyExists, "NAMESPACE_EXISTS")
            limits = admin.NamespaceLimits(keys_max=7, versions_max=2)
            configure = admin.ConfigureNamespaceRequest(namespace="tenant", limits=limits)
            assert len((await nodes[1].admin.ConfigureNamespace(configure)).headers) == 2
            delete = admin.DeleteNamespaceRequest(namespace="tenant")
            assert len((await nodes[2].admin.DeleteNamespace(delete)).headers) == 2
            for call in (
                nodes[0].admin.DeleteNamespace(delete),
                nodes[0].admin.ConfigureNamespace(configure),
            ):
                error = await refusal(call)
                assert (type(error), error.reason) == (errors.NotFound, "NAMESPACE_UNKNOWN")
            error = await refusal(
                nodes[0].admin.DeleteNamespace(admin.DeleteNamespaceRequest(namespace="default"))
            )
            assert error.reason == "NAMESPACE_PROTECTED"

    run(test())


def test_the_log_is_read_in_pages_without_voids_and_followed(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            first = await node.kv.Put(kv.PutRequest(key=b"a", value=b"x" * 2000))
            await refusal(node.kv.Put(kv.PutRequest(key=b"a", expected_version=1)))
            last = await node.kv.Put(kv.PutRequest(key=b"b", value=b"2"))

            async def read(**fields: Any) -> list[log_pb2.Entry]:
                request = admin.ReadLogRequest(**fields)
                return [
                    entry async for page in node.admin.ReadLog(request) for entry in page.entries
                ]

            keys = await read(owners=[log_pb2.OWNER_KV])
            assert [entry.index for entry in keys] == [first.header.index, last.header.index]
            assert b"x" * 2000 in keys[0].payload
            everything = await read(with_voids=True)
            assert [entry.index for entry in everything] == list(range(1, last.header.index + 1))
            some = await read(first_index=2, last_index=3)
            assert [entry.index for entry in some] == [2, 3]
            following = node.admin.ReadLog(
                admin.ReadLogRequest(first_index=last.header.index, follow=True)
            )
            assert (await following.read()).entries[0].index == last.header.index
            more = await node.kv.Put(kv.PutRequest(key=b"c", value=b"3"))
            page = await following.read()
            assert [entry.index for entry in page.entries] == [more.header.index]
            assert page.last_index == more.header.index
            following.cancel()
            bounded = node.admin.ReadLog(
                admin.ReadLogRequest(first_index=1, last_index=more.header.index + 1, follow=True)
            )
            await bounded.read()
            await node.kv.Put(kv.PutRequest(key=b"d", value=b"4"))
            async with asyncio.timeout(5):
                while await bounded.read() is not grpc.aio.EOF:
                    pass
            ranges = await node.admin.ListLogRanges(admin.ListLogRangesRequest())
            assert ranges.ranges[0].first_index == 1
            assert ranges.ranges[-1].last_index == ranges.commit_index == more.header.index + 1
            assert sum(each.entry_count for each in ranges.ranges) == ranges.commit_index
            assert all(each.size for each in ranges.ranges)
            assert ranges.ranges[-1].last_timestamp_ns >= ranges.ranges[-1].first_timestamp_ns > 0

    run(test())


def test_pages_of_the_log_are_bounded_by_what_is_sent_and_not_by_what_is_stored(
    tmp_path: Path,
) -> None:
    """A megabyte of zeros takes a few bytes of the log, and a megabyte of a message."""

    async def test() -> None:
        limits = LimitSettings(message_bytes_max=2 << 20)
        async with single(tmp_path, shards=1, limits=limits) as node:
            puts = [
                await node.kv.Put(kv.PutRequest(key=b"%d" % number, value=bytes(size)))
                for number, size in enumerate([*(600_000,) * 4, *(10,) * 4, (2 << 20) - 500, 10])
            ]
            pages = [
                [entry.index for entry in page.entries]
                async for page in node.admin.ReadLog(
                    admin.ReadLogRequest(owners=[log_pb2.OWNER_KV])
                )
                if page.ByteSize() <= 2 << 20
            ]
            indexes = [each.header.index for each in puts]
            # One alone may be as large as a message; nothing else is larger than a page.
            assert [page for page in pages if page] == [
                indexes[0:1], indexes[1:2], indexes[2:3], indexes[3:8], indexes[8:9], indexes[9:],
            ]  # fmt: skip

    run(test())


def test_an_entry_that_no_message_can_hold_is_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            first = await node.kv.Put(kv.PutRequest(key=b"a", value=bytes(100_000)))
            await node.kv.Put(kv.PutRequest(key=b"b", value=b"1"))
        limits = LimitSettings(message_bytes_max=64 << 10)
        async with single(tmp_path, shards=1, limits=limits) as node:
            request = admin.ReadLogRequest(first_index=first.header.index)
            error = await refusal(node.admin.ReadLog(request).read())
            assert isinstance(error, errors.TooLarge)
            assert error.reason == "ANSWER_TOO_LARGE"
            assert error.metadata["index"] == str(first.header.index)
            behind = admin.ReadLogRequest(first_index=first.header.index + 1)
            assert len((await node.admin.ReadLog(behind).read()).entries) > 0

    run(test())


def test_a_snapshot_is_taken_by_another_process_and_has_the_hash_of_the_state(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            for number in range(20):
                await node.kv.Put(kv.PutRequest(key=b"%d" % number, value=b"v"))
            live = await node.admin.GetStateHash(admin.GetStateHashRequest())
            request = admin.TakeSnapshotRequest()
            taken = await asyncio.gather(
                *(node.admin.TakeSnapshot(request, timeout=30) for _ in range(3))
            )
            assert {(each.index, each.state_hash) for each in taken} == {
                (live.index, live.state_hash)
            }
            assert taken[0].size > 0
            status = await node.admin.GetStatus(admin.GetStatusRequest())
            assert status.shards[0].snapshot_index == live.index

    run(test())


BAD: list[tuple[str, Any, str]] = [
    ("TransferLeadership", admin.TransferLeadershipRequest(shard=9), "SHARD_UNKNOWN"),
    ("TransferLeadership", admin.TransferLeadershipRequest(node_id="me"), "NODE_ID_INVALID"),
    ("TransferLeadership", admin.TransferLeadershipRequest(), "TRANSFER_FAILED"),
    ("TakeSnapshot", admin.TakeSnapshotRequest(shard=9), "SHARD_UNKNOWN"),
    ("GetStateHash", admin.GetStateHashRequest(shard=9), "SHARD_UNKNOWN"),
    ("ListLogRanges", admin.ListLogRangesRequest(shard=2**32 - 1), "SHARD_UNKNOWN"),
    ("AddMember", admin.AddMemberRequest(node_id="x", peer_address="a:1"), "NODE_ID_INVALID"),
    ("AddMember", admin.AddMemberRequest(node_id=str(uuid4())), "ADDRESS_INVALID"),
    (
        "AddMember",
        admin.AddMemberRequest(node_id=str(uuid4()), peer_address="h" * 300 + ":1"),
        "ADDRESS_INVALID",
    ),
    (
        "AddMember",
        admin.AddMemberRequest(node_id=str(uuid4()), peer_address="h:1", node_name="n" * 129),
        "NODE_NAME_INVALID",
    ),
    ("PromoteMember", admin.PromoteMemberRequest(), "NODE_ID_INVALID"),
    ("PromoteMember", admin.PromoteMemberRequest(node_id=str(uuid4())), "MEMBER_UNKNOWN"),
    ("RemoveMember", admin.RemoveMemberRequest(node_id="{}"), "NODE_ID_INVALID"),
    (
        "CreateNamespace",
        admin.CreateNamespaceRequest(namespace="n" * 129),
        "NAMESPACE_NAME_INVALID",
    ),
    ("CreateNamespace", admin.CreateNamespaceRequest(namespace="a\n"), "NAMESPACE_NAME_INVALID"),
    (
        "CreateNamespace",
        admin.CreateNamespaceRequest(namespace="a", limits=admin.NamespaceLimits(versions_max=256)),
        "NAMESPACE_LIMIT_INVALID",
    ),
    (
        "ConfigureNamespace",
        admin.ConfigureNamespaceRequest(
            namespace="a", limits=admin.NamespaceLimits(value_size_max=2**63)
        ),
        "NAMESPACE_LIMIT_INVALID",
    ),
    (
        "ConfigureNamespace",
        admin.ConfigureNamespaceRequest(
            namespace="a", limits=admin.NamespaceLimits(tombstones_max=2**64 - 1)
        ),
        "NAMESPACE_LIMIT_INVALID",
    ),
    (
        "DeleteNamespace",
        admin.DeleteNamespaceRequest(namespace="n" * 129),
        "NAMESPACE_NAME_INVALID",
    ),
]


def test_bad_input_is_refused_with_a_reason_and_nothing_is_written(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path) as node:
            logs = [driver.shard.log for driver in node.context.drivers.values()]
            before = [log.last_index for log in logs]
            for method, request, reason in BAD:
                error = await refusal(getattr(node.admin, method)(request))
                assert error.reason == reason, (method, error)
                assert not isinstance(error, errors.Internal)
            for request, reason in (
                (admin.ReadLogRequest(shard=9), "SHARD_UNKNOWN"),
                (admin.ReadLogRequest(first_index=5, last_index=4), "RANGE_INVALID"),
                (admin.ReadLogRequest(owners=[cast(Any, 99)]), "OWNER_INVALID"),
            ):
                error = await refusal(node.admin.ReadLog(request).read())
                assert error.reason == reason
            assert [log.last_index for log in logs] == before

    run(test())
