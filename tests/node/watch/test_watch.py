"""Watching: each event once and in order, live, resumed, slow, on any node."""

import asyncio
import gc
import random
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import errors
from onelog.node.config.schema import AsOfSettings
from onelog.node.watch import feeds
from onelog.node.watch.watch import WATCH_METHOD
from onelog.v1 import admin_pb2, common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.edge.api_peer import Peer
from tests.node.services.nodes import Node, cluster, eventually, refusal, run, single, until

PastEvents = tuple[int, int, bytes, bytes | None, bool]  # shard, index, key, value, expired


def summarise(event: pipeline.Event) -> PastEvents:
    value = event.key.item.value if event.key.HasField("item") else None
    return event.shard, event.index, event.key.key, value, event.key.expired


class Watcher:
    """A watch and what it has said."""

    def __init__(self, node: Node, **fields: Any) -> None:
        self.request = pipeline.WatchRequest(**fields)
        self.call = node.pipeline.Watch(self.request)
        self.events: list[pipeline.Event] = []
        self.cursor = common_pb2.Cursor()

    async def read(self) -> int:
        message = await self.call.read()
        assert message is not grpc.aio.EOF
        self.events += message.events
        self.cursor = message.cursor
        return len(message.events)

    async def collect(self, number: int) -> list[PastEvents]:
        async with asyncio.timeout(15):
            while len(self.events) < number:
                await self.read()
        return [summarise(event) for event in self.events]

    async def begin(self) -> "Watcher":
        await self.read()
        return self


