"""Old cursors: what was told live is told again, as long as snapshots and log lead there."""

import asyncio
import gc
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onelog.errors import OutOfRange, ResourceExhausted
from onelog.node.config.schema import AsOfSettings
from onelog.node.edge.calls import Call
from onelog.node.edge.shards import get_edge
from onelog.node.snapshots import past as as_of
from onelog.node.snapshots import past as as_of_build
from onelog.node.snapshots.past import PastBuild
from onelog.node.watch import past as watch_past
from onelog.node.watch.feeds import PAGE_EVENTS_MAX
from onelog.node.watch.watch import WATCH_METHOD, Watches
from onelog.projections.kv import commands
from onelog.projections.queue.commands import QueueDelete
from onelog.projections.queue.commands import encode_command as encode_queue
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import encode_batch
from onelog.ual.entry import Draft
from onelog.v1 import admin_pb2, common_pb2, log_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import Node, refusal, run, single, until
from tests.node.services.queues import Jobs
from tests.node.snapshots.test_as_of import (
    NAMESPACE,
    SMALL_LOG,
    first_index,
    hold,
    key_of_shard,
    put,
    snapshot,
    trim,
    write,
)
from tests.node.watch.test_watch import Watcher
from tests.projections.queue import queue_histories
from tests.projections.stream import stream_histories
from tests.projections.timeseries import ts_histories

NOTES_SIZE_MAX = 4_000
WINDOW_MAX = 24


@pytest.fixture(autouse=True)
def small_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past states remember as little as live ones, and are asked of a few entries at a time."""
    build = build_projections
    monkeypatch.setattr(as_of_build, "build_projections", lambda *given: forgetful(build(*given)))
    monkeypatch.setattr(watch_past, "WINDOW_ENTRIES_MAX", WINDOW_MAX)
    monkeypatch.setattr(as_of, "RETRY_S", 0.01)


def forgetful(state: Projections) -> Projections:
    state.kv.changes.size_max = NOTES_SIZE_MAX
    state.queue.changes.size_max = NOTES_SIZE_MAX
    state.stream.gone.streams_max = 1
    return state


def forget(node: Node) -> None:
    """Make the live state keep few notes."""
    for driver in node.context.drivers.values():
        forgetful(driver.shard.projections)


def position(index: int, shard: int = 0) -> common_pb2.Cursor:
    return common_pb2.Cursor(positions=[common_pb2.Position(shard=shard, index=index)])


def applied(node: Node, shard: int = 0) -> int:
    return node.context.drivers[shard].shard.log.applied_index


def is_at(watcher: Watcher, index: int) -> bool:
    return any(each.index >= index for each in watcher.cursor.positions)


async def read_to(watcher: Watcher, index: int) -> list[pipeline.Event]:
    async with asyncio.timeout(30):
        while not is_at(watcher, index):
            await watcher.read()
    return watcher.events


async def read_all(node: Node, cursor: common_pb2.Cursor, **fields: Any) -> list[pipeline.Event]:
    """Return everything from a cursor to now."""
    watcher = Watcher(node, cursor=cursor, progress_ms=100, **fields)
    events = await read_to(watcher, applied(node))
    watcher.call.cancel()
    return events


def increment(key: bytes) -> Draft:
    return commands.encode_command(commands.Increment(key, 1), NAMESPACE)


async def count_up(node: Node, count: int) -> None:
    for _ in range(count):
        await write(node, increment(b"n"))


class History:
    """Writes random things of all models."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.draw = random.Random(seed)

    def drafts(self) -> list[Draft]:
        draw, state = self.draw, self.node.context.drivers[0].shard.projections
        match draw.randrange(9):
            case 0 | 1:
                return [self._key_draft() for _ in range(draw.randrange(1, 4))]
            case 2:
                return list(encode_batch([self._key_draft() for _ in range(4)], (), NAMESPACE))
            case 3 | 4 | 5:
                return queue_histories.random_commands(draw, state.queue)
            case 6:
                return stream_histories.random_commands(draw, state.stream)
            case 7:
                return ts_histories.random_commands(draw, state.series)
            case _:
                removed = commands.DeleteRange(b"key-2", b"key-5", 10)
                return [commands.encode_command(removed, NAMESPACE)]

    def _key_draft(self) -> Draft:
        draw = self.draw
        key = b"key-%d" % draw.randrange(8)
        command: Any = draw.choice(
            (
                commands.Put(key, b"%d" % draw.randrange(9)),
                commands.Put(key, b"%d" % draw.randrange(9), ttl_ns=40_000_000),
                commands.Increment(key, 1),
                commands.Append(b"text-" + key, b"more"),
                commands.Delete(key),
            )
        )
        return commands.encode_command(command, NAMESPACE)

    async def go_on(self, count: int) -> None:
        for _ in range(count):
            await write(self.node, *self.drafts())


