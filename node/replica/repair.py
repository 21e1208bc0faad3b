"""Finding sealed segments that have rotted, and replacing them by a peer's copy, while serving.

A segment is found damaged by whoever reads it, or by the scrub, which reads every sealed file again
and again, a bounded number of bytes a second. From then on it is set aside: named in the status,
and nothing of it is served (ual/segments/sealed.py). Its range is fetched from one member after
the other, in that member's own pieces. They are verified one by one, against each other and against
the neighbours, joined into one sealed file and renamed over the damaged one: a crash leaves the one
or the other. Invariants:

* Only applied entries are sealed, and those are the same on every replica. A peer may have dropped
  some by compaction; then so does the copy, unless Raft still needs the range whole.
* Applying goes on meanwhile: it never reads a sealed segment.
* While no member can give the range, it stays named and ``is_alarming`` says so; every
  ``give_up_s`` they are asked again.
* A log is only cut at its start, and only where the state refers to nothing any more. So what one
  member has dropped, nobody needs: the damage is no loss then, and keeps nobody from trimming or
  from being sent the rest.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from crc32c import crc32c

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.catch_up import ChunkOutcome, PieceFetch, Wanted
from onelog.cluster.raft.messages import Chunk, Message, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.ual.errors import CorruptFile, UalError
from onelog.ual.files import File, Files, sync_new_name
from onelog.ual.log import Log
from onelog.ual.segments.check import check_sealed
from onelog.ual.segments.exchange import Joined, join_pieces, write_joined
from onelog.ual.segments.format import FOOTER_FILE_CRC_OFFSET, FOOTER_SIZE, compacting_name
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment

if TYPE_CHECKING:
    from onelog.cluster.raft.member import RaftMember

_log = logging.getLogger("onelog.node.mending")

SCRUB_STEP_BYTES = 1 << 20
MENDED_KEPT = 16
LOOK_S = 1.0
# The pieces of a range are in memory until they are joined, as a segment is while it is sealed.
RANGE_BYTES_MAX = 1 << 30


@dataclass(slots=True)
class Damage:
    """A sealed segment that was set aside."""

    path: str
    first_index: int
    last_index: int
    rule: str
    found_by: str
    refusals: dict[UUID, str] = field(default_factory=dict)  # who cannot give it, and why
    is_alarming: bool = False  # nobody can


@dataclass(slots=True, eq=False)
class _Scrub:
    segment: SealedSegment
    file: File | None = None
    offset: int = 0
    crc: int = 0


@dataclass(slots=True, eq=False)
class _Repair:
    """One attempt with one member."""

    segment: DamagedSegment
    source: UUID
    fetch: PieceFetch
    chunks: dict[int, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    next_index: int = 0
    is_complete: bool = False
    is_working: bool = False


class Mending:
    """See the module's text."""

    def __init__(
        self,
        files: Files,
        shard: int,
        log: Log,
        member: "RaftMember",
        config: ShippingConfig,
        send: Callable[[UUID, Message], None],
        now_s: Callable[[], float],
    ) -> None:
        self.damages: dict[int, Damage] = {}  # by first index
        self.needless_before = 0  # a member has dropped everything below
        self.repaired = 0
        self.mended: deque[Damage] = deque(maxlen=MENDED_KEPT)  # what was repaired last
        self.scrubbed_bytes = 0
        self.scrubs = 0  # looks through all segments that are complete
        self._files = files
        self._shard = shard
        self._log = log
        self._member = member
        self._config = config
        self._send = send
        self._now_s = now_s
        self._scrub: _Scrub | None = None
        self._scrub_from = 0  # the next segment begins here or later
        self._scrub_at_s = now_s()
        self._repair: _Repair | None = None
        self._repair_at_s = now_s()
        for segment in log.segments.segments:
            if isinstance(segment, DamagedSegment):
                self._note(segment, "opening")

    # Finding

    def note(self, error: CorruptFile, found_by: str) -> None:
        """Set the segment aside whose file broke a rule; other files are none of this."""
        for segment in self._log.segments.segments:
            if isinstance(segment, SealedSegment) and str(segment.path) == error.path:
                aside = DamagedSegment(segment.path, segment.header, error.rule, error.offset)
                self._log.segments = self._log.segments.with_replaced(segment, aside)
                self._note(aside, found_by)

    def _note(self, segment: DamagedSegment, found_by: str) -> None:
        damage = Damage(
            str(segment.path), segment.first_index, segment.last_index, segment.rule, found_by
        )
        self.damages[segment.first_index] = damage
        _log.error("damaged: %s", damage)

    def _scrub_job(self) -> ShipJob | None:
        """Return the next step of the scrub, if the time has come for it."""
        now_s, config = self._now_s(), self._config
        if now_s < self._scrub_at_s:
            return None
        scrub = self._scrub
        if scrub is None or scrub.segment not in self._log.segments.segments:
            segment = next(
                (
                    each
                    for each in self._log.segments.segments
                    if isinstance(each, SealedSegment) and each.first_index >= self._scrub_from
                ),
                None,
            )
            if segment is None:
                self._scrub_from, self._scrub = 0, None
                self._scrub_at_s = now_s + config.scrub_pause_s
                self.scrubs += 1
                return None
            self._scrub_from = segment.first_index + 1
            scrub = self._scrub = _Scrub(segment)
        size = min(SCRUB_STEP_BYTES, scrub.segment.size_bytes - scrub.offset)
        self._scrub_at_s = now_s + size / config.scrub_bytes_per_s

        def done(error: Exception | None) -> None:
            self.scrubbed_bytes += size
            if isinstance(error, CorruptFile):
                self.note(error, "scrub")
            if error is not None or scrub.offset >= scrub.segment.size_bytes:
                self._scrub = None

        return ShipJob(lambda: _scrub_step(self._files, scrub, size, self._shard), done)

    # Repair

    def advance(self) -> None:
        """Ask for what is missing; try the next member where one does not answer."""
        now_s = self._now_s()
        repair = self._repair
        if repair is None:
            if self.damages and now_s >= self._repair_at_s:
                self._begin(now_s)
            return
        if repair.segment not in self._log.segments.segments:
            self._repair = None  # trimmed meanwhile
        elif now_s - repair.fetch.last_s > self._config.give_up_s / 2 and not repair.is_working:
            self._refused("no answer")
        elif not repair.is_complete and not repair.is_working:
            for fetch in repair.fetch.due(self._member.term, now_s, 0):
                self._send(repair.source, fetch)

    def _begin(self, now_s: float) -> None:
        present = {
            each.first_index: each
            for each in self._log.segments.segments
            if isinstance(each, DamagedSegment)
        }
        self.damages = {at: each for at, each in self.damages.items() if at in present}
        members = [each for each in self._member.membership.members if each != self._member.self_id]
        for first_index, damage in self.damages.items():
            for source in members:
                if source not in damage.refusals:
                    segment = present[first_index]
                    fetch = self._fetch_from(segment, segment.first_index, now_s)
                    self._repair = _Repair(segment, source, fetch, next_index=first_index)
                    return
            damage.is_alarming = damage.last_index >= self.needless_before
        # Nobody could give anything: ask all of them again later.
        for damage in self.damages.values():
            damage.refusals = {}
        self._repair_at_s = now_s + self._config.give_up_s

    def _fetch_from(self, segment: DamagedSegment, index: int, now_s: float) -> PieceFetch:
        proposal = segment.first_proposal if index == segment.first_index else 1
        wanted = Wanted(False, index, segment.last_index, proposal)
        return PieceFetch(wanted, self._config, now_s)

    def on_chunk(self, sender: UUID, chunk: Chunk) -> bool:
        """Take some bytes; tell whether they were wanted."""
        repair = self._repair
        if repair is None or sender != repair.source or repair.is_complete or repair.is_working:
            return False
        taken = repair.fetch.take(chunk, self._now_s())
        if taken is ChunkOutcome.CHANGED:
            self._refused("its file has changed meanwhile")
        if taken is not ChunkOutcome.KEPT:
            return False
        fetch = repair.fetch
        if fetch.piece_first > repair.segment.last_index:
            self.needless_before = max(self.needless_before, repair.segment.last_index + 1)
            self._refused("dropped there: nothing needs it")
            return False
        in_memory = sum(map(len, repair.pieces)) + chunk.size
        if fetch.piece_first != repair.next_index or not chunk.size or in_memory > RANGE_BYTES_MAX:
            self._refused(f"it has {fetch.piece_first} to {fetch.piece_last}, {chunk.size} bytes")
            return False
        repair.chunks[chunk.offset] = chunk.data
        if fetch.is_complete:
            repair.pieces.append(b"".join(repair.chunks[at] for at in sorted(repair.chunks)))
            repair.chunks = {}
            repair.next_index = fetch.piece_last + 1
            repair.is_complete = fetch.piece_last >= repair.segment.last_index
            if not repair.is_complete:
                repair.fetch = self._fetch_from(repair.segment, repair.next_index, self._now_s())
        self.advance()
        return True

    def on_unavailable(self, sender: UUID, answer: Unavailable) -> bool:
        """Try the next member; tell whether it was about this."""
        repair = self._repair
        if repair is None or sender != repair.source or answer.is_snapshot:
            return False
        wanted = repair.fetch.wanted
        if (answer.first_index, answer.last_index) != (wanted.first_index, wanted.last_index):
            return False
        self._refused(answer.reason)
        return True

    def look_at(self, index: int) -> None:
        """Scrub the segment of an index next: a member reports it as damaged."""
        for segment in self._log.segments.segments:
            if segment.first_index <= index <= segment.last_index:
                self._scrub, self._scrub_from = None, segment.first_index
                # Soon, and no oftener: a member may say so as often as it likes.
                self._scrub_at_s = min(self._scrub_at_s, self._now_s() + LOOK_S)

    def _refused(self, why: str) -> None:
        repair, self._repair = self._repair, None
        assert repair is not None
        damage = self.damages.get(repair.segment.first_index)
        if damage is not None:
            damage.refusals[repair.source] = why

    def next_job(self) -> ShipJob | None:
        """Return what has to be done to files now."""
        repair = self._repair
        if repair is None or not repair.is_complete or repair.is_working:
            return self._scrub_job()
        repair.is_working = True
        joined: list[Joined] = []

        def act() -> None:
            joined.append(join_pieces(repair.segment, repair.pieces, self._shard))
            self._check(repair.segment, joined[0])
            write_joined(self._files, repair.segment, joined[0])

        def done(error: Exception | None) -> None:
            if self._repair is not repair:
                return
            if error is not None:
                self._refused(str(error))
            elif repair.segment in self._log.segments.segments:
                self._install(repair.segment)

        return ShipJob(act, done)

    def _check(self, damaged: DamagedSegment, joined: Joined) -> None:
        """Compare with what is known here about the range; raise ``CorruptFile``."""
        segments = self._log.segments.segments
        at = segments.index(damaged)
        after, header = segments[at + 1], joined.header
        before_ns = segments[at - 1].last_timestamp_ns if at else 0
        name = str(damaged.path)
        if after.entry_count and header.last_timestamp_ns > after.first_timestamp_ns:
            raise CorruptFile(name, f"times up to {header.last_timestamp_ns}, later than the next")
        if header.first_timestamp_ns < before_ns:
            raise CorruptFile(name, f"times from {header.first_timestamp_ns}, before {before_ns}")
        if joined.term_last > self._log.last_term:
            raise CorruptFile(name, f"term {joined.term_last}, here is {self._log.last_term}")
        count = after.first_proposal - damaged.first_proposal
        if joined.proposal_count is None:
            if after.first_proposal > self._member.journal.start:
                raise CorruptFile(name, "compacted there, and Raft needs it whole")
        elif joined.proposal_count != count:
            raise CorruptFile(name, f"{joined.proposal_count} proposals, {count} belong here")

    def _install(self, damaged: DamagedSegment) -> None:
        """Replace the damaged file by the copy, durably."""
        files, path = self._files, damaged.path
        with self._log.guard.fatal_errors("replace a damaged segment"):
            files.rename(path.with_name(compacting_name(damaged.first_index)), path)
            sync_new_name(files, path.parent)
            segment = SealedSegment.open(files, path)
        self._log.segments = self._log.segments.with_replaced(damaged, segment)
        damage = self.damages.pop(damaged.first_index, None)
        if damage is not None:
            self.mended.append(damage)
            _log.warning("repaired %s from %s", damage.path, self._repair and self._repair.source)
        self._repair = None
        self.repaired += 1


