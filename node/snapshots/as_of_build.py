"""Building a state of the past on a thread, beside a loop that has heartbeats to send.

Python runs one thread at a time. A thread that computes lets others in every few milliseconds, but
each step of the loop would then wait for its turn. So the work is done in slices with pauses
between them, in which the loop has the processor to itself; ``Pace`` is asked after every piece of
a snapshot and after every entry. It also is where a build that nobody waits for any more ends.

Taking a large state apart is work as well, and would be done in one go when the last reference to
it goes: ``dispose`` does it in slices. docs/snapshots.md has what was measured.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.offline import LastRecords
from onelog.snapshot.past import PastState, start_past
from onelog.ual.entry import Entry
from onelog.ual.files import Files
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord

SLICE_S = 0.002
PAUSE_S = 0.001
DISPOSE_ITEMS = 512  # between two looks at the clock


class BuildCancelled(Exception):
    """Nobody waits for the state any more."""


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
    # The state to go on from; made from a snapshot if there is none. Also what was interrupted.
    state: PastState | None = None
    pace: Pace = field(default_factory=Pace)

    @property
    def needed_from(self) -> int:
        """The first entry that may be replayed."""
        if self.state is not None:
            return self.state.index + 1
        return self.snapshots[0].index + 1 if self.snapshots else 1

    def run(self) -> None:
        """Build the state, on any thread; ``state`` stands at ``index`` then."""
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
        """Yield committed entries from the live log, whose files stay readable to who has them."""
        pace = self.pace
        for entry in self.log.scan(first_index, last_index):
            pace()
            yield entry


def dispose(projections: Projections, pace: Pace) -> None:
    """Empty a state that nobody looks at any more: keys are what there may be millions of."""
    for store in projections.kv.stores.values():
        records = store.records
        while records:
            for _ in range(min(DISPOSE_ITEMS, len(records))):
                records.popitem()
            pace()