def comparable(events: list[pipeline.Event]) -> list[pipeline.Event]:
    """Return events without the lifetimes of versions before, which are those that were set last.

    Everything else is told alike: clients that resume in the middle of an answer count on it.
    """
    found = []
    for event in events:
        clean = pipeline.Event()
        clean.CopyFrom(event)
        if clean.key.HasField("previous"):
            clean.key.previous.ClearField("expires_ns")
        found.append(clean)
    return found


def cuts(node: Node, draw: random.Random, last: int) -> Iterator[int]:
    shard = node.context.drivers[0].shard
    oldest = 0 if shard.log.first_index == 1 else shard.snapshots.records[0].index
    yield oldest
    yield from (draw.randrange(oldest, last) for _ in range(2))


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_told_live_is_told_again_after_snapshots_restarts_and_forgotten_notes(
    tmp_path: Path, seed: int
) -> None:
    async def test() -> None:
        draw = random.Random(seed)
        async with single(tmp_path, shards=1) as node:
            live = await Watcher(node, cursor=position(0), with_previous=True).begin()
            following = asyncio.create_task(read_to(live, 1 << 62))
            history = History(node, seed)
            await history.go_on(50)
            await snapshot(node)
            await history.go_on(40)
            forget(node)
            await history.go_on(15)
            await check(node, live, draw)
            await snapshot(node)
            await history.go_on(20)
            await check(node, live, draw)
            last = applied(node)
            await until(lambda: is_at(live, last))
            following.cancel()
            kinds = {event.WhichOneof("event") for event in live.events}
            assert kinds == {"key", "queue", "stream", "series"}
        async with single(tmp_path, shards=1) as node:
            forget(node)
            await check(node, live, draw, last)

    async def check(node: Node, live: Watcher, draw: random.Random, last: int = 0) -> None:
        last, built = last or applied(node), node.context.past.built
        await until(lambda: is_at(live, last))
        for cut in cuts(node, draw, last):
            told = comparable(await read_all(node, position(cut), with_previous=True))
            expected = comparable(live.events)
            assert [each for each in told if each.index <= last] == [
                each for each in expected if cut < each.index <= last
            ]
        assert node.context.past.built > built

    run(test())


