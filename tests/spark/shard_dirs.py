"""Data directories for tests of the source: random histories on real files, and what is in them."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import numpy as np

from onelog.projections.queue.commands import QueueCreate
from onelog.projections.queue.commands import encode_command as encode_queue
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.shard_state import Projections, build_projections
from onelog.spark.columns.block import Block
from onelog.spark.columns.selection import Selection
from onelog.spark.origin import Origin, Range
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from onelog.ual.segments.notes import IndexArray
from tests.snapshot.live import SMALL, LiveShard, Work
from tests.ual.shards import seal_closed

# A segment with some thousand entries: it can be cut in parts.
LARGE = LogConfig(
    ring_bytes=1 << 20,
    segment_bytes_max=1 << 20,
    segment_entries_max=3_000,
    unsynced_bytes_max=1 << 20,
    free_bytes_min=0,
)

# Of an entry that a reader sees: index, term, type, time and plain payload.
Row = tuple[int, int, int, int, bytes]


class Shard:
    """A shard that lives in a directory, and what a reader of it must see."""

    def __init__(self, path: Path, seed: int = 1, config: LogConfig = SMALL) -> None:
        self.path = path
        self.work = Work(seed)
        self.rng = Random(seed)
        self.live: LiveShard[Projections] = LiveShard(
            DiskFiles(), build_projections, data_dir=path, config=config
        )

    @property
    def segments(self) -> Path:
        return self.live.paths.segments

    @property
    def sealed_index(self) -> int:
        return self.live.log.segments.sealed_index

    @property
    def last_index(self) -> int:
        return self.live.log.last_index

    def write(self, groups: int) -> None:
        """Write, commit and apply random groups."""
        for _ in range(groups):
            self.live.do(self.work.group(self.last_index + 1))

    def write_much(self, entries: int) -> None:
        """Write random groups with few syncs, until this many more entries are there."""
        last = self.last_index + entries
        while self.last_index < last:
            for _ in range(20):
                self.live.write(self.work.group(self.last_index + 1), step_ns=1_000_000)
            self.live.log.sync()
            self.live.commit()

    def write_queues(self, names: Sequence[str]) -> None:
        """Create queues, with one message in each."""
        for name in names:
            create = QueueCreate(name, QueueConfig())
            self.live.do([encode_queue(create, "default")])
            message = Enqueue(self.last_index, b"body")
            self.live.do([encode_queue(message, "default")])

    def seal(self) -> None:
        """Seal what is closed."""
        while seal_closed(self.live.log):
            pass

    def expected(self, last_index: int, first_index: int = 1) -> list[Row]:
        """Return what may be seen: committed entries without those that apply refused."""
        segments = self.live.log.segments
        voids = {
            index
            for voids in (self._voids(), segments.notes.voids(1, last_index))
            for first, last in voids.tolist()
            for index in range(first, last + 1)
        }
        return [
            (entry.index, entry.term, entry.entry_type, entry.timestamp_ns, entry.plain_payload())
            for entry in segments.scan(max(first_index, segments.first_index), last_index)
            if entry.index not in voids
        ]

    def _voids(self) -> IndexArray:
        found = [getattr(part, "voids", None) for part in self.live.log.segments.segments]
        there = [voids for voids in found if voids is not None]
        return np.concatenate(there) if there else np.empty((0, 2), np.uint64)


def rows_of(blocks: Iterable[Block]) -> list[Row]:
    """Return the entries of blocks as plain rows."""
    found: list[Row] = []
    for block in blocks:
        for header, start, end in zip(block.headers, block.start, block.end, strict=True):
            payload = bytes(block.data[start:end])
            fields = ("index", "term", "entry_type", "timestamp_ns")
            index, term, kind, time_ns = (int(header[name]) for name in fields)
            found.append((index, term, kind, time_ns, payload))
    return found


def read_all(
    origin: Origin, selection: Selection | None = None, size_bytes: int = 64 << 20
) -> list[Row]:
    """Read everything up to a new cut of an origin."""
    selection = Selection() if selection is None else selection
    ranges = [Range(part.shard, part.first_index, part.last_index) for part in origin.cut().shards]
    found: list[Row] = []
    for split in origin.splits(ranges, selection, size_bytes):
        found += rows_of(origin.blocks(split, selection))
    return found
