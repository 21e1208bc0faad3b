"""Reads as of an index: a few states of the past, built on demand and kept for a while.

A state is built from the newest snapshot at or below its index and the log after it. It has the
same type as the live state, so every read works on it unchanged. Repeated reads at its index cost
nothing more; a read at a later index moves it forward.

* A state that was handed out stays at exactly its index while its ``Past`` object exists: it is
  neither moved nor dropped, so a long read may return to it.
* Concurrent builds, states, their bytes and their idle time are bounded (``AsOfConfig``). More are
  refused, with a time to wait. A build that nobody waits for any more is stopped, and its partial
  state is kept for the next attempt.
* The log is not trimmed under a build (``needed_from``).
* A caller that asks what entries did, rather than what the state was, passes the first of them
  (``notes_from``): the state then has replayed these entries itself, and has notes on them as far
  back as notes are kept.
* The index is applied here, so it is committed. Before the oldest snapshot, if the log does not
  reach back to its start, a state cannot be built: COMPACTED, with the first index that can be
  read.

A build runs on a thread, beside a loop that has heartbeats to send. Python runs one thread at a
time, and each step of the loop would wait for the thread's turn to end. So the build works in
slices with pauses, in which the loop has the processor to itself; it calls ``Pace`` after every
piece of a snapshot and every entry, and ``Pace`` also stops a cancelled build. Freeing a large
state would block as well, when its last reference goes; ``dispose`` frees it in slices.
docs/snapshots.md has the measurements.

Rejected: a process that builds and answers. It would share nothing with the loop, but every read
would have to run there, with the log's newest entries that only this process has.
"""

import asyncio
import logging
import time
import weakref
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from onelog.errors import OutOfRange, ResourceExhausted, Unavailable
from onelog.node.public_errors import error_of_reason
from onelog.node.replica.driver import ShardDriver, own_task
from onelog.node.replica.shard import NodeClock, Shard
from onelog.projections.reasons import Reason
from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.errors import LogGap, NoSnapshot, StateMismatch
from onelog.snapshot.offline import LastRecords
from onelog.snapshot.past import PastState, start_past
from onelog.ual.entry import Entry
from onelog.ual.errors import IndexDropped, UalError
from onelog.ual.files import DiskFiles, Files
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord

SLICE_S = 0.002
PAUSE_S = 0.001
DISPOSE_ITEMS = 512  # between two checks of the clock


class BuildCancelled(Exception):
    """The last caller that waited for the state has left."""


class Pace:
    """Works in slices; see the module's text."""

    __slots__ = ("_slice_ends_s", "is_cancelled", "slices")

    def __init__(self) -> None:
        self.is_cancelled = False  # set by the loop
        self.slices = 0
        self._slice_ends_s = 0.0

    def __call__(self, *_progress: object) -> None:
        """Pause if the slice is over; raise ``BuildCancelled`` if it was for nothing."""
        if time.perf_counter() < self._slice_ends_s:
            return
        if self.is_cancelled:
            raise BuildCancelled
        time.sleep(PAUSE_S)
        self.slices += 1
        self._slice_ends_s = time.perf_counter() + SLICE_S


@dataclass(slots=True, eq=False)
class PastBuild:
    """One state to build: what was decided on the loop, for the thread."""

    files: Files
    directory: Path  # of the snapshots
    shard: int
    snapshots: tuple[SnapshotRecord, ...]  # at or below the index, oldest first
    log: Log
    index: int
    # The state to continue from; made from a snapshot if there is none. Also what was interrupted.
    state: PastState | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def needed_from(self) -> int:
        """The first entry that may be replayed."""
        if self.state is not None:
            return self.state.index + 1
        return self.snapshots[0].index + 1 if self.snapshots else 1

    def run(self) -> None:
        """Build the state, on any thread; afterwards ``state`` is that at ``index``."""
        if self.state is None:
            self.state = start_past(
                self.files,
                self.directory,
                self.shard,
                self.snapshots,
                first_index=self.log.first_index,
                make_state=lambda: build_projections(LastRecords()),
                progress=self.pace,
            )
        self.state.advance(self._entries, self.index)

    def _entries(self, first_index: int, last_index: int) -> Iterator[Entry]:
        """Yield committed entries from the live log; files deleted meanwhile stay readable."""
        pace = self.pace
        for entry in self.log.scan(first_index, last_index):
            pace()
            yield entry


def dispose(projections: Projections, pace: Pace) -> None:
    """Empty a state that nobody reads any more: it may have millions of keys."""
    for store in projections.kv.stores.values():
        records = store.records
        while records:
            for _ in range(min(DISPOSE_ITEMS, len(records))):
                records.popitem()
            pace()


# As of

# How long a refused caller should wait: a build takes about a second per 100,000 keys.
RETRY_S = 1.0

_log = logging.getLogger("onelog.node.as_of")


@dataclass(frozen=True, slots=True)
class AsOfConfig:
    """How much of the past is held in memory. For each process."""

    # States that are kept. One less, and two readers at two indexes build all the time.
    states_max: int = 2
    # Builds at a time. Each takes a part of the one processor that serves.
    builds_max: int = 1
    # Of all states together; a shard that holds more has no past but its keys' own.
    memory_bytes_max: int = 256 << 20
    # A state that nobody has read for this long is dropped.
    idle_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if self.builds_max > self.states_max:
            raise ValueError("as_of.builds_max is above as_of.states_max")


