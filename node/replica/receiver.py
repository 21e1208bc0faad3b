"""Fetches a snapshot and the log below it from the leader, to replace the state and log here.

There is one transfer at a time. The snapshot is fetched, verified and loaded into a fresh state,
then the entries up to it, piece by piece, all under temporary names. When everything is there and
verified, the install is one write of MANIFEST (ual/install.py), on the loop, and Raft continues
after the snapshot. Invariants:

* Nothing is replaced before everything is verified: checksums, the sequence of indexes, groups,
  terms and times, and that the loaded state has the same hash as the leader's.
* If the snapshot's last entry is applied here by then, or in the log under the same term, nothing
  is replaced: the transfer was not needed and is dropped.
* Sealed segments here are kept up to the first damaged one, if the received entries follow them.
  Unsealed ones are dropped: their entries are received again, with their streams and voids.
* After any failure the replica is as it was before, and tries again after a pause.

Files are written, read and verified in jobs, one at a time; the loop only sends fetches and counts.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.catch_up import ChunkOutcome, PieceFetch, Wanted
from onelog.cluster.raft.messages import Chunk, Message, Offer, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import SnapshotHeader, snapshot_name, temporary_name
from onelog.snapshot.loading import open_recorded
from onelog.snapshot.state import hash_text, load_state
from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, DiskFull
from onelog.ual.files import File, Files
from onelog.ual.install import Installation
from onelog.ual.log import Log
from onelog.ual.manifest import Base, SnapshotRecord
from onelog.ual.segments.check import Part, check_sealed
from onelog.ual.segments.format import SegmentHeader, received_name
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import SealedSegment

# A segment is far smaller: its offsets are 32-bit numbers, and its tables a fraction of it.
PIECE_SIZE_MAX = 8 << 30


class Phase(Enum):
    """How far a transfer has come."""

    SNAPSHOT = "snapshot"
    ENTRIES = "entries"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class ReceiverStatus:
    """A transfer, as operators see it."""

    source: UUID
    index: int
    phase: str
    done_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class LoadedState:
    """A snapshot that is durable under its name, and the state that was loaded from it."""

    record: SnapshotRecord
    header: SnapshotHeader
    state: Projections
    notes: ApplyNotes


@dataclass(slots=True, eq=False)
class Receipt:
    """One transfer."""

    source: UUID
    offer: Offer
    fetch: PieceFetch
    keep_through: int
    next_index: int
    next_proposal: int | None  # None: compaction has dropped some groups before it
    term: int = 0  # of the last entry so far
    timestamp_ns: int = 0
    phase: Phase = Phase.SNAPSHOT
    loaded: LoadedState | None = None
    received: list[SegmentHeader] = field(default_factory=list)
    file: File | None = None
    writes: list[tuple[int, bytes]] = field(default_factory=list)
    name: str = ""  # the final one of the snapshot
    is_working: bool = False
    pieces_bytes: int = 0  # of the pieces that are complete


class Receiver:
    """See the module."""

    def __init__(
        self,
        files: Files,
        paths: ShardPaths,
        shard: int,
        log: Log,
        config: ShippingConfig,
        send: Callable[[UUID, Message], None],
        now_s: Callable[[], float],
        created_s: Callable[[], int],
    ) -> None:
        self.current: Receipt | None = None
        self.failure = ""  # why the last transfer was given up
        self.failures = 0
        self._files = files
        self._paths = paths
        self._shard = shard
        self._log = log
        self._config = config
        self._send = send
        self._now_s = now_s
        self._created_s = created_s
        self._garbage: list[Path] = []
        self._pause_until_s = float("-inf")

    @property
    def is_ready(self) -> bool:
        """Whether everything is here and verified."""
        return self.current is not None and self.current.phase is Phase.READY

    @property
    def status(self) -> ReceiverStatus | None:
        """The transfer under way, if there is one, as operators see it."""
        receipt = self.current
        if receipt is None:
            return None
        done = receipt.pieces_bytes + receipt.fetch.received_bytes
        total = max(receipt.offer.size + receipt.offer.log_bytes, done)
        return ReceiverStatus(receipt.source, receipt.offer.index, receipt.phase.value, done, total)

    def offered(self, source: UUID, offer: Offer, term: int) -> None:
        """Begin to fetch what a leader offers, or continue."""
        receipt = self.current
        if receipt is not None:
            ours = receipt.offer
            receipt_facts = (ours.index, ours.snapshot_term, ours.size, ours.state_hash)
            if receipt_facts == (offer.index, offer.snapshot_term, offer.size, offer.state_hash):
                # The install confirms the newest offer.
                receipt.source, receipt.offer = source, offer
                return
            self.give_up("another snapshot is offered")
            return
        if self._now_s() < self._pause_until_s or self._garbage:
            return
        # A damaged segment is fetched again, with everything after it.
        segments = self._log.segments.segments
        missing = next(each for each in segments if not isinstance(each, SealedSegment))
        wanted = Wanted(True, offer.index, offer.index, offer.proposal)
        self.current = Receipt(
            source,
            offer,
            PieceFetch(wanted, self._config, self._now_s()),
            keep_through=0 if missing is segments[0] else missing.first_index - 1,
            next_index=missing.first_index,
            next_proposal=missing.first_proposal,
            name=snapshot_name(offer.index, self._created_s()),
        )
        self.advance(term)

    def on_chunk(self, sender: UUID, chunk: Chunk) -> bool:
        """Keep the bytes of a chunk; return whether they were wanted."""
        receipt = self.current
        if receipt is None or sender != receipt.source or not receipt.fetch.is_for(chunk):
            return False
        taken = receipt.fetch.take(chunk, self._now_s())
        if taken is ChunkOutcome.CHANGED:
            self.give_up("the leader has another file now")
        if taken is not ChunkOutcome.KEPT:
            return False
        size_max = receipt.offer.size if chunk.is_snapshot else PIECE_SIZE_MAX
        if chunk.size > size_max:
            self.give_up(f"{chunk.size} bytes, limit {size_max}")
            return False
        if chunk.data:
            receipt.writes.append((chunk.offset, chunk.data))
        return True

    def on_unavailable(self, sender: UUID, answer: Unavailable) -> bool:
        """Give up if the leader cannot send this; return whether it answered this transfer."""
        receipt = self.current
        if receipt is None or sender != receipt.source:
            return False
        wanted = receipt.fetch.wanted
        if (answer.is_snapshot, answer.first_index) != (wanted.is_snapshot, wanted.first_index):
            return False
        self.give_up(f"the leader says: {answer.reason}")
        return True

    def advance(self, term: int) -> None:
        """Send the fetches that are due; give up if there is no progress."""
        receipt = self.current
        if receipt is None or receipt.phase is Phase.READY:
            return
        now_s = self._now_s()
        if receipt.fetch.is_complete or receipt.is_working:
            receipt.fetch.last_s = now_s  # the delay is on this side
        if now_s - receipt.fetch.last_s > self._config.give_up_s:
            self.give_up("no bytes for too long")
            return
        for fetch in receipt.fetch.due(term, now_s, len(receipt.writes)):
            self._send(receipt.source, fetch)

    def give_up(self, why: str) -> None:
        """Drop the transfer; its files are removed before the next one begins."""
        receipt = self.current
        assert receipt is not None
        self.current = None
        self.failure = why
        self.failures += 1
        self._pause_until_s = self._now_s() + self._config.pause_s
        self._garbage = [self._piece_path(header.first_index) for header in receipt.received]
        self._garbage.append(self._find_path(receipt))
        self._garbage.append(self._paths.snapshots / receipt.name)

    def installed(self) -> None:
        """Note that the transfer is complete and its files are in their places."""
        self.current = None

    def installation(self) -> tuple[Installation, LoadedState]:
        """Return what to install."""
        receipt = self.current
        assert receipt is not None
        loaded = receipt.loaded
        assert loaded is not None
        header = loaded.header
        base = Base(header.index, header.proposal, header.term, header.timestamp_ns)
        new = Installation(base, loaded.record, receipt.keep_through, tuple(receipt.received))
        return new, loaded

    def next_job(self) -> ShipJob | None:
        """Return the next job on files, if there is one and none runs."""
        receipt = self.current
        if receipt is None:
            return self._cleaning() if self._garbage else None
        if receipt.is_working or receipt.phase is Phase.READY:
            return None
        if receipt.writes:
            return self._job(receipt, self._write(receipt), lambda: None)
        if receipt.fetch.is_complete:
            if receipt.phase is Phase.SNAPSHOT:
                return self._loading(receipt)
            return self._checking(receipt)
        return None

    # Jobs

    def _job(self, receipt: Receipt, act: Callable[[], None], done: Callable[[], None]) -> ShipJob:
        def finish(error: Exception | None) -> None:
            receipt.is_working = False
            if self.current is not receipt:
                return
            if isinstance(error, CorruptFile):
                self._refuse(receipt, str(error))
            elif error is not None:
                self.give_up(str(error))
            else:
                done()

        receipt.is_working = True
        return ShipJob(act, finish)

    def _cleaning(self) -> ShipJob:
        garbage, self._garbage = self._garbage, []

        def act() -> None:
            for path in garbage:
                if self._files.exists(path):
                    self._files.remove(path)

        # What cannot be removed now is overwritten, or removed when the shard is opened.
        return ShipJob(act, lambda _error: None)

    def _write(self, receipt: Receipt) -> Callable[[], None]:
        writes, receipt.writes = receipt.writes, []
        path, size = self._find_path(receipt), receipt.fetch.size or 0
        free_min = self._log.config.free_bytes_min

        def act() -> None:
            if receipt.file is None:
                if size > self._files.free_bytes(path.parent) - free_min:
                    raise DiskFull(f"{size} bytes are to be written in {path.parent}")
                with suppress(FileNotFoundError):
                    self._files.remove(path)
                receipt.file = self._files.open(path, create=True)
            for offset, data in writes:
                receipt.file.write(data, offset)

        return act

    def _loading(self, receipt: Receipt) -> ShipJob:
        """Return the job that verifies the snapshot, loads it and gives it its final name."""
        offer, files = receipt.offer, self._files
        temporary = self._find_path(receipt)
        name = receipt.name
        state_hash = f"{offer.state_hash:016x}"
        record = SnapshotRecord(name, offer.index, offer.snapshot_term, offer.size, state_hash)
        loaded: list[LoadedState] = []

        def act() -> None:
            assert receipt.file is not None
            receipt.file.sync()
            reader = open_recorded(files, temporary, self._shard, record)
            if reader.header.proposal != offer.proposal:
                raise CorruptSnapshot(str(temporary), f"proposal {reader.header.proposal}", 0)
            reader.verify()
            notes = ApplyNotes()
            state = build_projections(notes)
            load_state(reader, state.router)
            found = hash_text(state.router)
            if found != state_hash:
                rule = f"state hash {found}, the leader says {state_hash}"
                raise CorruptSnapshot(str(temporary), rule)
            files.rename(temporary, temporary.with_name(name))
            files.sync_directory(temporary.parent)
            loaded.append(LoadedState(record, reader.header, state, notes))

        def done() -> None:
            receipt.loaded = loaded[0]
            receipt.phase = Phase.ENTRIES
            self._next_piece(receipt)

        return self._job(receipt, act, done)

    def _checking(self, receipt: Receipt) -> ShipJob:
        """Return the job that verifies a piece as a sealed file; it must follow the last piece."""
        files, path = self._files, self._find_path(receipt)
        found: list[tuple[Part, SegmentHeader]] = []

        def act() -> None:
            if receipt.file is None:
                return  # nothing is left of the range
            receipt.file.sync()
            view = files.map(path)
            part, problems = check_sealed(path, view, self._shard)
            if problems or part is None:
                raise CorruptFile(str(path), problems[0].rule, problems[0].offset)
            found.append((part, SegmentHeader.decode(str(path), bytes(view[:64]))))

        def done() -> None:
            if not found:
                receipt.keep_through, receipt.received = 0, []
                receipt.phase = Phase.READY
                return
            why = self._add(receipt, *found[0])
            if why is not None:
                self._refuse(receipt, f"entries from {receipt.next_index} on: {why}")
            elif receipt.phase is not Phase.READY:
                self._next_piece(receipt)

        return self._job(receipt, act, done)

    def _add(self, receipt: Receipt, part: Part, header: SegmentHeader) -> str | None:
        """Add a verified piece to the transfer, or return why it does not belong there."""
        fetch, offer, loaded = receipt.fetch, receipt.offer, receipt.loaded
        assert loaded is not None
        if (part.first_index, part.last_index) != (fetch.piece_first, fetch.piece_last):
            return f"announced as {fetch.piece_first} to {fetch.piece_last}"
        if part.first_index > receipt.next_index:
            # The leader has dropped the entries in between, so nothing before them is needed.
            receipt.keep_through, receipt.received = 0, []
            receipt.next_proposal = None
        elif part.first_index < receipt.next_index:
            return f"begins at {part.first_index}"
        if receipt.next_proposal not in (None, part.first_proposal):
            return f"begins with proposal {part.first_proposal}, not {receipt.next_proposal}"
        if part.last_index > offer.index:
            return f"ends behind {offer.index}"
        if part.terms is not None:
            if not receipt.term <= part.terms[0] <= part.terms[1] <= offer.snapshot_term:
                return f"terms {part.terms} after {receipt.term}"
            receipt.term = part.terms[1]
        if part.timestamps_ns is not None:
            first_ns, last_ns = part.timestamps_ns
            if not receipt.timestamp_ns <= first_ns <= last_ns <= loaded.header.timestamp_ns:
                return f"times {part.timestamps_ns} after {receipt.timestamp_ns}"
            receipt.timestamp_ns = last_ns
        receipt.received.append(header)
        receipt.next_index = part.last_index + 1
        count = part.proposal_count
        receipt.next_proposal = None if count is None else part.first_proposal + count
        if part.last_index == offer.index:
            if receipt.next_proposal not in (None, offer.proposal + 1):
                return f"ends with proposal {receipt.next_proposal}, not {offer.proposal}"
            receipt.phase = Phase.READY
        return None

    # Inside

    def _refuse(self, receipt: Receipt, why: str) -> None:
        """Give up because of what the leader sent, and report it: its disk may be failing."""
        wanted = receipt.fetch.wanted
        place = (wanted.is_snapshot, wanted.first_index, wanted.last_index)
        self._send(receipt.source, Unavailable(receipt.offer.term, *place, why))
        self.give_up(why)

    def _next_piece(self, receipt: Receipt) -> None:
        receipt.pieces_bytes += receipt.fetch.received_bytes
        wanted = Wanted(
            False,
            receipt.next_index,
            receipt.offer.index,
            # Only a piece that begins within a segment needs it, and then it is known.
            receipt.next_proposal or 1,
        )
        receipt.fetch = PieceFetch(wanted, self._config, self._now_s())
        receipt.file = None

    def _piece_path(self, first_index: int) -> Path:
        return self._paths.segments / received_name(first_index)

    def _find_path(self, receipt: Receipt) -> Path:
        """Return where the piece that is being fetched is written."""
        if receipt.phase is Phase.SNAPSHOT:
            name = temporary_name(snapshot_name(receipt.offer.index, 0))
            return self._paths.snapshots / name
        return self._piece_path(receipt.fetch.piece_first or receipt.next_index)
