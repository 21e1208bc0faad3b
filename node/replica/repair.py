"""Finds damaged sealed segments and replaces them by a peer's copy, while the replica serves.

Damage is found by any read (``Shipping.tick`` takes what readers met), or by the scrub, which reads
all sealed files over and over, at a bounded rate. A damaged segment is set aside: the status lists
it, and of its file only entries whose own checksums hold are served (ual/segments/chain.py). A
survey on a thread finds out which do not. Its range is fetched from one member after the other, in
that member's own pieces. These are verified one by one, against each other and against the
neighbours, joined into one sealed file and renamed over the damaged one: a crash leaves one or the
other. Invariants:

* Only applied entries are sealed, and those are the same on every replica. A peer may have dropped
  some by compaction; the copy then lacks them too, unless Raft still needs the range whole.
* Applying continues meanwhile: it never reads a sealed segment.
* While no member has the range, the damage stays listed as ``is_alarming``, and all members are
  asked again every ``give_up_s``. New damage does not wait for that.
* ``unreadable`` is what of the log cannot be read here now. It is a fact about this node's disk and
  never a part of the state: a leader passes over such messages by naming their entries in the lease
  (node/services/queue_operations.py), so apply does the same everywhere.
* Entries are dropped only from the start of a log, and only if the state does not refer to them. So
  nobody needs what a member has dropped: such damage is no loss, and prevents neither trimming nor
  shipping the rest.
"""

import errno
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from crc32c import crc32c

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.catch_up import ChunkOutcome, PieceFetch, Wanted
from onelog.cluster.raft.messages import Chunk, Message, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.ual.entry import Unreadable
from onelog.ual.errors import CorruptFile, EntriesDamaged, UalError
from onelog.ual.files import File, Files, sync_new_name
from onelog.ual.log import WriteGuard
from onelog.ual.segments.chain import SegmentSet
from onelog.ual.segments.check import check_sealed
from onelog.ual.segments.exchange import Joined, compare_intact, join_pieces, write_joined
from onelog.ual.segments.format import FOOTER_FILE_CRC_OFFSET, FOOTER_SIZE, compacting_name
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

_log = logging.getLogger("onelog.node.mending")

SCRUB_STEP_BYTES = 1 << 20
MENDED_KEPT = 16
SCRUB_SOON_S = 1.0
# The pieces of a range are in memory until they are joined, as a segment is while it is sealed.
RANGE_BYTES_MAX = 1 << 30
# What is remembered of one segment; beyond it, everything up to the last one counts as unreadable.
UNREADABLE_MAX = 256


@dataclass(slots=True)
class Damage:
    """A sealed segment that was set aside."""

    path: str
    first_index: int
    last_index: int
    rule: str
    found_by: str
    refusals: dict[UUID, str] = field(default_factory=dict)  # why members have no copy
    refused_with: tuple[tuple[UUID, str], ...] = ()  # likewise, when all were asked
    is_refused: bool = False  # all members were asked, and none has given a copy
    is_alarming: bool = False  # likewise, and it is needed
    retry_at_s: float = 0.0  # when members are asked, or asked again
    # Its unreadable entries: those that readers met, until the survey has found all.
    unreadable: tuple[Unreadable, ...] = ()
    is_surveyed: bool = False

    def describe(self) -> str:
        """Return what is wrong and what is done about it, for people."""
        where = "no member can give a copy" if self.is_refused else "being repaired"
        entries = f"entries {self.first_index} to {self.last_index}"
        return f"{self.path}, {entries}: {self.rule}; {where}"


@dataclass(slots=True, eq=False)
class _Scrub:
    segment: SealedSegment
    file: File | None = None
    offset: int = 0
    crc: int = 0


@dataclass(slots=True, eq=False)
class _Attempt:
    """One attempt to get a copy from one member."""

    segment: DamagedSegment
    source: UUID
    fetch: PieceFetch
    chunks: dict[int, bytes] = field(default_factory=dict)
    pieces: list[bytes] = field(default_factory=list)
    next_index: int = 0
    is_complete: bool = False
    is_working: bool = False


