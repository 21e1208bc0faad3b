"""Reads as of an index: what a read says is what it said then, for every model."""

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from onelog.errors import OutOfRange, ResourceExhausted, Unavailable
from onelog.node.config.schema import AsOfSettings, LogSettings
from onelog.node.replica.requests import Results
from onelog.node.snapshots.past import Past, PastBuild
from onelog.projections.kv import commands
from onelog.projections.kv.reads import Range
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import encode_batch
from onelog.routing import find_shard
from onelog.ual.entry import Draft
from onelog.v1 import common_pb2 as common
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import Node, refusal, run, single, until
from tests.projections.queue import queue_histories
from tests.projections.stream import stream_histories
from tests.projections.timeseries import ts_histories

NAMESPACE = "default"
SMALL_LOG = LogSettings(segment_bytes_max=64 << 10, free_bytes_min=0)
DEADLINE_S = 120.0


def put(key: bytes, value: bytes) -> Draft:
    return commands.encode_command(commands.Put(key, value), NAMESPACE)


async def write(node: Node, *drafts: Draft) -> int:
    """Write entries as one request, and return the index of the last one."""
    driver = node.context.drivers[0]
    outcome = await driver.propose(drafts, node.context.clock.now_s() + DEADLINE_S)
    assert isinstance(outcome, Results), outcome
    return outcome.first_index + len(drafts) - 1


async def past(node: Node, index: int) -> Projections:
    """Return the state at an index, for a look before anything else happens."""
    return (await hold(node, index)).projections


async def hold(node: Node, index: int) -> Past:
    return await node.context.past.at(0, index, node.context.clock.now_s() + DEADLINE_S)


async def snapshot(node: Node) -> int:
    return (await node.context.snapshots.take(node.context.drivers[0])).index


def trim(node: Node) -> int:
    """Trim the log as far as it may be."""
    driver = node.context.drivers[0]
    driver.begin_seal()
    job = driver.shard.trim_begin(node.context.past.needed_from(0))
    if job is None:
        return 0
    job.run()
    driver.shard.log.manifest_file.finish(job)
    return len(job.segments)


def first_index(node: Node) -> int:
    return node.context.drivers[0].shard.log.first_index


def answers(state: Projections) -> str:
    """Ask everything that can be asked of a state without its log."""
    found: list[object] = [
        state.kv.scan(NAMESPACE, Range(), limit=1_000),
        *(state.kv.history(NAMESPACE, b"key-%d" % number) for number in range(12)),
    ]
    found += queue_histories.answers(state.queue)
    found += stream_histories.answers(state.stream)
    found += ts_histories.answers(state.series)
    return repr(found)


@dataclass(frozen=True)
class Moment:
    """What was, when an index had just been applied."""

    state_hash: int
    answers: str | None  # of some only: they are many