def on_a_node(directory: Path, test: Callable[[Node], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with single(directory, **changes) as node:
            await test(node)

    run(main())


async def do_everything(node: Node) -> None:
    """Change keys in every way in which keys can change."""
    await node.kv.Put(kv.PutRequest(key=b"{t}a", value=b"1"))
    await node.kv.Put(kv.PutRequest(key=b"{t}big", value=bytes(2000)))
    await node.kv.Count(kv.CountRequest(key=b"{t}n", add=5))
    await node.kv.Append(kv.AppendRequest(key=b"{t}a", data=b"2"))
    await node.kv.SetJson(kv.SetJsonRequest(key=b"{t}j", json=b"{}"))
    await refusal(node.kv.Put(kv.PutRequest(key=b"{t}a", expected_version=1)))
    await node.kv.Touch(kv.TouchRequest(key=b"{t}a", ttl_ms=60_000))
    await node.kv.Txn(
        kv.TxnRequest(
            conditions=[kv.Condition(key=b"{t}none", exists=True)],
            then=[kv.TxnOperation(put=kv.PutRequest(key=b"{t}no", value=b""))],
            otherwise=[
                kv.TxnOperation(put=kv.PutRequest(key=b"{t}yes", value=b"y")),
                kv.TxnOperation(delete=kv.DeleteRequest(key=b"{t}n")),
                kv.TxnOperation(put=kv.PutRequest(key=b"{t}yes", value=b"last")),
            ],
        )
    )
    put = pipeline.TransactOperation(put=kv.PutRequest(key=b"{t}batch", value=b"b"))
    await node.pipeline.Transact(pipeline.TransactRequest(operations=[put]))
    failing = pipeline.TransactRequest(
        conditions=[kv.Condition(key=b"{t}none", exists=True)], operations=[put]
    )
    await refusal(node.pipeline.Transact(failing))
    grant = await node.kv.GrantLease(kv.GrantLeaseRequest(ttl_ms=60_000, routing_key=b"t"))
    lease = {"lease_id": grant.lease_id}
    for name in (b"{t}l1", b"{t}l2"):
        await node.kv.Put(kv.PutRequest(key=name, value=b"l", **lease))
    await node.kv.RevokeLease(kv.RevokeLeaseRequest(routing_key=b"t", **lease))
    await node.kv.DeleteRange(
        kv.DeleteRangeRequest(range=kv.KeyRange(prefix=b"{t}b"), routing_key=b"t")
    )
    twice = [b"{t}m1", b"{t}m2", b"{t}m1"]
    await node.kv.BatchPut(kv.BatchPutRequest(keys=twice, values=[b"old", b"2", b"1"]))
    await node.kv.Put(kv.PutRequest(key=b"{t}soon", value=b"s", ttl_ms=20))


EXPECTED = [
    (b"{t}a", b"1", False), (b"{t}big", bytes(2000), False), (b"{t}n", b"5", False),
    (b"{t}a", b"12", False), (b"{t}j", b"{}", False), (b"{t}yes", b"last", False),
    (b"{t}n", None, False), (b"{t}batch", b"b", False), (b"{t}l1", b"l", False),
    (b"{t}l2", b"l", False), (b"{t}l1", None, False), (b"{t}l2", None, False),
    (b"{t}batch", None, False), (b"{t}big", None, False), (b"{t}m1", b"1", False),
    (b"{t}m2", b"2", False), (b"{t}soon", b"s", False),
    (b"{t}soon", None, True),
]  # fmt: skip


def test_every_change_of_a_key_is_an_event_live_later_and_after_a_restart(tmp_path: Path) -> None:
    live: list[PastEvents] = []
    start = common_pb2.Cursor()

    async def first(node: Node) -> None:
        watcher = await Watcher(node, with_previous=True).begin()
        start.CopyFrom(watcher.cursor)
        await do_everything(node)
        live.extend(await watcher.collect(len(EXPECTED)))
        assert [each[2:] for each in live] == EXPECTED
        previous = {
            event.key.key: event.key.previous.value
            for event in watcher.events
            if event.key.HasField("previous")
        }
        assert previous[b"{t}a"] == b"1"
        assert previous[b"{t}n"] == b"5"
        assert previous[b"{t}big"] == bytes(2000)
        assert [event.index for event in watcher.events] == sorted(
            event.index for event in watcher.events
        )
        leased = next(event for event in watcher.events if event.key.key == b"{t}l1")
        assert leased.key.item.lease_id
        assert watcher.events[-2].key.item.expires_ns
        again = Watcher(node, cursor=start)
        assert await again.collect(len(EXPECTED)) == live

    async def second(node: Node) -> None:
        again = Watcher(node, cursor=start)
        assert await again.collect(len(EXPECTED)) == live
        assert not any(event.key.HasField("previous") for event in again.events)

    on_a_node(tmp_path, first)
    on_a_node(tmp_path, second)


def test_filters_choose_keys_prefixes_and_namespaces(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.admin.CreateNamespace(admin_pb2.CreateNamespaceRequest(namespace="other"))

        def watch(*filters: pipeline.WatchFilter, **fields: Any) -> Watcher:
            return Watcher(node, filters=filters, **fields)

        exact = pipeline.WatchFilter(name=b"user/1")
        prefix = pipeline.WatchFilter(name=b"user/", is_prefix=True, owner=log_pb2.OWNER_KV)
        other = pipeline.WatchFilter(namespace="other")
        queues = pipeline.WatchFilter(owner=log_pb2.OWNER_QUEUE)
        edge = node.context.edge
        assert edge is not None
        watchers = {
            "exact": watch(exact),
            "prefix": watch(prefix),
            "other": watch(other),
            "both": watch(exact, other),
            "queues": watch(queues, progress_ms=100),
            "shard": watch(exact, shards=[1 - edge.find_shard(b"user/1")]),
        }
        for watcher in watchers.values():
            await watcher.begin()
        for key, namespace in (
            (b"user/1", ""), (b"user/2", ""), (b"user", ""), (b"user/1", "other"), (b"z", "other"),
        ):  # fmt: skip
            await node.kv.Put(kv.PutRequest(key=key, namespace=namespace, value=b"v"))

        async def keys(name: str, number: int) -> list[bytes]:
            return sorted(each[2] for each in await watchers[name].collect(number))

        assert await keys("exact", 1) == [b"user/1"]
        assert await keys("prefix", 2) == [b"user/1", b"user/2"]
        assert await keys("other", 2) == [b"user/1", b"z"]
        assert await keys("both", 3) == [b"user/1", b"user/1", b"z"]
        # Nothing fits, but the cursor moves on (perhaps not with the first word of progress, which
        # may have been on its way before the puts).
        queues_watcher = watchers["queues"]
        before = sum(each.index for each in queues_watcher.cursor.positions)
        while sum(each.index for each in queues_watcher.cursor.positions) == before:
            assert await queues_watcher.read() == 0
        await node.kv.Put(kv.PutRequest(key=b"user/1", value=b"w"))
        assert [each[3] for each in await watchers["exact"].collect(2)] == [b"v", b"w"]
        assert watchers["shard"].events == []

    on_a_node(tmp_path, test)


def test_a_slow_watcher_reads_the_log_and_misses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "BUFFER_EVENTS_MAX", 8)
    monkeypatch.setattr(feeds, "PAGE_EVENTS_MAX", 5)
    monkeypatch.setattr(feeds, "READ_ENTRIES_MAX", 3)
    behind = 0
    read = feeds.Source.read

    async def counting(self: feeds.Source, first_index: int) -> Any:
        nonlocal behind
        behind += 1
        return await read(self, first_index)

    monkeypatch.setattr(feeds.Source, "read", counting)

    async def test(node: Node) -> None:
        watcher = await Watcher(node).begin()
        for number in range(20):
            operations = [
                pipeline.Operation(count=kv.CountRequest(key=b"{t}%d" % (each % 7), add=1))
                for each in range(50)
            ]
            await node.pipeline.ExecuteOnce(pipeline.ExecuteRequest(operations=operations))
            if number % 5 == 0:
                await watcher.collect(10 * number)
        found = await watcher.collect(1000)
        assert len(found) == 1000
        counts: dict[bytes, int] = {}
        for _, _, key, value, _ in found:
            counts[key] = counts.get(key, 0) + 1
            assert value == b"%d" % counts[key]
        indexes = [each[1] for each in found]
        assert indexes == sorted(set(indexes))

    on_a_node(tmp_path, test, shards=1)
    assert behind > 3


def test_the_events_of_one_large_entry_are_resumed_in_its_middle(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        names = [b"{t}%04d" % number for number in range(1300)]
        puts = [pipeline.Operation(put=kv.PutRequest(key=name, value=b"v")) for name in names]
        await node.pipeline.ExecuteOnce(pipeline.ExecuteRequest(operations=puts))
        watcher = await Watcher(node).begin()
        await node.kv.DeleteRange(kv.DeleteRangeRequest(routing_key=b"t"))
        got: list[bytes] = []
        while len(got) < len(names):
            await watcher.read()
            got += [event.key.key for event in watcher.events]
            watcher.call.cancel()
            watcher = await Watcher(node, cursor=watcher.cursor).begin()
        assert got == names

    on_a_node(tmp_path, test)


def test_a_cursor_that_is_not_kept_or_not_told_any_more_is_out_of_range(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        start = (await Watcher(node).begin()).cursor
        await node.kv.Put(kv.PutRequest(key=b"p", value=b"1"))
        await node.kv.Count(kv.CountRequest(key=b"n", add=1))
        changes = node.context.drivers[0].shard.projections.kv.changes
        changes.size_max = 1000
        for _ in range(10):
            await node.kv.Count(kv.CountRequest(key=b"n", add=1))
        # Puts tell themselves what they did; a counter's is forgotten, and no past may be built.
        watcher = Watcher(node, cursor=start)

        async def read_on() -> None:
            while True:
                await watcher.read()

        error = await refusal(read_on())
        assert (type(error), error.reason) == (errors.OutOfRange, "COMPACTED")
        known_from = int(error.metadata["first_index"])
        assert known_from == changes.complete_from
        cursor = common_pb2.Cursor(positions=[common_pb2.Position(index=known_from - 1)])
        found = await Watcher(node, cursor=cursor).collect(3)
        assert [each[3] for each in found] == [b"9", b"10", b"11"]
        # Whoever does not ask for keys is not concerned.
        queues = pipeline.WatchFilter(owner=log_pb2.OWNER_QUEUE)
        await Watcher(node, cursor=start, filters=[queues], progress_ms=100).begin()

    on_a_node(tmp_path, test, shards=1, as_of=AsOfSettings(memory_bytes_max=0))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"shards": [99]}, "SHARD_UNKNOWN"),
    ({"cursor": common_pb2.Cursor(positions=[common_pb2.Position(shard=9)])}, "SHARD_UNKNOWN"),
    (
        {"cursor": common_pb2.Cursor(positions=[common_pb2.Position(index=2**63)])},
        "CURSOR_INVALID",
    ),
    ({"progress_ms": 5}, "PROGRESS_INVALID"),
    ({"progress_ms": 2**63}, "PROGRESS_INVALID"),
    ({"filters": [pipeline.WatchFilter()] * 101}, "LIMIT_INVALID"),
    ({"filters": [pipeline.WatchFilter(namespace="n" * 129)]}, "NAMESPACE_NAME_INVALID"),
    ({"filters": [pipeline.WatchFilter(owner=cast(Any, 77))]}, "OWNER_INVALID"),
]


def test_bad_input_is_refused_and_watchers_leave_nothing_behind(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        for fields, reason in BAD:
            error = await refusal(Watcher(node, **fields).call.read())
            assert error.reason == reason, fields
        watchers = [await Watcher(node).begin() for _ in range(20)]
        shards = [driver.shard for driver in node.context.drivers.values()]
        assert all(len(shard.listeners) == 1 for shard in shards)
        for watcher in watchers:
            watcher.call.cancel()
        await until(lambda: not any(shard.listeners for shard in shards))

    on_a_node(tmp_path, test)


class Chaos:
    """Writers and watchers on three nodes whose leaders change; ``chance`` decides."""

    def __init__(self, nodes: list[Node], seed: int) -> None:
        self.nodes = nodes
        self.chance = random.Random(seed)
        self.done = asyncio.Event()

    async def write(self, writes: int) -> None:
        chance = self.chance
        for number in range(writes):
            node, key = chance.choice(self.nodes), b"k%d" % chance.randrange(8)
            if chance.random() < 0.5:
                put = kv.PutRequest(key=key, value=b"1")
                await eventually(partial(node.kv.Put, put, timeout=1))
            await eventually(partial(node.kv.Count, kv.CountRequest(key=key, add=1), timeout=1))
            if number % 40 == 20:
                move = admin_pb2.TransferLeadershipRequest(shard=number % 2)
                await eventually(partial(node.admin.TransferLeadership, move, timeout=2))
        self.done.set()

    async def follow(self, cursor: common_pb2.Cursor) -> list[PastEvents]:
        """Watch, now on this node and now on that, until everything was told."""
        found: list[PastEvents] = []
        while True:
            node = self.chance.choice(self.nodes)
            watcher = await Watcher(node, cursor=cursor, progress_ms=100).begin()
            for _ in range(self.chance.randrange(1, 12)):
                await watcher.read()
                if self.is_end(watcher.cursor):
                    break
            found += [summarise(event) for event in watcher.events]
            cursor = watcher.cursor
            watcher.call.cancel()
            if self.is_end(cursor):
                return found

    def is_end(self, cursor: common_pb2.Cursor) -> bool:
        return self.done.is_set() and all(
            each.index >= node.context.drivers[each.shard].shard.log.applied_index
            for each in cursor.positions
            for node in self.nodes
        )


def test_watchers_that_move_between_nodes_see_each_event_once_while_leaders_change(
    tmp_path: Path,
) -> None:
    """Half of it is chance: the seed is printed."""
    seed = random.randrange(10**9)
    sys.stdout.write(f"seed {seed}\n")

    async def test() -> None:
        async with cluster(tmp_path, shards=2) as nodes:
            chaos = Chaos(nodes, seed)
            start = (await Watcher(nodes[0]).begin()).cursor
            writing = asyncio.create_task(chaos.write(150))
            results = await asyncio.gather(*(chaos.follow(start) for _ in range(4)))
            await writing
            expected = sorted(results[0])
            assert len(expected) > 150
            for found in results:
                for shard in range(2):
                    indexes = [each[1] for each in found if each[0] == shard]
                    assert indexes == sorted(set(indexes)), "twice or out of order"
                assert sorted(found) == expected
            # What the log holds is what was told.
            in_log = set()
            for shard in range(2):
                request = admin_pb2.ReadLogRequest(shard=shard, owners=[log_pb2.OWNER_KV])
                async for page in nodes[0].admin.ReadLog(request):
                    in_log |= {(shard, entry.index) for entry in page.entries}
            assert {each[:2] for each in expected} == in_log

    run(test())


def messages_in_memory() -> int:
    gc.collect()
    kinds = pipeline.WatchRequest, pipeline.WatchResponse
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def test_an_idle_watch_keeps_no_message_in_memory(tmp_path: Path) -> None:
    """Each takes as much as all the rest of a watcher; the client here keeps bytes alone."""

    async def test(node: Node) -> None:
        before = messages_in_memory()
        peer = Peer(*await asyncio.open_connection("127.0.0.1", node.server.api_port))
        call = peer.core.start(WATCH_METHOD)
        peer.core.send(call, pipeline.WatchRequest().SerializeToString(), is_last=True)
        peer.flush()
        for _ in range(2):  # the message that it begins with, then an event
            await peer.read_until(lambda: peer.messages.pop(call.stream_id, None))
            await until(lambda: messages_in_memory() <= before)
            await node.kv.Put(kv.PutRequest(key=b"k", value=b"v"))
        peer.writer.close()

    on_a_node(tmp_path, test)
