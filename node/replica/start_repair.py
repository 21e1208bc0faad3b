"""The repair of a shard that cannot start: its log is fetched from other members first.

A replica rebuilds its state from its newest snapshot and the log after it. If a sealed file of that
part is damaged or lost, or one whose place the others do not show, the shard is not opened. What is
missing is fetched from other members, as for a replica that serves (node/replica/repair.py): range
by range, verified, and renamed into place. Then the shard is opened as usual. Invariants:

* Until then the replica takes no part in Raft: it does not vote, ack or stand for election, and no
  file but the damaged ones changes. RAFT keeps its term and vote. So the group is without one
  member, as if its process had not been started, and no promise of it is weakened.
* Only sealed files, and ranges that are known to be committed, are repaired. Sealed entries were
  applied, and members answer with applied entries: those are the same everywhere. Damage to a file
  that is not sealed may be of entries that this member has acked and nobody has committed. No copy
  can replace those, and the start fails.
* Members answer without a leader, and so does a shard that waits here, from its intact sealed
  files. So two of three members that are damaged in different places repair each other.
* It waits for as long as no member has a copy. Other shards serve meanwhile.

A crash leaves the damaged file or its copy; the next start looks again. Its driver calls
``on_message`` and ``advance``, runs ``next_job`` where it may block, and opens the shard again when
``is_done``.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.membership import Membership, decode_membership
from onelog.cluster.raft.messages import Append, Chunk, Fetch, Message, Offer, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.node.replica.repair import Damage, Repair
from onelog.node.replica.sender import Sender
from onelog.projections.shard_state import build_projections
from onelog.projections.system.commands import TYPE_RAFT_CONFIG
from onelog.snapshot.errors import LogGap, NoSnapshot
from onelog.snapshot.loading import load_newest
from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, DataError, MissingSegment, UalError
from onelog.ual.files import Files, FreeSpace
from onelog.ual.log import WriteGuard
from onelog.ual.log_config import LogConfig
from onelog.ual.recovery import NO_FILE, open_hard_state, read_known, survey_damage
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment

# Errors of a start behind which there may be damage that a member can repair.
START_ERRORS = (DataError, LogGap, NoSnapshot)
# A shard that cannot be opened after this many repairs of the same range ends the process.
REPAIRS_MAX = 3


@dataclass(frozen=True, slots=True)
class FoundDamage:
    """What a shard lacks to start, and what else is known without opening it."""

    error: Exception  # why it could not be opened
    segments: SegmentSet
    in_the_way: tuple[DamagedSegment, ...]
    term: int
    membership: Membership | None  # None: the founders

    def describe(self) -> str:
        """Return what is damaged, for people."""
        return "; ".join(
            f"entries {each.first_index} to {each.last_index} ({each.path}: {each.rule})"
            for each in self.in_the_way
        )


def find_damage(
    files: Files, paths: ShardPaths, number: int, config: LogConfig, error: Exception
) -> FoundDamage | None:
    """Return the damage that kept a shard from starting; None if it is of another kind."""
    try:
        hard_state = open_hard_state(files, paths)
        manifest, known = read_known(files, paths, hard_state, config)
        chain = survey_damage(files, paths.segments, known)
        if not chain or any(each.header.shard != number for each in chain):
            return None
        loaded, _ = load_newest(
            files,
            paths.snapshots,
            number,
            () if manifest is None else manifest.snapshots,
            build_projections,
            ApplyNotes(),
            notes_from_index=SegmentSet(tuple(chain), ApplyNotes()).sealed_index + 1,
        )
    except UalError:
        return None  # the first error has said what is wrong
    snapshot_index = 0 if loaded is None else loaded.record.index
    chain = [each if each.last_index <= snapshot_index else _checked(each) for each in chain]
    damaged = [each for each in chain if isinstance(each, DamagedSegment)]
    is_unplaced = any(not each.first_proposal for each in damaged)
    in_the_way = tuple(
        each
        for each in damaged
        if is_unplaced
        or each.last_index > snapshot_index
        or str(each.path) == getattr(error, "path", None)
        or (each.rule == NO_FILE and isinstance(error, MissingSegment))
    )
    if not in_the_way:
        return None
    config_bytes = b"" if loaded is None else loaded.state.system.raft_config
    membership = _find_membership(chain, snapshot_index, config_bytes)
    segments = SegmentSet(tuple(chain), ApplyNotes())
    return FoundDamage(error, segments, in_the_way, hard_state.term, membership)


def _checked(segment: Segment) -> Segment:
    """Return a segment that the replay needs, set aside if something of its file is damaged."""
    if isinstance(segment, SealedSegment):
        try:
            segment.check_file()
        except CorruptFile as damage:
            where = damage.offset
            return DamagedSegment(segment.path, segment.header, damage.rule, where, segment)
    return segment


def _find_membership(
    chain: Iterable[Segment], after_index: int, config: bytes
) -> Membership | None:
    """Return the newest membership that can be read: of a snapshot, or of the log after it."""
    found = decode_membership(config) if config else None
    for segment in chain:
        if isinstance(segment, DamagedSegment) or segment.last_index <= after_index:
            continue
        first_index = max(segment.first_index, after_index + 1)
        with suppress(UalError):
            for entry in segment.entries(first_index, segment.last_index, types=[TYPE_RAFT_CONFIG]):
                found = decode_membership(entry.plain_payload())
    return found


class HeldLog:
    """What there is of a log that is not open, for repairs and for peers."""

    def __init__(self, files: Files, paths: ShardPaths, found: FoundDamage) -> None:
        self.segments = found.segments
        self.notes = found.segments.notes
        self.last_term = found.term  # no entry has a later one
        self.guard = WriteGuard(FreeSpace(files, paths.segments, 0))
        self.first_index = found.segments.first_index
        self.applied_index = found.segments.sealed_index


class StartRepair:
    """See the module."""

    # What repairs ask of a seat (``Seat`` in node/replica/repair.py).
    term = raft_start = 0

    def __init__(
        self,
        files: Files,
        paths: ShardPaths,
        number: int,
        found: FoundDamage,
        members: Iterable[UUID],
        connected: Callable[[], Collection[UUID]],
        config: ShippingConfig,
        send: Callable[[UUID, Message], None],
        now_s: Callable[[], float],
    ) -> None:
        """``members``: the others, of whom those that are ``connected`` are asked."""
        self.number = number
        self.found = found
        self.members = frozenset(members)
        self.ask_again_s = config.pause_s
        # Who leads, as far as its messages say: a hint for clients, nothing else.
        self.leader_id: UUID | None = None
        self.leader_term = 0
        self._connected = connected
        self._is_working = False
        log = HeldLog(files, paths, found)
        self.repair = Repair(files, number, log, self, config, send, now_s)
        wanted = {each.first_index for each in found.in_the_way}
        for first_index in self.repair.damages.keys() - wanted:
            del self.repair.damages[first_index]  # repaired while the replica serves
        # Damage that it finds itself waits for the start, which it may not prevent.
        self._sender = Sender(
            files, log, None, config, send, lambda: 0, lambda _damage: None, lambda: 0
        )

    @property
    def is_done(self) -> bool:
        """Whether everything is repaired whose place is known: open the shard now."""
        return not self.repair.damages

    def rank_members(self) -> list[UUID]:
        """Return the members that can be asked now, the leader first."""
        there = [each for each in sorted(self.members) if each in self._connected()]
        return sorted(there, key=lambda each: each != self.leader_id)

    def on_message(self, sender: UUID, message: Message) -> None:
        """Handle a message of a member; those of Raft only say who leads."""
        if sender not in self.members:
            return
        match message:
            case Append() | Offer() if message.term >= self.leader_term:
                self.leader_id, self.leader_term = sender, message.term
            case Fetch():
                self._sender.add(sender, message)
            case Chunk():
                self.repair.on_chunk(sender, message)
            case Unavailable():
                self.repair.on_unavailable(sender, message)
            case _:
                pass

    def advance(self) -> None:
        """Ask for what is due, if there is anybody to ask."""
        if self.repair.is_asking or self.rank_members():
            self.repair.advance()

    def next_job(self) -> ShipJob | None:
        """Return the next job on files, if there is one and none runs."""
        if self._is_working:
            return None
        job = self._sender.next_job() or self.repair.replace_job()
        self._is_working = job is not None
        return job

    def finish(self, job: ShipJob) -> None:
        """Complete a job."""
        self._is_working = False
        job.finish()

    def describe(self) -> str:
        """Return what it waits for, for people."""
        if self.is_done:
            return f"shard {self.number} to be opened: what it lacked is repaired"
        return "; ".join(
            f"entries {each.first_index} to {each.last_index} of shard {self.number} from another "
            f"member ({each.path}: {each.rule}): {self._progress(each)}"
            for each in self.repair.damages.values()
        )

    def report(self) -> list[dict[str, Any]]:
        """Return what /ready shows of it."""
        return [
            {
                "first_index": each.first_index,
                "last_index": each.last_index,
                "path": each.path,
                "rule": each.rule,
                "progress": self._progress(each),
            }
            for each in self.repair.damages.values()
        ]

    def _progress(self, damage: Damage) -> str:
        if not self.rank_members():
            return "no other member is connected"
        refusals = tuple(damage.refusals.items()) or damage.refused_with
        if refusals:
            return ", ".join(f"{member} answers: {why}" for member, why in refusals)
        return "being fetched"
