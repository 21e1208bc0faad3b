"""Events of entries whose notes are forgotten: asked of a state of the past that replays them.

The live state remembers what its newest entries did (projections/kv/changes.py), a restart makes
that again back to the newest snapshot, and keys keep a few versions. The log goes further back than
all of it. A state that starts from a snapshot below an entry and is moved to right behind it
(node/snapshots/past.py) has notes of its own, which tell.

* Entries are read a *window* at a time: the state is moved behind the last one and asked about
  all of them. Its notes and versions are bounded too, so where it has forgotten the first of a
  window again, the window was too long, and a shorter one is tried. One entry always goes, unless
  it alone (or its atomic batch, inside of which there is no state) is more than notes may take:
  that is COMPACTED, never an event too few.
* A state is held for a look, not between two of them, and events let go of it: a watcher that does
  not read pins nothing but its own buffer. It may have to build again.
* Whoever finds all builds taken waits for its turn, for ``STATE_WAIT_S`` at most.
* Where no state leads to the entries (before the oldest snapshot, or more state than may be held
  twice) the live one has the last word: COMPACTED if it does not know what an entry did, and an
  event without the value before if that is all that is missing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from onelog.errors import OutOfRange, ResourceExhausted
from onelog.node.snapshots.past import Past
from onelog.node.watch.events import Event, make_events
from onelog.projections.codec import read_prefix
from onelog.projections.kv.commands import decode_command as decode_kv
from onelog.projections.limits import VERSIONS_DEFAULT
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import TYPE_BATCH, Batch
from onelog.projections.system.commands import decode_command as decode_system
from onelog.ual.entry import FLAG_CONDITIONAL, OWNER_KV, Entry

if TYPE_CHECKING:
    from onelog.node.watch.feeds import Interest, Source

# Entries of one window: what the loop does in one go. Shorter by far after one that was too long,
# and longer again bit by bit, because each that is too long costs a build.
WINDOW_ENTRIES_MAX = 512
WINDOW_SHRINKS_BY = 4
WINDOW_GROWS_BY = 8
# Bytes of events behind which a read ends, though the window is longer: they wait in memory.
LOOK_BYTES_MAX = 1 << 20
# How long a watcher waits for one state: for its turn and for the build.
STATE_WAIT_S = 120.0

PastEvents = tuple[int, list[Event], int]
"""The index of an entry, those of its events that are wanted, and their size."""


class _Forgotten(Exception):
    """The state has moved too far to know of the first entries of a window."""


class PastReader:
    """What entries did that the live state has forgotten, for one watcher in one shard."""

    def __init__(self, source: "Source", filters: "Interest", *, with_previous: bool) -> None:
        self._source = source
        self._filters = filters
        self._with_previous = with_previous
        self._window_max = WINDOW_ENTRIES_MAX

    async def read(
        self, entries: Sequence[Entry], last_index: int, is_enough: Callable[[int, int], bool]
    ) -> list[PastEvents]:
        """Return what entries did until it is enough (events, bytes), and how far that goes.

        The last item says how far: it is ``last_index`` behind the last entry.
        """
        ends, collected, position = _ends(entries), list[PastEvents](), 0
        count = size = 0
        while position < len(entries):
            window = self._window(entries[position:])
            found = await self._look(window, ends[position + len(window) - 1])
            for item in found:
                if item[1]:
                    collected.append(item)
                    count, size = count + len(item[1]), size + item[2]
            position += len(found)
            if is_enough(count, size):
                break
        is_all = position == len(entries)
        collected.append((last_index if is_all else entries[position - 1].index, [], 0))
        return collected

    # Windows

    def _window(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Return the entries to ask one state about, as many as it is likely to know of."""
        window = entries[: self._window_max]
        if not self._with_previous or OWNER_KV not in self._filters.owners:
            return window
        writes: Counter[tuple[str, bytes]] = Counter()
        for position, entry in enumerate(window):
            written = _find_key(entry)
            if written is None:
                continue
            writes[written] += 1
            # The value before the first of these has to be among the versions that are kept.
            if position and writes[written] >= self._versions_max(written[0]):
                return window[:position]
        return window

    def _versions_max(self, namespace: str) -> int:
        store = self._source.projections.kv.stores.get(namespace)
        return max(2, VERSIONS_DEFAULT if store is None else store.versions_max)

    async def _look(self, window: Sequence[Entry], end: int) -> list[PastEvents]:
        """Return what the entries of a window did, or only the first of them; [] if too long."""
        try:
            past = await self._at(end, window[0].index)
        except OutOfRange as error:
            return [self._ask_live(window[0], error)]
        except ResourceExhausted as error:
            if error.reason != "PAST_TOO_LARGE":
                raise
            return [self._ask_live(window[0], None)]
        try:
            found = self._ask_all(past.projections, window)
        except (OutOfRange, _Forgotten):
            self._window_max = max(1, len(window) // WINDOW_SHRINKS_BY)
            if len(window) > 1:
                return []
            return [self._ask(past.projections, window[0], is_last_try=True)]
        grown = self._window_max + max(1, self._window_max // WINDOW_GROWS_BY)
        self._window_max = min(grown, WINDOW_ENTRIES_MAX)
        return found

    def _ask_all(self, state: Projections, window: Sequence[Entry]) -> list[PastEvents]:
        """Return what entries did, up to as much as may wait."""
        found: list[PastEvents] = []
        size = 0
        for entry in window:
            found.append(self._ask(state, entry, is_last_try=False))
            size += found[-1][2]
            if size >= LOOK_BYTES_MAX:
                break
        return found

    def _ask(self, state: Projections, entry: Entry, *, is_last_try: bool) -> PastEvents:
        """Return what an entry did; ``is_last_try``: even if the value before is not known."""
        filters, with_previous = self._filters, self._with_previous
        events = [each for each in make_events(state, entry, filters.owners) if filters.fits(each)]
        for event in events:
            if not event.settle(with_previous=with_previous):
                if not is_last_try:
                    raise _Forgotten
                event.settle(with_previous=False)
        return entry.index, events, sum(event.size for event in events)

    def _ask_live(self, entry: Entry, why: OutOfRange | None) -> PastEvents:
        """Return what the live state knows of an entry that no state of the past leads to."""
        try:
            return self._ask(self._source.projections, entry, is_last_try=True)
        except OutOfRange as error:
            records = self._source.driver.shard.snapshots.records
            first_index = int(error.metadata["first_index"])
            if why is not None and records and records[0].index >= entry.index:
                first_index = min(first_index, records[0].index + 1)
            raise OutOfRange(
                str(error), reason=error.reason, metadata={"first_index": str(first_index)}
            ) from why

    # States

    async def _at(self, index: int, notes_from: int) -> Past:
        """Return the state behind an index that has replayed all from ``notes_from`` on."""
        source = self._source
        context = source.edge.context
        deadline_s = context.clock.now_s() + STATE_WAIT_S
        while True:
            try:
                return await source.edge.past_at(source.number, index, deadline_s, notes_from)
            except ResourceExhausted as error:
                wait_s = error.retry_after_s
                if wait_s is None or context.clock.now_s() + wait_s > deadline_s:
                    raise
                await asyncio.sleep(wait_s)


def _ends(entries: Sequence[Entry]) -> list[int]:
    """Return for each entry the index of a state that has applied it: not one inside its batch."""
    ends: list[int] = []
    batch_last = 0
    for entry in entries:
        if not entry.flags & FLAG_CONDITIONAL:
            ends.append(entry.index)
            continue
        if entry.entry_type == TYPE_BATCH:
            command: Any = decode_system(TYPE_BATCH, read_prefix(entry.plain_payload())[1])
            assert isinstance(command, Batch), command
            batch_last = entry.index + command.entry_count
        # Of a batch that began before, only the group that it is in is known.
        ends.append(batch_last if entry.index <= batch_last else entry.index + entry.group_left)
    return ends


def _find_key(entry: Entry) -> tuple[str, bytes] | None:
    """Return the key that an entry says it writes; None if it is about something else, or many."""
    if entry.owner != OWNER_KV:
        return None
    prefix, reader = read_prefix(entry.plain_payload())
    key = getattr(decode_kv(entry.entry_type & 0xFF, reader), "key", None)
    return None if key is None else (prefix.namespace, key)