def _scrub_step(files: Files, scrub: _Scrub, size: int, shard: int) -> None:
    """Read some bytes; at the end of the file compare its checksum and its footer."""
    segment = scrub.segment
    name = str(segment.path)
    covered = segment.size_bytes - FOOTER_SIZE + FOOTER_FILE_CRC_OFFSET
    try:
        if scrub.file is None:
            scrub.file = files.open_read(segment.path)
        data = scrub.file.read(size, scrub.offset)
    except FileNotFoundError:
        return  # trimmed or compacted meanwhile
    except OSError as error:
        if error.errno == errno.EIO:
            raise CorruptFile(name, "the disk cannot read it", scrub.offset) from error
        raise
    if len(data) != size:
        raise CorruptFile(name, "the file is shorter than it was", scrub.offset + len(data))
    scrub.crc = crc32c(data[: max(covered - scrub.offset, 0)], scrub.crc)
    scrub.offset += size
    if scrub.offset < segment.size_bytes:
        return
    footer = scrub.file.read(FOOTER_SIZE, segment.size_bytes - FOOTER_SIZE)
    if scrub.crc == segment.footer.file_crc and footer == segment.footer.encode():
        return
    rule, offset = "checksum of the file", None
    try:
        _, problems = check_sealed(segment.path, files.map(segment.path), shard)
        if problems:
            rule, offset = problems[0].rule, problems[0].offset
    except (OSError, UalError):
        pass
    raise CorruptFile(name, rule, offset)
