"""What of the log must be kept although snapshots cover it: what the state needs, and holds.

Bodies of queued messages, records of streams within their retention and blocks of series are in the
log only; the state keeps their indexes. A sealed segment may be dropped when it holds none of them.
The log is only cut at its start, so one waiting message keeps everything after it. A hold
(projections/system/holds.py) keeps everything from its index on.

The lifetime of a hold ends by a proposal, like any other expiry. Replicas cannot agree by
themselves on bytes and disk space: once a second the leader of a shard checks its own log and disk,
and proposes to break

* a hold that keeps more bytes, from its index to the end of the log, than its ``bytes_max``,
* if the disk has less than ``RESERVE_BYTES`` above the minimum that stays free, the hold that keeps
  the oldest segment: one at a time, the next when that log is gone.

A follower's disk may be smaller, and a full disk accepts no proposal. So there is a last resort:
below ``LAST_BYTES`` a replica trims as if there were no holds, and reports it (``let_go``).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import HoldBreak, encode_command
from onelog.projections.system.holds import Cause, Hold
from onelog.snapshot.store import RESERVE_BYTES
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptFile
from onelog.ual.log import Log
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

if TYPE_CHECKING:
    from onelog.node.replica.driver import ShardDriver
    from onelog.node.replica.shard import NodeClock, Shard


def droppable_before(
    log: Log,
    state: Projections,
    keep_index: int,
    needless_before: int = 0,
    *,
    ignores_holds: bool = False,
) -> int:
    """Return the index below which no entry is needed, ``keep_index`` at most.

    ``needless_before``: what another member has dropped already (node/replica/repair.py).
    """
    held_from = None if ignores_holds else state.system.holds.first_index()
    if held_from is not None:
        keep_index = min(keep_index, held_from)
    kept_from = state.stream.kept_streams()
    for segment in log.segments.segments:
        if segment.last_index >= keep_index or isinstance(segment, UnsealedSegment):
            break
        if segment.last_index < needless_before:
            continue
        # Its content is not known until it is repaired.
        if isinstance(segment, DamagedSegment) or _is_needed(segment, state, kept_from):
            return segment.first_index
    return keep_index


def needed_by_state(log: Log, state: Projections) -> int:
    """Return the first entry that the live state may refer to.

    Which entries of an unsealed file it refers to is not known, so all of them count.
    """
    end = log.last_index + 1
    unsealed = (s.first_index for s in log.segments.segments if isinstance(s, UnsealedSegment))
    return droppable_before(log, state, min(unsealed, default=end), ignores_holds=True)


def _is_needed(segment: SealedSegment, state: Projections, kept_from: dict[int, int]) -> bool:
    if state.router.pinned(segment.first_index, segment.last_index):
        return True
    try:
        for stream_id in segment.stream_ids().tolist():
            first = kept_from.get(stream_id)
            if first is not None:
                records = segment.stream_records(stream_id)
                if len(records) and records[-1] >= np.uint64(first):
                    return True
    except CorruptFile:
        return True  # rotted just now
    return False


def log_bytes_behind(log: Log, index: int) -> int:
    """Return about how many bytes of the log lie behind an index."""
    total = 0
    for segment in reversed(log.segments.segments):
        if segment.last_index <= index:
            break
        size = 0
        if isinstance(segment, SealedSegment):
            size = segment.size_bytes
        elif isinstance(segment, UnsealedSegment):
            size = segment.end
        if segment.first_index <= index:  # the part of it that is behind, by its entries
            span = segment.last_index - segment.first_index + 1
            size = size * (segment.last_index - index) // span
        total += size
    return total


# Holds

LOOK_S = 1.0
PROPOSE_S_MAX = 5.0
# What the disk should have above ``log.free_bytes_min``: below ``RESERVE_BYTES`` the leader breaks
# holds, below this every replica drops what it must.
LAST_BYTES = 256 << 20
# What a hold is given that does not say.
BYTES_MAX_DEFAULT = 16 << 30
TTL_MS_DEFAULT = 7 * 86_400_000

_WORDS = {
    Cause.BYTES: "it kept more of the log than its limit",
    Cause.TIME: "nobody moved it for its lifetime",
    Cause.DISK: "the disk was short of space",
}

_log = logging.getLogger("onelog.node.holds")


class Holding:
    """See the module's text. One for each process."""

    def __init__(self, drivers: "Mapping[int, ShardDriver]", clock: "NodeClock") -> None:
        self._drivers = drivers
        self._clock = clock
        self._asked: Counter[tuple[int, int]] = Counter()
        self._warned: set[tuple[int, str, int]] = set()

    @contextmanager
    def asking(self, shard: int, index: int) -> Iterator[None]:
        """Keep a log from an index on while the entry that will hold it is on its way."""
        self._asked[shard, index] += 1
        try:
            yield
        finally:
            self._asked[shard, index] -= 1
            self._asked += Counter()  # without what is zero

    def asked_from(self, shard: int) -> int | None:
        """Return the first entry of a shard that a hold is about to be set to."""
        return min((index for number, index in self._asked if number == shard), default=None)

    async def run(self, trim: "Callable[[ShardDriver], Awaitable[None]]") -> None:
        """Look after the holds until cancelled; ``trim`` lets a log lose what it may."""
        while True:
            for number in sorted(self._drivers):
                driver = self._drivers[number]
                if driver.shard.failure is None and len(driver.shard.projections.system.holds):
                    await self._look_after(driver, trim)
            await asyncio.sleep(LOOK_S)

    async def _look_after(
        self, driver: "ShardDriver", trim: "Callable[[ShardDriver], Awaitable[None]]"
    ) -> None:
        shard = driver.shard
        drafts = breaks(shard) if shard.member.has_applied_noop else []
        if drafts:
            # Whatever comes of it: what is overrun still is at the next look.
            await driver.propose(drafts, self._clock.now_s() + PROPOSE_S_MAX)
        if is_short(shard) and shard.failure is None:
            await trim(driver)
        self._warn(driver.number, shard)

    def _warn(self, number: int, shard: "Shard") -> None:
        """Write of each hold that is broken, once."""
        broken = {}
        for hold in shard.projections.system.holds:
            words = trouble(shard, hold)
            if words:
                broken[number, hold.name, hold.created_index] = words
        for key in broken.keys() - self._warned:
            _log.warning("shard %d: %s", number, broken[key])
        others = {key for key in self._warned if key[0] != number}
        self._warned = others | broken.keys()