class History:
    """Writes random things of all models, and remembers what the state was after each request."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node = node
        self.draw = random.Random(seed)
        self.moments: dict[int, Moment] = {}
        node.context.drivers[0].shard.listeners.append(self._note)

    def _note(self, _entries: object, _results: object) -> None:
        state = self.node.context.drivers[0].shard.projections
        is_asked = len(self.moments) % 4 == 0
        self.moments[state.router.applied_index] = Moment(
            state.router.state_hash(), answers(state) if is_asked else None
        )

    def drafts(self) -> list[Draft]:
        draw, state = self.draw, self.node.context.drivers[0].shard.projections
        key = b"key-%d" % draw.randrange(12)
        match draw.randrange(8):
            case 0 | 1:
                return [put(key, draw.randbytes(draw.choice((5, 900))))]
            case 2:
                return [commands.encode_command(commands.Delete(key), NAMESPACE)]
            case 3:
                return list(encode_batch([put(key, b"%d" % at) for at in range(3)], (), NAMESPACE))
            case 4 | 5:
                return queue_histories.random_commands(draw, state.queue)
            case 6:
                return stream_histories.random_commands(draw, state.stream)
            case _:
                return ts_histories.random_commands(draw, state.series)

    async def go_on(self, count: int) -> None:
        for _ in range(count):
            await write(self.node, *self.drafts())


@pytest.mark.parametrize("seed", [1, 2])
def test_a_past_state_is_what_was_live_then_across_snapshots_trims_and_restarts(
    tmp_path: Path, seed: int
) -> None:
    """The whole of it: hash and every answer, at every index that can still be reached."""

    async def test() -> None:
        async with single(tmp_path, shards=1, log=SMALL_LOG) as node:
            # What nothing refers to later, so that there is something to trim.
            for _ in range(4):
                await write(node, put(b"key-0", random.Random(seed).randbytes(40 << 10)))
            history = History(node, seed)
            await history.go_on(20)
            await check(node, history.moments, 1)
            for _ in range(3):
                await history.go_on(25)
                await snapshot(node)
            await until(lambda: trim(node) or first_index(node) > 1)
            assert first_index(node) > 1
            await history.go_on(15)
            moments = history.moments
            oldest = node.context.drivers[0].shard.snapshots.records[0].index
            await check(node, moments, oldest)
            early = max(index for index in moments if index < oldest)
            with pytest.raises(OutOfRange):
                await past(node, early)
        async with single(tmp_path, shards=1, log=SMALL_LOG) as node:
            await check(node, moments, oldest)

    async def check(node: Node, moments: dict[int, Moment], first: int) -> None:
        draw = random.Random(seed)
        wanted = sorted(index for index in moments if index >= first)
        chosen = {wanted[0], wanted[-1], *draw.sample(wanted, min(12, len(wanted)))}
        # Some rise, which moves a state forward; some go back, which needs another.
        for index in [*sorted(chosen), *draw.sample(sorted(chosen), 5)]:
            state = await past(node, index)
            assert state.router.applied_index == index
            assert state.router.state_hash() == moments[index].state_hash
            assert moments[index].answers in (None, answers(state))

    run(test())


def key_of_shard(node: Node, number: int, name: bytes) -> bytes:
    """Return a key that lives in a shard."""
    shards, partitions = node.context.topology.shards, node.context.topology.partitions
    return next(
        key
        for at in range(1_000)
        if find_shard(key := b"%s-%d" % (name, at), partitions, shards) == number
    )


def test_keys_are_read_as_of_an_index_after_their_versions_are_gone(tmp_path: Path) -> None:
    """A key keeps a few versions. Behind those the log tells."""

    async def test() -> None:
        async with single(tmp_path, shards=2) as node:
            key = key_of_shard(node, 1, b"a")
            indexes = []
            for number in range(40):
                request = kv.PutRequest(key=key, value=b"%d" % number)
                indexes.append((await node.kv.Put(request)).header.index)
            lease = await node.kv.GrantLease(kv.GrantLeaseRequest(routing_key=key, ttl_ms=60_000))
            await node.kv.Put(kv.PutRequest(key=key, value=b"held", lease_id=lease.lease_id))
            await node.kv.Delete(kv.DeleteRequest(key=key))
            past_states = node.context.past

            def at(index: int) -> Any:
                return common.ReadOptions(as_of_index=index)

            recent = await node.kv.Get(kv.GetRequest(key=key, options=at(indexes[-1])))
            assert recent.item.value == b"39"
            assert past_states.built == 0, "the live state knows its newest versions by itself"
            for number in (0, 3, 17):
                index = indexes[number]
                options = at(index)
                got = await node.kv.Get(kv.GetRequest(key=key, options=options))
                assert (got.item.value, got.item.version) == (b"%d" % number, index)
                many = await node.kv.BatchGet(kv.BatchGetRequest(keys=[key], options=options))
                assert [each.value for each in many.items] == [b"%d" % number]
                listed = await node.kv.List(kv.ListRequest(routing_key=key, options=options))
                assert [each.value for each in listed.items] == [b"%d" % number]
                told = await node.kv.GetHistory(kv.GetHistoryRequest(key=key, options=options))
                assert told.versions[0].value == b"%d" % number
                document = await node.kv.GetJson(kv.GetJsonRequest(key=key, options=options))
                assert document.json == b"%d" % number
                executed = await node.pipeline.ExecuteOnce(
                    pipeline.ExecuteRequest(
                        operations=[
                            pipeline.Operation(get=kv.GetRequest(key=key, options=options)),
                            pipeline.Operation(get=kv.GetRequest(key=key)),
                        ]
                    )
                )
                assert executed.results[0].get.item.value == b"%d" % number
                assert not executed.results[1].get.HasField("item")
            held = await node.kv.GetLease(
                kv.GetLeaseRequest(
                    routing_key=key, lease_id=lease.lease_id, options=at(indexes[-1] + 2)
                )
            )
            assert list(held.keys) == [key]
            stale = common.ReadOptions(
                level=common.READ_LEVEL_STALE, as_of_index=indexes[0], max_staleness_ms=60_000
            )
            got = await node.kv.Get(kv.GetRequest(key=key, options=stale))
            assert got.item.value == b"0"

    run(test())


def test_an_index_inside_of_a_group_is_exact_and_inside_of_a_batch_is_before_it(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            last = await write(node, *(put(b"k", b"%d" % number) for number in range(10)))
            for number in (2, 3, 9, 0):
                index = last - 9 + number
                item: Any = (await past(node, index)).kv.get(NAMESPACE, b"k")
                assert (item.value, item.version) == (b"%d" % number, index)
            batch = encode_batch([put(b"k", b"x")] * 4 + [put(b"k", b"y")], (), NAMESPACE)
            end = await write(node, *batch, put(b"other", b"z")) - 1
            for index in (end - 3, end - 1, end - 4):
                inside: Any = (await past(node, index)).kv.get(NAMESPACE, b"k")
                assert inside.value == b"9"
            behind: Any = (await past(node, end)).kv.get(NAMESPACE, b"k")
            assert behind.value == b"y"
            all_of_it = await past(node, end + 1)
            assert all_of_it.kv.get(NAMESPACE, b"other") is not None
            assert (
                all_of_it.router.state_hash() == node.context.drivers[0].shard.router.state_hash()
            )

    run(test())


def test_outside_of_what_is_kept_it_is_out_of_range_and_says_from_where_on(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=SMALL_LOG) as node:
            first = await write(node, put(b"k", b"first"))
            snapshots = []
            for _ in range(2):
                for _ in range(3):
                    await write(node, *(put(b"k", bytes(1_000)) for _ in range(100)))
                snapshots.append(await snapshot(node))
            await until(lambda: not trim(node) and first_index(node) > first)

            def get(index: int) -> Any:
                options = common.ReadOptions(as_of_index=index)
                return node.kv.Get(kv.GetRequest(key=b"k", options=options))

            error = await refusal(get(first))
            assert (error.code, error.reason) == (11, "COMPACTED")
            assert error.metadata["first_index"] == str(snapshots[0])
            assert (await get(snapshots[0])).item.value == bytes(1_000)
            error = await refusal(get(snapshots[0] - 1))
            assert error.reason == "COMPACTED"
            error = await refusal(get(snapshots[1] + 1_000))
            assert (error.code, error.reason) == (11, "INDEX_IN_FUTURE")
            history = kv.GetHistoryRequest(
                key=b"k", options=common.ReadOptions(as_of_index=snapshots[1] + 1_000)
            )
            assert (await refusal(node.kv.GetHistory(history))).reason == "INDEX_IN_FUTURE"

    run(test())


class Held:
    """Builds that wait in the middle, where a test wants them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = asyncio.Event()
        self.begun = 0
        loop = asyncio.get_running_loop()
        real = PastBuild.run

        def run_held(build: PastBuild) -> None:
            self.begun += 1
            waiting = asyncio.run_coroutine_threadsafe(self.is_open.wait(), loop)
            while not waiting.done():
                build.pace()  # notices that nobody waits any more
            real(build)

        monkeypatch.setattr(PastBuild, "run", run_held)