@dataclass(slots=True, eq=False)
class _Build:
    work: PastBuild
    done: "asyncio.Future[None]"
    waiters: int = 0


class Past:
    """A state of the past in use: it stays as it is while this object is there."""

    __slots__ = ("__weakref__", "projections")

    def __init__(self, projections: Projections) -> None:
        self.projections = projections


class _Kept:
    """A state in memory, and who uses it."""

    __slots__ = ("_build", "_past", "size", "state", "used_s")

    def __init__(self, state: PastState, size: int, used_s: float, build: _Build) -> None:
        self.state = state
        self.size = size
        self.used_s = used_s
        self._build = build  # that made it; those who waited for it come for it in a moment
        self._past: weakref.ref[Past] | None = None

    @property
    def is_held(self) -> bool:
        return self._build.waiters > 0 or (self._past is not None and self._past() is not None)

    def has_notes(self, notes_from: int | None) -> bool:
        return notes_from is None or self.state.base_index < notes_from

    def hold(self) -> Past:
        past = None if self._past is None else self._past()
        if past is None:
            past = Past(self.state.projections)
            self._past = weakref.ref(past)
        return past


class PastStates:
    """See the module's text. One for each process."""

    def __init__(
        self,
        drivers: Mapping[int, ShardDriver],
        clock: NodeClock,
        config: AsOfConfig | None = None,
        files: Files | None = None,
    ) -> None:
        self.config = config or AsOfConfig()
        self.built = self.refused = self.failed = 0
        self._drivers = drivers
        self._clock = clock
        self._files = files or DiskFiles()
        self._builds: dict[tuple[int, int], _Build] = {}
        self._kept: dict[tuple[int, int], _Kept] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._threads = ThreadPoolExecutor(self.config.builds_max, thread_name_prefix="past")

    @property
    def states(self) -> list[tuple[int, int]]:
        """The shards and indexes of the states that are kept."""
        return sorted(self._kept)

    @property
    def memory_bytes(self) -> int:
        """About what the kept states hold."""
        return sum(each.size for each in self._kept.values())

    @property
    def builds(self) -> int:
        """How many are under way."""
        return len(self._builds)

    def needed_from(self, number: int) -> int | None:
        """Return the first entry of a shard that a build may still read; None if there is none."""
        needed = [each.work.needed_from for key, each in self._builds.items() if key[0] == number]
        return min(needed, default=None)

    async def at(
        self, number: int, index: int, deadline_s: float, notes_from: int | None = None
    ) -> Past:
        """Return the state of a shard right behind an index; it has replayed ``notes_from`` on."""
        shard = self._drivers[number].shard
        if index > shard.log.applied_index:
            raise error_of_reason(Reason.INDEX_IN_FUTURE, shard.log.applied_index)
        await own_task()
        async with asyncio.timeout(max(0.0, deadline_s - self._clock.now_s())):
            while True:
                if self._is_closed:
                    raise Unavailable(
                        "this node is shutting down", reason="STOPPING", retry_after_s=RETRY_S
                    )
                kept = self._kept.get((number, index))
                if kept is not None and kept.has_notes(notes_from):
                    kept.used_s = self._clock.now_s()
                    return kept.hold()
                build = self._builds.get((number, index))
                if build is None:
                    build = self._begin(number, shard, index, notes_from)
                try:
                    await self._wait(build)
                except BuildCancelled:
                    continue  # by those who waited before

    async def close(self) -> None:
        """Cancel the builds and drop all states; may be called again."""
        self._is_closed = True
        for build in self._builds.values():
            build.work.pace.is_cancelled = True
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._sweeping is not None:
            self._sweeping.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._kept.clear()

    # Building

    async def _wait(self, build: _Build) -> None:
        build.waiters += 1
        build.work.pace.is_cancelled = False
        try:
            await asyncio.shield(build.done)
        finally:
            build.waiters -= 1
            if not build.waiters:
                build.work.pace.is_cancelled = True

    def _begin(self, number: int, shard: Shard, index: int, notes_from: int | None) -> _Build:
        config, store = self.config, shard.snapshots
        if len(self._builds) >= config.builds_max:
            raise self._too_many(config.builds_max, "are being built")
        size = _size(shard.projections)
        if size > config.memory_bytes_max:
            self.refused += 1
            raise ResourceExhausted(
                f"the shard holds {size} bytes; its past would take as much again",
                reason="PAST_TOO_LARGE",
                metadata={"limit": str(config.memory_bytes_max)},
            )
        last = index if notes_from is None else min(index, notes_from - 1)
        snapshots = tuple(each for each in store.records if each.index <= last)
        if not snapshots and shard.log.first_index > 1:
            raise _compacted(shard, index)
        self._give_way(number, index)
        above = snapshots[-1].index if snapshots else 0
        base = self._take_nearest(number, index, above, shard, notes_from)
        if not self._make_room(size):
            if base is not None:
                self._dispose(base)
            raise self._too_many(config.states_max, "are being read")
        work = PastBuild(
            self._files, store.directory, number, snapshots, shard.log, index, state=base
        )
        build = _Build(work, asyncio.get_running_loop().create_future())
        self._builds[number, index] = build
        task = asyncio.create_task(self._run(build, shard, size), name=f"past-{number}-{index}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return build

    def _too_many(self, limit: int, what: str) -> ResourceExhausted:
        self.refused += 1
        return ResourceExhausted(
            f"other states of the past {what}",
            reason="TOO_MANY_PAST_STATES",
            metadata={"limit": str(limit)},
            retry_after_s=RETRY_S,
        )

    async def _run(self, build: _Build, shard: Shard, size: int) -> None:
        work = build.work
        key = work.shard, work.index
        error: Exception | None = None
        try:
            await asyncio.get_running_loop().run_in_executor(self._threads, work.run)
            self.built += 1
        except BuildCancelled as cancelled:
            error = cancelled
        except (LogGap, NoSnapshot, IndexDropped):
            error = _compacted(shard, work.index)
        except Exception as other:  # noqa: BLE001 - the root of a task: raised to those who wait
            self.failed += 1
            error = other
            if isinstance(other, StateMismatch):
                _log.critical("shard %d: %s", work.shard, other)
        del self._builds[key]
        if work.state is not None and (error is None or isinstance(error, BuildCancelled)):
            self._keep(work.shard, work.state, size, build)
        if error is None:
            build.done.set_result(None)
        else:
            build.done.set_exception(error)
            build.done.exception()  # or asyncio complains where nobody waits any more

    # Keeping

    def _keep(self, number: int, state: PastState, size: int, build: _Build) -> None:
        kept = _Kept(state, size, self._clock.now_s(), build)
        if self._kept.setdefault((number, state.index), kept) is not kept:
            self._dispose(state)
        if self._sweeping is None:
            self._sweep()

    def _give_way(self, number: int, index: int) -> None:
        """Drop a state at the index of a new one, because its replay began too late."""
        kept = self._kept.get((number, index))
        if kept is None:
            return
        if kept.is_held:
            raise self._too_many(self.config.states_max, "are being read")
        self._dispose(self._kept.pop((number, index)).state)

    def _take_nearest(
        self, number: int, index: int, above: int, shard: Shard, notes_from: int | None
    ) -> PastState | None:
        """Take the state from which it is the shortest way to an index, if it beats a snapshot."""
        found = [
            key
            for key, each in self._kept.items()
            if key[0] == number
            and max(above, shard.log.first_index - 1) <= key[1] <= index
            and each.has_notes(notes_from)
            and not each.is_held
        ]
        return self._kept.pop(max(found)).state if found else None

    def _make_room(self, size: int) -> bool:
        """Drop what was read longest ago until another state fits in, with those being built."""
        config, building = self.config, len(self._builds) + 1
        loose = sorted((each.used_s, key) for key, each in self._kept.items() if not each.is_held)
        while (
            len(self._kept) + building > config.states_max
            or self.memory_bytes + building * size > config.memory_bytes_max
        ):
            if not loose:
                return False
            self._dispose(self._kept.pop(loose.pop(0)[1]).state)
        return True

    def _sweep(self) -> None:
        """Drop what nobody has read for long, and look again."""
        now_s, idle_s = self._clock.now_s(), self.config.idle_s
        for key, each in list(self._kept.items()):
            if now_s - each.used_s >= idle_s and not each.is_held:
                self._dispose(self._kept.pop(key).state)
        self._sweeping = None
        if self._kept:
            loop = asyncio.get_running_loop()
            self._sweeping = loop.call_later(idle_s / 2, self._sweep)

    def _dispose(self, state: PastState) -> None:
        self._threads.submit(dispose, state.projections, Pace())


def _size(projections: Projections) -> int:
    return sum(sum(kinds.values()) for kinds in projections.router.memory().values())


def first_as_of_index(shard: Shard) -> int:
    """Return the oldest index whose state can be built, as far as one can tell beforehand."""
    records, log = shard.snapshots.records, shard.log
    return records[0].index if records and log.first_index > 1 else log.first_index


def first_as_of_ns(shard: Shard) -> int:
    """Return the log time at that index; 0 if it is not known."""
    records, log = shard.snapshots.records, shard.log
    if records and log.first_index > 1:
        return shard.snapshots.log_time_ns(records[0])
    # The entry that founds a shard has no time.
    for index in range(log.first_index, min(log.first_index + 1, log.applied_index) + 1):
        try:
            time_ns = log.read(index).timestamp_ns
        except UalError:
            return 0
        if time_ns:
            return time_ns
    return 0


def _compacted(shard: Shard, index: int) -> OutOfRange:
    records = shard.snapshots.records
    # Not 1, whatever the log says: a build has just found that nothing begins there.
    first_index = records[0].index if records else shard.log.first_index
    return OutOfRange(
        f"nothing leads to the state at index {index} any more",
        reason="COMPACTED",
        metadata={"first_index": str(first_index)},
    )