def held_bytes(shard: "Shard", hold: Hold) -> int:
    """Return about how much of the log there is from a hold's index on; nothing if it is broken."""
    return 0 if hold.cause is not None else log_bytes_behind(shard.log, hold.index - 1)


def most_held_bytes(shard: "Shard") -> int:
    """Return about how much of the log there is from the earliest hold on."""
    first_index = shard.projections.system.holds.first_index()
    return 0 if first_index is None else log_bytes_behind(shard.log, first_index - 1)


def is_short(shard: "Shard") -> bool:
    """Tell whether the disk has so little room that holds are in the way."""
    return shard.log.spare_bytes() < RESERVE_BYTES


def breaks(shard: "Shard") -> list[Draft]:
    """Return what a leader proposes: an end for each hold that is overrun."""
    found: dict[str, tuple[Hold, Cause]] = {}
    active = shard.projections.system.holds.active()
    for hold in active:
        if held_bytes(shard, hold) > hold.bytes_max:
            found[hold.name] = (hold, Cause.BYTES)
        elif is_let_go(shard, hold):
            found[hold.name] = (hold, Cause.DISK)
    if not found and is_short(shard):
        in_the_way = _first_in_the_way(shard, active)
        if in_the_way is not None:
            found[in_the_way.name] = (in_the_way, Cause.DISK)
    return [
        encode_command(HoldBreak(hold.name, cause, hold.set_index))
        for hold, cause in found.values()
    ]


def _first_in_the_way(shard: "Shard", active: list[Hold]) -> Hold | None:
    """Return the earliest hold, if the oldest segment could be dropped without holds."""
    log, repair = shard.log, shard.shipping.repair
    end = log.segments.segments[0].last_index + 1
    in_the_way = [hold for hold in active if hold.index < end <= shard.snapshots.keep_from_index]
    if not in_the_way:
        return None
    droppable = droppable_before(
        log, shard.projections, end, repair.needless_before, ignores_holds=True
    )
    if droppable < end:
        return None
    return min(in_the_way, key=lambda hold: (hold.index, hold.name))


def is_let_go(shard: "Shard", hold: Hold) -> bool:
    """Tell whether this replica had to drop entries that a hold should have kept."""
    is_the_one = shard.shipping.let_go.get(hold.name) == hold.created_index
    return is_the_one and hold.cause is None and hold.index < shard.log.first_index


def trouble(shard: "Shard", hold: Hold) -> str:
    """Return what is wrong with a hold on this replica, for people; empty: nothing is."""
    if hold.cause is not None:
        why = _WORDS[hold.cause]
        return f"hold {hold.name} from index {hold.index} on broke at {hold.broken_index}: {why}"
    if is_let_go(shard, hold):
        return (
            f"hold {hold.name} from index {hold.index} on is not kept here: the disk was about to "
            f"be full, and the log begins at {shard.log.first_index}"
        )
    return ""