def test_writes_and_reads_go_on_while_a_state_is_built_and_the_log_stays_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, log=SMALL_LOG) as node:
            index = await write(node, put(b"k", b"then"))
            await write(node, *(put(b"k", bytes(1_000)) for _ in range(200)))
            held = Held(monkeypatch)
            reading = asyncio.create_task(past(node, index))
            await until(lambda: held.begun)
            for _ in range(2):
                for _ in range(3):
                    await write(node, *(put(b"k", bytes(1_000)) for _ in range(100)))
                await snapshot(node)
            got = await node.kv.Get(kv.GetRequest(key=b"k"))
            assert got.item.value == bytes(1_000)
            assert not reading.done()
            shard = node.context.drivers[0].shard
            await until(lambda: trim(node) or shard.log.segments.sealed_index > index)
            assert trim(node) == 0, "a build needs the beginning"
            assert first_index(node) == 1
            held.is_open.set()
            item: Any = (await reading).kv.get(NAMESPACE, b"k")
            assert item.value == b"then"
            await until(lambda: trim(node) or first_index(node) > 1)

    run(test())


def test_more_builds_than_allowed_are_refused_with_a_time_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            first = await write(node, put(b"k", b"1"))
            second = await write(node, put(b"k", b"2"))
            held = Held(monkeypatch)
            readers = [asyncio.create_task(past(node, first)) for _ in range(3)]
            await until(lambda: held.begun)
            options = common.ReadOptions(as_of_index=second)
            request = kv.GetHistoryRequest(key=b"k", options=options)
            error = await refusal(node.kv.GetHistory(request))
            assert (error.code, error.reason) == (8, "TOO_MANY_PAST_STATES")
            assert error.retry_after_s is not None
            assert error.retry_after_s > 0
            held.is_open.set()
            states = await asyncio.gather(*readers)
            assert states[0] is states[1] is states[2], "who asks for the same waits for the same"
            assert held.begun == 1
            assert len((await node.kv.GetHistory(request)).versions) == 2

    run(test())


