"""What replicas exchange beside Raft's own messages: snapshots, ranges of the log, repairs.

As leader, this replica offers its newest snapshot to peers that are behind, keeps what they fetch
(``Shipments.floor``) and answers their fetches. As follower it installs what its leader offers.
The shard passes messages and ticks, and its driver runs the jobs, one at a time: those that a peer
waits for first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from onelog.cluster.config import ShippingConfig
from onelog.cluster.raft.catch_up import Offered, Shipments
from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.messages import Chunk, Fetch, Message, Offer, Unavailable
from onelog.node.replica.jobs import ShipJob
from onelog.node.replica.receiver import Receiver, ReceiverStatus
from onelog.node.replica.repair import Damage, Repair
from onelog.node.replica.retention import LAST_BYTES, droppable_before
from onelog.node.replica.sender import Sender
from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, DiskFull
from onelog.ual.files import Files
from onelog.ual.install import install
from onelog.ual.jobs import ManifestJob
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

if TYPE_CHECKING:
    from onelog.cluster.raft.member import RaftMember
    from onelog.node.replica.shard import Shard

Shipped = Fetch | Chunk | Unavailable


@dataclass(frozen=True, slots=True)
class ShipmentStatus:
    """A snapshot that is being sent to a peer, as operators see it."""

    index: int
    done_bytes: int
    total_bytes: int
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class ShippingStatus:
    """The state of all exchanges, as operators see it."""

    sending: dict[UUID, ShipmentStatus]
    given_up: int  # shipments that made no progress
    refusals: dict[UUID, str]  # what peers found wrong with what they were sent
    receiving: ReceiverStatus | None
    failures: int  # transfers to this replica that were given up
    failure: str  # why the last one was
    damages: tuple[Damage, ...]  # sealed segments that are set aside
    repaired: int  # how many were replaced by a peer's copy
    mended: tuple[Damage, ...]  # the last of them
    scrubbed_bytes: int
    scrubs: int  # passes over all sealed segments


class _Seat:
    """The place of a member in its group; see ``Seat`` in node/replica/repair.py."""

    def __init__(self, member: "RaftMember", config: ShippingConfig) -> None:
        self.ask_again_s = config.give_up_s
        self._member = member

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def raft_start(self) -> int:
        return self._member.journal.start

    def rank_members(self) -> list[UUID]:
        member = self._member
        others = [each for each in member.membership.members if each != member.self_id]
        if member.state == LEADER:
            return sorted(others, key=member.find_match, reverse=True)
        return sorted(others, key=lambda each: each != member.leader_id)


class Shipping:
    """See the module. Each shard has one."""

    def __init__(
        self,
        shard: "Shard",
        files: Files,
        paths: ShardPaths,
        number: int,
        config: ShippingConfig,
        send: Callable[[UUID, Message], None],
    ) -> None:
        self.config = config
        self.shipments = Shipments(config)
        self.refusals: dict[UUID, str] = {}  # the last reason of each peer
        # Holds whose entries were dropped here because the disk was full: by name, the index of
        # their creation, which distinguishes a later hold of that name.
        self.let_go: dict[str, int] = {}
        self._shard = shard
        self._files = files
        self._paths = paths
        member, clock = shard.member, shard.clock
        self._offered: Offered | None = None  # the newest snapshot
        seat = _Seat(member, config)
        self.repair = Repair(files, number, shard.log, seat, config, send, clock.now_s)
        self.sender = Sender(
            files,
            shard.log,
            shard.snapshots,
            config,
            send,
            lambda: member.term,
            self.note_damage,
            lambda: self.repair.needless_before,
        )
        self.receiver = Receiver(
            files,
            paths,
            number,
            shard.log,
            config,
            send,
            clock.now_s,
            lambda: max(clock.wall_ns() // 1_000_000_000, 0),
        )
        self._is_working = False
        member.leadership.offer_to = self._offer_to
        member.leadership.on_damage = self.note_damage

    # What the shard calls

    def on_message(self, sender: UUID, message: Shipped) -> None:
        """Handle a message of a member or of the leader; others are ignored."""
        member = self._shard.member
        if sender not in member.membership.members and sender != member.leader_id:
            return
        match message:
            case Fetch():
                if message.term:  # 0: it repairs its log, and takes no part in Raft yet
                    member.heard_from(sender, message.term)
                self._on_fetch(sender, message)
            case Chunk():
                if self.receiver.on_chunk(sender, message):
                    member.heard_from(sender, message.term)
                    self.receiver.advance(member.term)
                else:
                    self.repair.on_chunk(sender, message)
            case Unavailable():
                if self.receiver.on_unavailable(sender, message):
                    return
                if not self.repair.on_unavailable(sender, message):
                    self._on_refusal(sender, message)

    def offered(self, source: UUID, offer: Offer) -> None:
        """Consider a leader's offer of a snapshot that is missing here."""
        self.receiver.offered(source, offer, self._shard.member.term)

    def tick(self) -> None:
        """Ask again, give up or install, whatever is due."""
        member = self._shard.member
        if member.state == LEADER:
            if self.shipments.open:
                now_s = self._shard.clock.now_s()
                self.shipments.advance(now_s, member.find_match, member.commit)
                if not self.shipments.open:
                    self.sender.close_pieces()
        elif self._offered is not None:
            self.shipments.clear()
            self.sender.keep_snapshots(set())
            self._offered = None
        self.repair.take_met()
        if self.repair.damages:
            self.repair.advance()
            self._begin_behind_damage()
        if self.receiver.current is not None:
            self.receiver.advance(member.term)
            if self.receiver.is_ready:
                self._install()

    def next_job(self) -> ShipJob | None:
        """Return the next job, if there is one and none runs."""
        if self._is_working:
            return None
        job = self.sender.next_job() or self.receiver.next_job() or self.repair.next_job()
        self._is_working = job is not None
        return job

    def finish(self, job: ShipJob) -> None:
        """Complete a job."""
        self._is_working = False
        job.finish()

    @property
    def is_installing(self) -> bool:
        """Whether the log is about to be replaced, so that nothing should be sealed."""
        return self.receiver.is_ready

    def trim_begin(self, keep_from: int | None, segments_max: int | None) -> ManifestJob | None:
        """Drop the segments before the older kept snapshot; Raft's start moves first.

        Kept are entries that are being shipped, that the state refers to or holds
        (node/replica/retention.py), and everything from ``keep_from`` on. ``segments_max`` limits
        how many segments are dropped at a time. If a segment turns out to be damaged, it is set
        aside, and nothing is dropped this time. If the disk is almost full, holds do not count.
        """
        try:
            return self._trim_begin(keep_from, segments_max)
        except CorruptFile as error:
            self.note_damage(error)
            return None

    def note_damage(self, error: CorruptFile) -> None:
        """Set aside a segment that turned out to be damaged when it was read."""
        self.repair.note(error, "reading")

    @property
    def status(self) -> ShippingStatus:
        """The state of all exchanges, as operators see it."""
        sending = {
            peer_id: ShipmentStatus(
                each.offered.index, each.done_bytes, each.total_bytes, each.target is not None
            )
            for peer_id, each in self.shipments.open.items()
        }
        receiver = self.receiver
        return ShippingStatus(
            sending,
            self.shipments.given_up,
            dict(self.refusals),
            receiver.status,
            receiver.failures,
            receiver.failure,
            tuple(self.repair.damages.values()),
            self.repair.repaired,
            tuple(self.repair.mended),
            self.repair.scrubbed_bytes,
            self.repair.scrubs,
        )

    # Inside

    def _trim_begin(self, keep_from: int | None, segments_max: int | None) -> ManifestJob | None:
        log, journal = self._shard.log, self._shard.member.journal
        log.manifest_file.settle()  # a snapshot that cannot be kept does not count
        keep_index = min(self._shard.snapshots.keep_from_index, log.last_index)
        for floor in (self.shipments.floor, keep_from):
            if floor is not None:
                keep_index = min(keep_index, floor)
        for segment in log.segments.segments:
            if isinstance(segment, UnsealedSegment) or segment.last_index >= keep_index:
                if segment.first_proposal > journal.start:
                    journal.move_start(segment.first_proposal)
                break
        segments = log.segments.segments
        if segments_max is not None and segments_max < len(segments):
            keep_index = min(keep_index, segments[segments_max].first_index)
        state, needless_before = self._shard.projections, self.repair.needless_before
        is_last_resort = len(state.system.holds) > 0 and log.spare_bytes() < LAST_BYTES
        job = log.drop_begin(
            droppable_before(log, state, keep_index, needless_before, ignores_holds=is_last_resort)
        )
        lost = (each for each in state.system.holds.active() if each.index < log.first_index)
        if is_last_resort and job is not None:
            self.let_go = {each.name: each.created_index for each in lost}
        return job

    def _begin_behind_damage(self) -> None:
        """Move the start of Raft's window past damage that a snapshot covers.

        A peer that lacks a damaged group cannot be sent it; below the window it gets the snapshot
        instead.
        """
        journal, newest = self._shard.member.journal, self._shard.snapshots.newest
        if newest is None:
            return
        segments = self._shard.log.segments
        for segment in segments.segments:
            if isinstance(segment, DamagedSegment) and segment.last_index <= newest.index:
                number = segments.after(segment).first_proposal
                if journal.start < number <= journal.last:
                    try:
                        journal.move_start(number)
                    except CorruptFile as error:
                        self.note_damage(error)
                        return  # the set of segments has changed

    def _offer_to(self, peer_id: UUID) -> Offered | None:
        """Return the snapshot to offer to a peer that is behind."""
        pinned = self.shipments.pinned(peer_id)
        if pinned is not None:
            return pinned
        newest = self._shard.snapshots.newest
        if newest is None:
            return None
        if self._offered is None or self._offered.index != newest.index:
            self._offered = None
            try:
                reader = self.sender.open_snapshot(newest.index)
            except (OSError, CorruptFile):
                return None
            if reader is not None:
                header = reader.header
                self._offered = Offered(
                    header.index,
                    header.proposal,
                    header.term,
                    header.size,
                    int(newest.state_hash, 16),
                    self._log_bytes(header.index),
                )
                kept = {each.offered.index for each in self.shipments.open.values()}
                self.sender.keep_snapshots(kept | {header.index})
        return self._offered

    def _log_bytes(self, last_index: int) -> int:
        size = 0
        for segment in self._shard.log.segments.segments:
            if segment.first_index <= last_index:
                if isinstance(segment, SealedSegment):
                    size += segment.size_bytes
                elif isinstance(segment, UnsealedSegment):
                    size += segment.end
        return size

    def _on_refusal(self, sender: UUID, refusal: Unavailable) -> None:
        """Note that a peer could not use what it got; check whether the file here is damaged."""
        self.refusals[sender] = refusal.reason
        if not refusal.is_snapshot:
            self.repair.scrub_soon(refusal.first_index)

    def _on_fetch(self, sender: UUID, fetch: Fetch) -> None:
        member, now_s = self._shard.member, self._shard.clock.now_s()
        if member.state == LEADER:
            if fetch.is_snapshot:
                for offered in (self.shipments.pinned(sender), self._offered):
                    if offered is not None and offered.index == fetch.last_index:
                        first_index = self._shard.log.first_index
                        self.shipments.begin(sender, offered, first_index, now_s)
                        break
            self.shipments.fetched(sender, fetch, now_s)
        self.sender.add(sender, fetch)

    def _install(self) -> None:
        """Replace the log and the state by what was received, unless it is not needed any more."""
        shard, receiver = self._shard, self.receiver
        receipt = receiver.current
        assert receipt is not None
        if shard.member.state == LEADER or shard.member.offers.is_held(receipt.offer):
            receiver.give_up("it is not needed any more")
            return
        if shard.log.is_sealing:
            return  # try again with the next tick
        new, loaded = receiver.installation()
        replaced = shard.snapshots.records
        try:
            install(shard.log, self._files, self._paths, new, loaded.notes)
        except (DiskFull, CorruptFile) as error:
            receiver.give_up(str(error))
            return
        receiver.installed()
        shard.take_over(loaded.state, receipt.offer.proposal)
        shard.member.offers.installed(
            receipt.source, receipt.offer, loaded.state.system.raft_config
        )
        shard.snapshots.remove_unlisted(replaced)
