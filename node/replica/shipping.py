"""All that goes between replicas beside Raft's own messages: snapshots, ranges, repair.

The shard hands in messages and ticks, asks for jobs and returns them; everything else happens here.
As leader, this replica tells peers that are behind of its newest snapshot, keeps what they fetch
(``floor``), and answers. As follower it takes over what its leader offers. Jobs run one at a time,
those that others wait for first.
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
from onelog.node.replica.receiver import Receiving, ReceivingStatus
from onelog.node.replica.repair import Damage, Mending
from onelog.node.replica.retention import LAST_BYTES, droppable_before
from onelog.node.replica.sender import Serving
from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, DiskFull
from onelog.ual.files import Files
from onelog.ual.install import install
from onelog.ual.jobs import ManifestJob
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment

if TYPE_CHECKING:
    from onelog.node.replica.shard import Shard

Shipped = Fetch | Chunk | Unavailable


@dataclass(frozen=True, slots=True)
class ShipmentStatus:
    """What an operator sees of a snapshot that a peer is being sent."""

    index: int
    done_bytes: int
    total_bytes: int
    is_confirmed: bool


@dataclass(frozen=True, slots=True)
class ShippingStatus:
    """What an operator sees."""

    sending: dict[UUID, ShipmentStatus]
    given_up: int  # shipments that made no progress
    refusals: dict[UUID, str]  # what peers found wrong with what they were sent
    receiving: ReceivingStatus | None
    failures: int  # transfers to this replica that were given up
    failure: str  # why the last one was
    damages: tuple[Damage, ...]  # sealed segments that are set aside
    repaired: int  # how many a peer's copy has replaced
    mended: tuple[Damage, ...]  # the last of them
    scrubbed_bytes: int
    scrubs: int  # looks through all sealed segments


class Shipping:
    """See the module's text. Made by a shard for itself."""

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
        self.refusals: dict[UUID, str] = {}  # what members say of what they were sent, the newest
        # Holds, by name, whose entries went here because the disk was full: the index of their
        # creation, which tells a later hold of that name.
        self.let_go: dict[str, int] = {}
        self._shard = shard
        self._files = files
        self._paths = paths
        member, clock = shard.member, shard.clock
        self._offered: Offered | None = None  # the newest snapshot
        self.mending = Mending(files, number, shard.log, member, config, send, clock.now_s)
        self.serving = Serving(
            files,
            shard.log,
            shard.snapshots,
            config,
            send,
            lambda: member.term,
            self.note_damage,
            lambda: self.mending.needless_before,
        )
        self.receiving = Receiving(
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
        """Take a message that is not Raft's; only those of members count, or of the leader."""
        member = self._shard.member
        if sender not in member.membership.members and sender != member.leader_id:
            return
        match message:
            case Fetch():
                member.heard_from(sender, message.term)
                self._on_fetch(sender, message)
            case Chunk():
                if self.receiving.on_chunk(sender, message):
                    member.heard_from(sender, message.term)
                    self.receiving.advance(member.term)
                else:
                    self.mending.on_chunk(sender, message)
            case Unavailable():
                if self.receiving.on_unavailable(sender, message):
                    return
                if not self.mending.on_unavailable(sender, message):
                    self._on_refusal(sender, message)

    def offered(self, source: UUID, offer: Offer) -> None:
        """Take a leader's offer of something that is missing here."""
        self.receiving.offered(source, offer, self._shard.member.term)

    def tick(self) -> None:
        """Ask again, give up, install: what time brings."""
        member, now_s = self._shard.member, self._shard.clock.now_s()
        if member.state == LEADER:
            if self.shipments.open:
                self.shipments.advance(now_s, member.find_match, member.commit)
                if not self.shipments.open:
                    self.serving.close_pieces()
        elif self._offered is not None:
            self.shipments.clear()
            self.serving.keep_snapshots(set())
            self._offered = None
        self.receiving.advance(member.term)
        self.mending.advance()
        if self.mending.damages:
            self._begin_behind_damage()
        if self.receiving.is_ready:
            self._install()

    def next_job(self) -> ShipJob | None:
        """Return something to run, if there is something and nothing runs."""
        if self._is_working:
            return None
        job = self.serving.next_job() or self.receiving.next_job() or self.mending.next_job()
        self._is_working = job is not None
        return job

    def finish(self, job: ShipJob) -> None:
        """Complete a job."""
        self._is_working = False
        job.finish()

    @property
    def is_installing(self) -> bool:
        """Whether the log is about to be replaced: nothing should be sealed any more."""
        return self.receiving.is_ready

    def trim_begin(self, keep_from: int | None, segments_max: int | None) -> ManifestJob | None:
        """Drop the segments before the older kept snapshot; Raft's start moves first.

        What is being shipped stays, what the state refers to or holds (node/replica/retention.py),
        and everything from ``keep_from`` on; with ``segments_max``, at most that many go at a time.
        A segment that turns out to be damaged on the way is set aside, and the trim is for another
        time. Where the disk is about to be full, holds do not count.
        """
        try:
            return self._trim_begin(keep_from, segments_max)
        except CorruptFile as error:
            self.note_damage(error)
            return None

    def note_damage(self, error: CorruptFile) -> None:
        """Set aside a segment that turned out to be damaged when it was read."""
        self.mending.note(error, "reading")

    @property
    def status(self) -> ShippingStatus:
        """What an operator sees."""
        sending = {
            peer_id: ShipmentStatus(
                each.offered.index, each.done_bytes, each.total_bytes, each.target is not None
            )
            for peer_id, each in self.shipments.open.items()
        }
        receiving = self.receiving
        return ShippingStatus(
            sending,
            self.shipments.given_up,
            dict(self.refusals),
            receiving.status,
            receiving.failures,
            receiving.failure,
            tuple(self.mending.damages.values()),
            self.mending.repaired,
            tuple(self.mending.mended),
            self.mending.scrubbed_bytes,
            self.mending.scrubs,
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
        state, needless_before = self._shard.projections, self.mending.needless_before
        is_last_resort = len(state.system.holds) > 0 and log.spare_bytes() < LAST_BYTES
        job = log.drop_begin(
            droppable_before(log, state, keep_index, needless_before, ignores_holds=is_last_resort)
        )
        lost = (each for each in state.system.holds.active() if each.index < log.first_index)
        if is_last_resort and job is not None:
            self.let_go = {each.name: each.created_index for each in lost}
        return job

    def _begin_behind_damage(self) -> None:
        """Move the start of Raft's window behind damage that a snapshot covers.

        A peer that lacks a damaged group cannot be sent it; before the window it is sent the
        snapshot instead.
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
                        return  # the set of segments is another one now

    def _offer_to(self, peer_id: UUID) -> Offered | None:
        """Return what a peer that is behind is told of."""
        pinned = self.shipments.pinned(peer_id)
        if pinned is not None:
            return pinned
        newest = self._shard.snapshots.newest
        if newest is None:
            return None
        if self._offered is None or self._offered.index != newest.index:
            self._offered = None
            try:
                reader = self.serving.open_snapshot(newest.index)
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
                self.serving.keep_snapshots(kept | {header.index})
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
        """A peer could not use what it was sent: look whether it is this side's file."""
        self.refusals[sender] = refusal.reason
        if not refusal.is_snapshot:
            self.mending.look_at(refusal.first_index)

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
        self.serving.add(sender, fetch)

    def _install(self) -> None:
        """Put what was received in the place of the log and the state, unless it came too late."""
        shard, receiving = self._shard, self.receiving
        receipt = receiving.current
        assert receipt is not None
        if shard.member.state == LEADER or shard.member.offers.is_held(receipt.offer):
            receiving.give_up("it is not needed any more")
            return
        if shard.log.is_sealing:
            return  # the next tick
        new, loaded = receiving.installation()
        replaced = shard.snapshots.records
        try:
            install(shard.log, self._files, self._paths, new, loaded.notes)
        except (DiskFull, CorruptFile) as error:
            receiving.give_up(str(error))
            return
        receiving.installed()
        shard.take_over(loaded.state, receipt.offer.proposal)
        shard.member.offers.installed(
            receipt.source, receipt.offer, loaded.state.system.raft_config
        )
        shard.snapshots.remove_unlisted(replaced)