def test_a_build_that_nobody_waits_for_is_stopped_and_a_deadline_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            index = await write(node, put(b"k", b"1"))
            await write(node, put(b"k", b"2"))
            states = node.context.past
            held = Held(monkeypatch)
            with pytest.raises(TimeoutError):
                await states.at(0, index, node.context.clock.now_s() + 0.05)
            await until(lambda: not states.builds)
            assert (states.built, states.states) == (0, [])
            held.is_open.set()
            item: Any = (await past(node, index)).kv.get(NAMESPACE, b"k")
            assert item.value == b"1"

    run(test())


def test_a_node_that_stops_does_not_wait_for_a_state_that_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            index = await write(node, put(b"k", b"1"))
            held = Held(monkeypatch)
            reading = asyncio.create_task(past(node, index))
            await until(lambda: held.begun)
        with pytest.raises(Unavailable) as stopped:
            await reading
        assert stopped.value.reason == "STOPPING"
        assert held.begun == 1

    run(test())


def test_a_state_that_somebody_reads_stays_as_it_is_until_they_are_done(tmp_path: Path) -> None:
    """Long reads look again after they have waited."""

    async def test() -> None:
        async with single(tmp_path, shards=1, as_of=AsOfSettings(idle_s=0.05)) as node:
            indexes = [await write(node, put(b"k", b"%d" % at)) for at in range(5)]
            first = await hold(node, indexes[1])
            second = await hold(node, indexes[2])
            assert second.projections is not first.projections
            with pytest.raises(ResourceExhausted) as refused:
                await hold(node, indexes[3])
            assert refused.value.reason == "TOO_MANY_PAST_STATES"
            for held, value in ((first, b"1"), (second, b"2")):
                item: Any = held.projections.kv.get(NAMESPACE, b"k")
                assert item.value == value
            del first, held
            third: Any = (await past(node, indexes[3])).kv.get(NAMESPACE, b"k")
            assert third.value == b"3"
            item = second.projections.kv.get(NAMESPACE, b"k")
            assert item.value == b"2"
            del second
            await until(lambda: not node.context.past.states)

    run(test())


def test_states_are_kept_for_later_indexes_and_dropped_by_count_by_memory_and_by_age(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        settings = AsOfSettings(states_max=2, idle_s=3600.0)
        async with single(tmp_path, shards=1, as_of=settings) as node:
            indexes = [await write(node, put(b"k", b"%d" % at)) for at in range(12)]
            states = node.context.past
            kept = await past(node, indexes[2])
            assert await past(node, indexes[2]) is kept
            assert states.built == 1
            assert await past(node, indexes[5]) is kept, "moved forward"
            await past(node, indexes[1])
            assert [at for _, at in states.states] == [indexes[1], indexes[5]]
            await past(node, indexes[0])
            assert [at for _, at in states.states] == [indexes[0], indexes[1]], "the oldest read"
            assert states.memory_bytes > 0
            # Anything is more than this: nothing else may stay beside what is built.
            size = states.memory_bytes // 2
            states.config = replace(states.config, memory_bytes_max=size + size // 2)
            await past(node, indexes[3])
            assert len(states.states) == 1
            states.config = replace(states.config, memory_bytes_max=1)
            options = common.ReadOptions(as_of_index=indexes[9])
            request = kv.GetHistoryRequest(key=b"k", options=options)
            error = await refusal(node.kv.GetHistory(request))
            assert (error.code, error.reason) == (8, "PAST_TOO_LARGE")

        settings = AsOfSettings(idle_s=0.05)
        async with single(tmp_path, shards=1, as_of=settings) as node:
            await past(node, indexes[2])
            await until(lambda: not node.context.past.states)

    run(test())