class RepairedLog(Protocol):
    """The log of a shard, or what there is of one that cannot be opened yet."""

    segments: SegmentSet
    last_term: int
    guard: WriteGuard


class Seat(Protocol):
    """The place of a replica in its group, as its repairs see it."""

    @property
    def term(self) -> int:
        """The term of messages; 0 outside of Raft."""

    @property
    def raft_start(self) -> int:
        """The first proposal that Raft needs whole."""

    @property
    def ask_again_s(self) -> float:
        """How long to wait when all members were asked, and none has a copy."""

    def rank_members(self) -> list[UUID]:
        """Return the members to ask, those first that are likely to answer."""


class Repair:
    """See the module."""

    def __init__(
        self,
        files: Files,
        shard: int,
        log: RepairedLog,
        seat: Seat,
        config: ShippingConfig,
        send: Callable[[UUID, Message], None],
        now_s: Callable[[], float],
    ) -> None:
        self.damages: dict[int, Damage] = {}  # by first index
        self.needless_before = 0  # a member has dropped everything before this index
        self.unreadable: tuple[Unreadable, ...] = ()  # of all damages, in order
        # Called when ``unreadable`` may have changed, or will not be repaired soon.
        self.listeners: list[Callable[[], None]] = []
        self.met = 0  # how often a reader came upon damage
        self.found = 0  # segments that were set aside
        self.repaired = 0
        self.mended: deque[Damage] = deque(maxlen=MENDED_KEPT)  # what was repaired last
        self.scrubbed_bytes = 0
        self.scrubs = 0  # complete passes over all segments
        self._files = files
        self._shard = shard
        self._log = log
        self._seat = seat
        self._config = config
        self._send = send
        self._now_s = now_s
        self._scrub: _Scrub | None = None
        self._scrub_from = 0  # the next segment begins here or later
        self._scrub_at_s = now_s()
        self._repair: _Attempt | None = None
        self._surveying: Damage | None = None
        for segment in log.segments.segments:
            # Without a number it is not known what to fetch: see ``survey_damage``.
            if isinstance(segment, DamagedSegment) and segment.first_proposal:
                self._note(segment, "opening")

    # Finding

    def take_met(self) -> None:
        """Set aside what readers have met since the last time."""
        met = self._log.segments.met
        while met:
            self.met += 1
            self.note(met.popleft(), "reading")

    def note(self, error: CorruptFile, found_by: str) -> None:
        """Set aside the sealed segment whose file is damaged.

        One that is not sealed is listed only: what it is sealed from is read back and verified.
        Errors of other files are ignored.
        """
        for segment in self._log.segments.segments:
            if str(segment.path) != error.path:
                continue
            if isinstance(segment, SealedSegment):
                aside = DamagedSegment(
                    segment.path, segment.header, error.rule, error.offset, segment
                )
                self._log.segments = self._log.segments.with_replaced(segment, aside)
                self._note(aside, found_by)
            elif isinstance(segment, UnsealedSegment) and segment.first_index not in self.damages:
                self._note_unsealed(segment, error, found_by)
            damage = self.damages.get(segment.first_index)
            if isinstance(error, EntriesDamaged) and damage and not damage.is_surveyed:
                entries = Unreadable(error.first_index, error.last_index)
                self._note_unreadable(damage, {*damage.unreadable, entries})

    def _note(self, segment: DamagedSegment, found_by: str) -> None:
        first_index, last_index = segment.first_index, segment.last_index
        damage = Damage(str(segment.path), first_index, last_index, segment.rule, found_by)
        self.damages[first_index] = damage
        self.found += 1
        _log.error("damaged: %s", damage)
        if segment.opened is None:
            damage.is_surveyed = True
            self._note_unreadable(damage, [Unreadable(first_index, last_index)])

    def _note_unsealed(self, segment: UnsealedSegment, error: CorruptFile, found_by: str) -> None:
        damage = Damage(
            str(segment.path), segment.first_index, segment.last_index, error.rule, found_by
        )
        damage.is_refused = damage.is_alarming = True
        damage.retry_at_s = float("inf")
        self.damages[segment.first_index] = damage
        self.found += 1
        _log.error("damaged, and not sealed yet: %s", damage)

    def _note_unreadable(self, damage: Damage, entries: Collection[Unreadable]) -> None:
        found = sorted(entries)
        if len(found) > UNREADABLE_MAX:
            rest = Unreadable(found[UNREADABLE_MAX - 1].first_index, found[-1].last_index)
            found[UNREADABLE_MAX - 1 :] = [rest]
        damage.unreadable = tuple(found)
        self._changed()

    def _changed(self) -> None:
        """Tell those who pass over what cannot be read, or wait for it, that it is another."""
        by_place = sorted(self.damages.items())
        self.unreadable = tuple(each for _, damage in by_place for each in damage.unreadable)
        self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener()

    def holds(self, entries: Iterable[Unreadable]) -> bool:
        """Tell whether some of these are in a segment that is damaged now."""
        return any(self._find_damages(entries))

    def is_pending(self, entries: Iterable[Unreadable]) -> bool:
        """Tell whether some of these are in a damaged segment of which a copy may come soon."""
        return any(not each.is_refused for each in self._find_damages(entries))

    def _find_damages(self, entries: Iterable[Unreadable]) -> Iterator[Damage]:
        for first, last in entries:
            for damage in self.damages.values():
                if first <= damage.last_index and last >= damage.first_index:
                    yield damage

    def _survey_job(self) -> ShipJob | None:
        """Return the survey of a damaged segment that had none yet."""
        if self._surveying is not None:
            return None
        for segment in self._log.segments.segments:
            damage = self.damages.get(segment.first_index)
            if damage and not damage.is_surveyed and isinstance(segment, DamagedSegment):
                assert segment.opened is not None, "surveyed when it was noted"
                return self._survey(damage, segment.opened)
        return None

    def _survey(self, damage: Damage, opened: SealedSegment) -> ShipJob:
        """Return the job that finds out which entries of a damaged file cannot be read."""
        self._surveying, found = damage, list[Unreadable]()

        def done(error: Exception | None) -> None:
            self._surveying, damage.is_surveyed = None, True
            if isinstance(error, CorruptFile):  # of a table: no entry is found any more
                found[:] = [Unreadable(damage.first_index, damage.last_index)]
            if self.damages.get(damage.first_index) is damage:
                self._note_unreadable(damage, found)
                _log.error("unreadable in %s: %s", damage.path, list(map(tuple, found)))

        return ShipJob(lambda: found.extend(opened.find_unreadable()), done)

    def _scrub_job(self) -> ShipJob | None:
        """Return the next step of the scrub, if it is due."""
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

    @property
    def is_asking(self) -> bool:
        """Whether a member was asked for a copy, and an answer may come."""
        return self._repair is not None

    def advance(self) -> None:
        """Send the fetches that are due; try the next member if one does not answer."""
        now_s = self._now_s()
        repair = self._repair
        self._forget_gone()
        if repair is None:
            if any(now_s >= each.retry_at_s for each in self.damages.values()):
                self._begin(now_s)
            return
        if repair.segment not in self._log.segments.segments:
            self._repair = None  # trimmed meanwhile
        elif now_s - repair.fetch.last_s > self._config.give_up_s / 2 and not repair.is_working:
            self._refused("no answer")
        elif not repair.is_complete and not repair.is_working:
            for fetch in repair.fetch.due(self._seat.term, now_s, 0):
                self._send(repair.source, fetch)

    def _forget_gone(self) -> None:
        """Forget the damage of segments that were trimmed, or sealed after all."""
        there = {
            each.first_index
            for each in self._log.segments.segments
            if not isinstance(each, SealedSegment)
        }
        if self.damages.keys() - there:
            self.damages = {at: each for at, each in self.damages.items() if at in there}
            self._changed()

    def _begin(self, now_s: float) -> None:
        present = {
            each.first_index: each
            for each in self._log.segments.segments
            if isinstance(each, DamagedSegment)
        }
        members = self._seat.rank_members()
        for first_index, damage in self.damages.items():
            if now_s < damage.retry_at_s or first_index not in present:
                continue
            for source in members:
                if source not in damage.refusals:
                    segment = present[first_index]
                    fetch = self._fetch_from(segment, segment.first_index, now_s)
                    self._repair = _Attempt(segment, source, fetch, next_index=first_index)
                    return
            # No member has a copy: ask all of them again later.
            damage.is_alarming = damage.last_index >= self.needless_before
            damage.retry_at_s = now_s + self._seat.ask_again_s
            refused_with = tuple(sorted(damage.refusals.items()))
            if refused_with != damage.refused_with:
                _log.error("no member can give a copy of %s: %s", damage.path, damage.refusals)
            damage.refused_with, damage.refusals, damage.is_refused = refused_with, {}, True
            self._tell()

    def _fetch_from(self, segment: DamagedSegment, index: int, now_s: float) -> PieceFetch:
        proposal = segment.first_proposal if index == segment.first_index else 1
        wanted = Wanted(False, index, segment.last_index, proposal)
        return PieceFetch(wanted, self._config, now_s)

    def on_chunk(self, sender: UUID, chunk: Chunk) -> bool:
        """Keep the bytes of a chunk; return whether they were wanted."""
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
        """Try the next member; return whether the answer was for this repair."""
        repair = self._repair
        if repair is None or sender != repair.source or answer.is_snapshot:
            return False
        wanted = repair.fetch.wanted
        if (answer.first_index, answer.last_index) != (wanted.first_index, wanted.last_index):
            return False
        self._refused(answer.reason)
        return True

    def scrub_soon(self, index: int) -> None:
        """Scrub the segment of an index next: a member reports it as damaged."""
        for segment in self._log.segments.segments:
            if segment.first_index <= index <= segment.last_index:
                self._scrub, self._scrub_from = None, segment.first_index
                # Not at once: a member may report it as often as it likes.
                self._scrub_at_s = min(self._scrub_at_s, self._now_s() + SCRUB_SOON_S)

    def _refused(self, why: str) -> None:
        repair, self._repair = self._repair, None
        assert repair is not None
        damage = self.damages.get(repair.segment.first_index)
        if damage is not None:
            damage.refusals[repair.source] = why

    def next_job(self) -> ShipJob | None:
        """Return the next job on files, if there is one."""
        return self.replace_job() or self._survey_job() or self._scrub_job()

    def replace_job(self) -> ShipJob | None:
        """Return the job that makes a file of the pieces, if all of them are there."""
        repair = self._repair
        if repair is None or not repair.is_complete or repair.is_working:
            return None
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
        """Raise ``CorruptFile`` if the copy contradicts what is known here about the range."""
        segments = self._log.segments.segments
        at = segments.index(damaged)
        after, header = segments[at + 1], joined.header
        before_ns = segments[at - 1].last_timestamp_ns if at else 0
        name = str(damaged.path)
        compare_intact(damaged, joined)
        # The times of a file that could not be opened are not known.
        is_known = not isinstance(after, DamagedSegment) or after.opened is not None
        if is_known and after.entry_count and header.last_timestamp_ns > after.first_timestamp_ns:
            raise CorruptFile(name, f"times up to {header.last_timestamp_ns}, later than the next")
        if header.first_timestamp_ns < before_ns:
            raise CorruptFile(name, f"times from {header.first_timestamp_ns}, before {before_ns}")
        if joined.term_last > self._log.last_term:
            raise CorruptFile(name, f"term {joined.term_last}, here is {self._log.last_term}")
        count = after.first_proposal - damaged.first_proposal
        if joined.proposal_count is None:
            # 0: it is damaged, too, and what is before it has to show its place.
            if not 0 < after.first_proposal <= self._seat.raft_start:
                raise CorruptFile(name, "compacted there, and Raft needs it whole")
        elif joined.proposal_count != count and after.first_proposal:
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
        self._changed()


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