def test_a_watch_that_is_cut_off_again_and_again_goes_on_in_the_past(tmp_path: Path) -> None:
    """Also in the middle of an atomic batch, and of one entry with many events."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            drafts = [increment(b"k%02d" % number) for number in range(12)]
            await write(node, *encode_batch(drafts, (), NAMESPACE))
            removed = commands.encode_command(commands.DeleteRange(b"k", b"l", 100), NAMESPACE)
            await write(node, removed)
            expected = await read_all(node, position(0))
            assert len(expected) == 24
            batch_first, removed_at = expected[0].index, expected[-1].index
            await count_up(node, 10)
            forget(node)
            await count_up(node, 50)
            for index in range(batch_first - 1, removed_at):
                told = await read_all(node, position(index))
                assert [each for each in told if each.index <= removed_at] == [
                    each for each in expected if each.index > index
                ]
            half = common_pb2.Position(index=removed_at - 1, events_sent=7)
            told = await read_all(node, common_pb2.Cursor(positions=[half]))
            assert told[:5] == expected[-5:]
            assert node.context.past.built > 0

    run(test())


async def fill(node: Node) -> None:
    for _ in range(4):
        await write(node, put(b"filler", random.randbytes(40 << 10)))


def test_before_the_oldest_snapshot_a_cursor_is_compacted_and_told_from_where_it_goes(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=SMALL_LOG) as node:
            await fill(node)
            # A message that stays keeps what is behind it, from before the snapshots.
            jobs = Jobs(node)
            await jobs.create()
            await jobs.send(b"body")
            await count_up(node, 10)
            for _ in range(2):
                await fill(node)
                await snapshot(node)
            await count_up(node, 30)
            expected = await read_all(node, position(0))
            forget(node)
            await count_up(node, 30)
            oldest = node.context.drivers[0].shard.snapshots.records[0].index
            found = await read_all(node, position(0))
            assert found[: len(expected)] == expected, "the log is whole"
            await until(lambda: trim(node) or first_index(node) > 1)
            start = first_index(node)
            assert 1 < start <= oldest
            error = await refusal(read_all(node, position(start - 1)))
            assert (type(error), error.reason) == (OutOfRange, "COMPACTED")
            assert int(error.metadata["first_index"]) == oldest + 1
            told = await read_all(node, position(oldest))
            assert told == [event for event in found if event.index > oldest]
            error = await refusal(read_all(node, position(start - 2)))
            assert (type(error), error.reason) == (OutOfRange, "COMPACTED")

    run(test())


def test_an_entry_that_did_more_than_any_state_remembers_is_compacted(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await write(node, *(put(b"k%03d" % number, b"v") for number in range(100)))
            removed = commands.encode_command(commands.DeleteRange(b"k", b"l", 100), NAMESPACE)
            index = await write(node, removed)
            forget(node)
            await count_up(node, 40)
            error = await refusal(read_all(node, position(index - 1)))
            assert (type(error), error.reason) == (OutOfRange, "COMPACTED")
            told = await read_all(node, position(index))
            assert [event.key.item.value for event in told] == [b"%d" % at for at in range(1, 41)]

    run(test())


@pytest.mark.parametrize("as_of_bytes", [1 << 28, 0])
def test_the_value_before_is_told_after_its_key_has_forgotten_it(
    tmp_path: Path, as_of_bytes: int
) -> None:
    """Puts tell themselves what they did, so without a past only the values before are missing."""

    async def test() -> None:
        config = AsOfSettings(memory_bytes_max=as_of_bytes)
        async with single(tmp_path, shards=1, as_of=config) as node:
            for number in range(40):
                await write(node, put(b"k", b"%d" % number))
            told = await read_all(node, position(0), with_previous=True)
            assert [event.key.item.value for event in told] == [b"%d" % at for at in range(40)]
            before = [event.key.previous.value for event in told]
            if as_of_bytes:
                assert before == [b"", *(b"%d" % at for at in range(39))]
            else:
                assert before == [b""] * 33 + [b"%d" % at for at in range(32, 39)]

    run(test())


def test_a_namespace_that_keeps_one_version_has_no_values_before_and_no_past_is_built(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            limits = admin_pb2.NamespaceLimits(versions_max=1)
            create = admin_pb2.CreateNamespaceRequest(namespace="one", limits=limits)
            await node.admin.CreateNamespace(create)
            for number in range(5):
                request = kv.PutRequest(namespace="one", key=b"k", value=b"%d" % number)
                await node.kv.Put(request)
            told = await read_all(node, position(0), with_previous=True)
            values = [event.key.item.value for event in told]
            assert values == [b"0", b"1", b"2", b"3", b"4"]
            assert not any(event.key.HasField("previous") for event in told)
            assert node.context.past.built == 0

    run(test())


def test_a_watcher_waits_for_its_turn_and_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        config = AsOfSettings(states_max=1)
        async with single(tmp_path, shards=1, as_of=config) as node:
            await count_up(node, 30)
            forget(node)
            await count_up(node, 30)
            held = await hold(node, applied(node) - 1)
            reading = asyncio.create_task(read_all(node, position(0)))
            refused = node.context.past.refused
            await until(lambda: node.context.past.refused > refused + 3)
            assert not reading.done()
            del held
            assert len(await reading) == 60
            monkeypatch.setattr(watch_past, "STATE_WAIT_S", 0.05)
            held = await hold(node, applied(node) - 1)
            error = await refusal(read_all(node, position(0)))
            assert (type(error), error.reason) == (ResourceExhausted, "TOO_MANY_PAST_STATES")
            assert held.projections.router.applied_index == applied(node) - 1

    run(test())


def states_in_memory() -> int:
    gc.collect()
    return sum(isinstance(each, Projections) for each in gc.get_objects())


def test_a_watcher_that_does_not_read_holds_no_state(tmp_path: Path) -> None:
    """Without the wire, which would take some for it."""

    async def test() -> None:
        config = AsOfSettings(states_max=1)
        async with single(tmp_path, shards=1, as_of=config) as node:
            await write(node, *[increment(b"n")] * 1_100)
            forget(node)
            await count_up(node, 30)
            states, edge = states_in_memory(), get_edge(node.context)
            call = Call(WATCH_METHOD, pipeline.WatchResponse, "", 0.0, float("inf"))
            request = pipeline.WatchRequest(cursor=position(0), with_previous=True)
            messages: Any = Watches(edge).watch(request, call)
            found: list[pipeline.Event] = []
            while len(found) < PAGE_EVENTS_MAX:
                found += (await anext(messages)).events
            # The rest waits for it; the only state there may be is free, and nothing refers to it.
            state = await hold(node, 2)
            assert state.projections.router.applied_index == 2
            await until(lambda: states_in_memory() <= states + 1)
            del state
            while len(found) < 1_130:
                found += (await anext(messages)).events
            assert [event.key.item.value for event in found] == [
                b"%d" % at for at in range(1, 1131)
            ]
            before = [event.key.previous.value for event in found]
            assert before == [b"", *(b"%d" % at for at in range(1, 1130))]
            await messages.aclose()

    run(test())


def test_the_other_shards_of_a_watcher_and_all_calls_go_on_while_a_state_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_build, run_build = threading.Event(), PastBuild.run

    def build(work: PastBuild) -> None:
        assert may_build.wait(30)
        run_build(work)

    monkeypatch.setattr(PastBuild, "run", build)

    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            old, new = key_of_shard(node, 0, b"old"), key_of_shard(node, 1, b"new")
            add = partial(kv.CountRequest, key=old, add=1)
            for _ in range(20):
                await node.kv.Count(add())
            forget(node)
            for _ in range(20):
                await node.kv.Count(add())
            watcher = await Watcher(node, cursor=position(0), progress_ms=100).begin()
            await until(lambda: node.context.past.builds == 1)
            await node.kv.Put(kv.PutRequest(key=new, value=b"1"))
            async with asyncio.timeout(20):
                while new not in [event.key.key for event in watcher.events]:
                    await watcher.read()
                await watcher.read()  # nothing but progress
            assert all(event.shard == 1 for event in watcher.events)
            may_build.set()
            async with asyncio.timeout(20):
                while len(watcher.events) < 41:
                    await watcher.read()
            told = [event.key.item.value for event in watcher.events if event.shard == 0]
            assert told == [b"%d" % number for number in range(1, 41)]
            watcher.call.cancel()
            shards = [driver.shard for driver in node.context.drivers.values()]
            await until(lambda: not any(shard.listeners for shard in shards))

    run(test())


def test_a_state_that_began_too_late_does_not_tell_what_entries_before_it_did(
    tmp_path: Path,
) -> None:
    """Reads leave such states behind: one that starts right at an index knows nothing of it."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await count_up(node, 10)
            middle = await snapshot(node)
            await count_up(node, 10)
            past, deadline_s = node.context.past, node.context.clock.now_s() + 20

            async def noted(index: int, told_from: int) -> list[bytes | None]:
                state = (await past.at(0, index, deadline_s, told_from)).projections
                notes = [state.kv.changes.get(at) for at in range(told_from, index + 1)]
                return [change.value for changes in notes for change in changes]

            await hold(node, middle)
            assert past.states == [(0, middle)]
            assert await noted(middle, middle) == [b"10"]
            await hold(node, middle + 2)
            assert await noted(middle + 3, middle - 1) == [b"9", b"10", b"11", b"12", b"13"]

    run(test())


def test_queues_that_are_gone_are_named_by_the_past(tmp_path: Path) -> None:
    """A restart forgets the names of queues that were deleted before the snapshot."""

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            history = History(node, 5)
            state = node.context.drivers[0].shard.projections
            for _ in range(60):
                await write(node, *queue_histories.random_commands(history.draw, state.queue))
            for queue in list(state.queue._queues.values()):
                await write(node, encode_queue(QueueDelete(queue.id), NAMESPACE))
            expected = await read_all(node, position(0))
            last = applied(node)
            await snapshot(node)
        async with single(tmp_path, shards=1) as node:
            queues = [pipeline.WatchFilter(owner=log_pb2.OWNER_QUEUE)]
            told = await read_all(node, position(0), filters=queues)
            assert [each for each in told if each.index <= last] == expected
            assert node.context.past.built > 0

    run(test())
