"""Answers fetches of other replicas: bytes of kept snapshots and of applied ranges of the log.

Any member can answer, not only a leader: what is applied is the same everywhere. Files are read in
jobs, off the loop. Fetches are answered in order; beyond ``fetches_max`` they are dropped, and the
peer asks again. The last pieces are kept open, since a piece is fetched chunk by chunk. A snapshot
that is being shipped is kept open too, so it stays readable when newer ones replace it.
"""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.messages import Chunk, Fetch, Message, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.store import SnapshotStore
from onelog.ual.errors import CorruptFile
from onelog.ual.files import File, Files
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.exchange import Piece, cut_piece
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from onelog.ual.segments.sealed import DamagedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

PIECES_OPEN_MAX = 2


class ServedLog(Protocol):
    """The log of a shard, or the intact files of one that cannot be opened yet."""

    @property
    def first_index(self) -> int:
        """The first index that is kept."""

    @property
    def applied_index(self) -> int:
        """The last index that may be sent."""

    @property
    def segments(self) -> SegmentSet:
        """The segments."""

    @property
    def notes(self) -> ApplyNotes:
        """What apply has learned about entries that are not sealed."""


class Sender:
    """The fetches that wait for an answer."""

    def __init__(
        self,
        files: Files,
        log: ServedLog,
        snapshots: SnapshotStore | None,
        config: ShippingConfig,
        reply: Callable[[UUID, Message], None],
        term: Callable[[], int],
        damaged: Callable[[CorruptFile], None],
        needless_before: Callable[[], int],
    ) -> None:
        self.served_bytes = 0
        self._files = files
        self._log = log
        self._snapshots = snapshots
        self._config = config
        self._reply = reply
        self._term = term
        self._damaged = damaged
        self._needless_before = needless_before
        self._waiting: deque[tuple[UUID, Fetch]] = deque()
        self._pieces: OrderedDict[tuple[int, int], Piece] = OrderedDict()
        self._files_open: dict[int, tuple[File, int]] = {}  # snapshots by index, with their size

    def add(self, sender: UUID, fetch: Fetch) -> None:
        """Queue a fetch, unless too many wait."""
        if len(self._waiting) < self._config.fetches_max:
            self._waiting.append((sender, fetch))

    def open_snapshot(self, index: int) -> SnapshotReader | None:
        """Open a kept snapshot and keep it open; only headers are read."""
        assert self._snapshots is not None, "a leader has some"
        for record in self._snapshots.records:
            if record.index == index:
                path = self._snapshots.path(record)
                reader = SnapshotReader.open(self._files, path)
                self._files_open[index] = (self._files.open_read(path), record.size)
                return reader
        return None

    def keep_snapshots(self, indexes: set[int]) -> None:
        """Close snapshots that are not being sent any more."""
        for index in set(self._files_open) - indexes:
            del self._files_open[index]

    def next_job(self) -> ShipJob | None:
        """Return the job that answers the next fetch; fetches that need none are answered here."""
        while self._waiting:
            sender, fetch = self._waiting.popleft()
            if fetch.is_snapshot:
                job = self._read_snapshot(sender, fetch)
            else:
                job = self._read_range(sender, fetch)
            if job is not None:
                return job
        return None

    def _read_snapshot(self, sender: UUID, fetch: Fetch) -> ShipJob | None:
        opened = self._files_open.get(fetch.last_index)
        if opened is None:
            self._refuse(sender, fetch, "that snapshot is not kept")
            return None
        file, size = opened
        read: list[bytes] = []

        def done(error: Exception | None) -> None:
            if error is not None:
                self._refuse(sender, fetch, str(error))
                return
            index = fetch.last_index
            self._answer(sender, fetch, (index, index, size, size & 0xFFFFFFFF), read[0])

        return ShipJob(lambda: read.append(file.read(fetch.length, fetch.offset)), done)

    def _read_range(self, sender: UUID, fetch: Fetch) -> ShipJob | None:
        log = self._log
        if fetch.last_index > log.applied_index:
            self._refuse(sender, fetch, f"only {log.applied_index} is applied here")
            return None
        first_index = max(fetch.first_index, log.first_index)
        while first_index <= fetch.last_index:
            segment = log.segments.covering(first_index)
            if not isinstance(segment, DamagedSegment):
                break
            if segment.last_index >= self._needless_before():
                self._refuse(sender, fetch, f"damaged here: {segment.rule}")
                return None
            first_index = segment.last_index + 1
        else:
            facts = (fetch.last_index + 1, fetch.last_index, 0, 0)
            self._answer(sender, fetch, facts, b"")
            return None
        last_index = min(segment.last_index, fetch.last_index)
        return self._read_piece(sender, fetch, segment, first_index, last_index)

    def _read_piece(
        self, sender: UUID, fetch: Fetch, segment: Segment, first_index: int, last_index: int
    ) -> ShipJob:
        key, log = (first_index, last_index), self._log
        known = self._pieces.get(key)
        notes = SegmentNotes()
        if known is None and isinstance(segment, UnsealedSegment):
            notes = log.notes.select(first_index, last_index)
        read: list[tuple[Piece, bytes]] = []

        def act() -> None:
            piece = known or cut_piece(
                self._files, segment, first_index, last_index, fetch.proposal, notes
            )
            read.append((piece, bytes(piece.data[fetch.offset : fetch.offset + fetch.length])))

        def done(error: Exception | None) -> None:
            if error is not None:
                if isinstance(error, CorruptFile):
                    self._damaged(error)
                self._refuse(sender, fetch, str(error))
                return
            piece, data = read[0]
            self._pieces[key] = piece
            self._pieces.move_to_end(key)
            while len(self._pieces) > PIECES_OPEN_MAX:
                self._pieces.popitem(last=False)
            facts = (piece.first_index, piece.last_index, len(piece.data), piece.tag)
            self._answer(sender, fetch, facts, data)

        return ShipJob(act, done)

    def close_pieces(self) -> None:
        """Close the open pieces: no peer is fetching."""
        self._pieces.clear()

    def _answer(
        self, sender: UUID, fetch: Fetch, facts: tuple[int, int, int, int], data: bytes
    ) -> None:
        if not data and facts[2]:
            return  # asked for bytes past the end
        self.served_bytes += len(data)
        place = (fetch.is_snapshot, fetch.first_index, fetch.last_index, fetch.offset)
        self._reply(sender, Chunk(self._term(), *place, *facts, data))

    def _refuse(self, sender: UUID, fetch: Fetch, reason: str) -> None:
        place = (fetch.is_snapshot, fetch.first_index, fetch.last_index)
        self._reply(sender, Unavailable(self._term(), *place, reason))
