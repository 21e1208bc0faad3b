"""One member of a Raft group: pysyncobj, with protections around it.

This is the only file that touches pysyncobj's private names; a test compares them with the
installed version. Elections, terms, the commit rule and the follower's log matching are
pysyncobj's; what it gets wrong is corrected here:

* It acknowledges what it received; we acknowledge what is synced, and pass a leader the acks of
  others only as far as its own sync has come.
* It counts votes and acks without checking their sender, their term and repetitions; every message
  here carries its term, votes are a set, and messages from non-members are dropped, unless the
  sender may have been added in a change that this replica missed (``PreVote.may_be_new``).
* A follower commits up to its last entry, even if the leader did not vouch for it; the commit index
  of an append is lowered to what that append covers, and that of an offer, which covers nothing, to
  the follower's own.
* It has no pre-vote. Before it stands for election it asks whether it is connected to any node; we
  answer that question with the outcome of a pre-vote.
* It rewinds with every ack, pickles, and reads a global clock; sending, applying and time are ours.
* Its nodes are the other voters, which are read from the log (cluster/raft/membership.py).

Snapshots. An offer says that the leader's log begins after the end of this one (``Offers``):

* It vouches for nothing but the snapshot: it never moves the commit index here
  (``RaftMember.follow``), or a deposed leader would make us apply entries that no other member has.
* A snapshot of something that this replica has, applied or in its log under the same term, is not
  taken: the entries after it stay, and Raft continues from there.
* A confirmation says that everything up to a proposal is durable here and equal to the leader's. It
  is sent only to the leader whose offer it was, in its term.

Transfer of a leadership under load: hold, wait, hand over, resume. During a transfer the leader
proposes nothing new, so that the target can catch up (``Hold``); then it asks the target to stand
for election at once. Both phases are bounded by one election timeout: if the target cannot catch up
or is not elected, the leader continues as before. Clients see a pause, never an error.

Everything happens inside calls on one thread: ``tick``, ``on_message``, ``on_synced``, ``propose``.
Calls of different members never nest, which is what lets them share pysyncobj's module globals.

Failure: a message that breaks a rule is dropped and counted; ``refusal`` says why. A full disk
refuses a proposal, an append or a leadership; everything before it stays. Anything else that is
raised (``LogFailed``, ``Diverged``, an error in apply) means that this replica must stop.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from pysyncobj import SyncObj
from pysyncobj.node import Node

from onelog.cluster.config import ALL_ON, Protections, RaftConfig
from onelog.cluster.errors import (
    ClusterError,
    MembershipRefused,
    NotLeader,
    ProposalRefused,
    TransferFailed,
)
from onelog.cluster.raft.journal import Proposal, RaftJournal
from onelog.cluster.raft.leadership import Leadership
from onelog.cluster.raft.membership import Membership, check_change, check_moment
from onelog.cluster.raft.messages import (
    Ack,
    Append,
    Message,
    Offer,
    Stale,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from onelog.cluster.raft.peers import Ballot, Matched
from onelog.cluster.raft.pre_vote import PreVote
from onelog.cluster.raft.pysyncobj_seam import (
    Clock,
    NoPoller,
    Wire,
    configuration,
    running,
    translated,
)
from onelog.ual.errors import CorruptFile, DiskFull, EntryError, GroupTooLarge


class Applier(Protocol):
    """The replica of a member: it gets committed proposals, in order, each once."""

    def lead(self) -> None:
        """This member is about to lead: its next call may append."""

    def heard(self, log_time_ns: int, travelled_s: float) -> None:
        """The leader's log time was this at most ``travelled_s`` seconds ago."""

    def offered(self, source: UUID, offer: Offer) -> None:
        """The leader offers a snapshot of something that this member's log does not hold."""

    def apply(self, number: int, data: bytes) -> None:
        """Fold a committed group into the state. Must not raise: that would stop the replica."""


# Offers


class Offers:
    """A follower's answers to snapshot offers; see the module."""

    def __init__(
        self,
        member: "RaftMember",
        matched: Matched,
        applier: Applier,
        send: Callable[[UUID, Message], None],
    ) -> None:
        self._member = member
        self._matched = matched
        self._applier = applier
        self._send = send

    def on_offer(self, sender: UUID, offer: Offer) -> None:
        """Answer an offer, and pass it on if this replica needs the snapshot."""
        member = self._member
        if not member.accepts_leader(sender, offer.term):
            return
        member.follow(sender, offer.term, offer.commit)
        if self.is_held(offer):
            self._confirm(sender, offer)
        else:
            self._send(sender, Ack(offer.term, offer.round, member.applied + 1, False, False))
            self._applier.offered(sender, offer)

    def is_held(self, offer: Offer) -> bool:
        """Return whether this replica has what the snapshot covers."""
        member = self._member
        return member.applied >= offer.proposal or member.journal.holds(
            offer.proposal, offer.snapshot_term
        )

    def installed(self, source: UUID, offer: Offer, config: bytes) -> None:
        """Continue Raft after an installed snapshot, and confirm it to its leader."""
        member = self._member
        member.begin_at_base(config)
        if offer.term == member.term and member.leader_id == source:
            self._confirm(source, offer)

    def _confirm(self, leader_id: UUID, offer: Offer) -> None:
        self._matched.note(offer.term, offer.round, offer.proposal)
        self._send(leader_id, self._matched.ack(self._member.journal.durable))


# Member

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
TERM_STEP_MAX = 1 << 32  # no real member is this far behind; leaves room above a forged term


class RaftMember(SyncObj):  # type: ignore[misc]
    """One member of a Raft group; see the module."""

    def __init__(
        self,
        config: RaftConfig,
        self_id: UUID,
        journal: RaftJournal,
        clock: Clock,
        applier: Applier,
        send: Callable[[UUID, Message], None],
        *,
        applied: int,
        protections: Protections = ALL_ON,
    ) -> None:
        self.config = config
        self.self_id = self_id
        self.journal = journal
        self.clock = clock
        self.protections = protections
        self.dropped_messages = 0
        self.damaged_messages = 0  # of those, appends whose bytes were to blame
        self.refusal = ""  # why the last message or leadership was refused
        self.handed: TimeoutNow | None = None  # the last leadership that was handed to us
        self.is_due = False  # whether a tick would commit or apply something
        self._applier = applier
        self._send = send
        self.leadership = Leadership(config, journal, clock, send)
        self._other_voters: list[UUID] = []  # the nodes of pysyncobj
        self._votes = Ballot()
        self._pre_vote = PreVote(config, journal, clock, send, is_sticky=protections.sticky_votes)
        self._answering: Append | None = None
        self._matched = Matched(self.leadership.freshness.stamp, config.promise_ms)
        self.offers = Offers(self, self._matched, applier, send)
        running.use(clock)
        transport = Wire(self._from_pysyncobj)
        super().__init__(Node(self_id), [], configuration(config, journal), transport=transport)
        self._poller = NoPoller()
        # pysyncobj would begin at 1 and apply nothing, or everything, again.
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = max(applied, journal.start)
        journal.is_leading = lambda: self._SyncObj__raftState == LEADER
        journal.on_membership = self._reconfigure
        self._reconfigure()
        if self.membership.voters == (self_id,):  # no other member could lead: do not wait
            self._SyncObj__raftElectionDeadline = float("-inf")

    # State

    @property
    def term(self) -> int:
        """The current term."""
        return self._SyncObj__raftCurrentTerm  # type: ignore[no-any-return]

    @property
    def state(self) -> int:
        """FOLLOWER, CANDIDATE or LEADER."""
        return self._SyncObj__raftState  # type: ignore[no-any-return]

    @property
    def leader_id(self) -> UUID | None:
        """The leader, as far as this member knows."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    @property
    def applied(self) -> int:
        """The last proposal that was applied."""
        return self._SyncObj__raftLastApplied

    @property
    def commit(self) -> int:
        """The last committed proposal; as leader, no more than it has synced itself."""
        commit: int = self._SyncObj__raftCommitIndex
        applied: int = self._SyncObj__raftLastApplied
        if (
            commit > applied
            and self._SyncObj__raftState == LEADER
            and self.protections.leader_own_sync
        ):
            return min(commit, max(self.journal.durable, applied))
        return commit

    @property
    def membership(self) -> Membership:
        """The membership by the newest ``raft_config`` in this member's log."""
        return self.journal.membership

    @property
    def applied_membership(self) -> Membership:
        """The membership as of the last applied proposal."""
        return self.journal.find_membership(self._SyncObj__raftLastApplied)

    @property
    def hears_leader(self) -> bool:
        """Whether this member leads, or has heard the leader that it knows recently."""
        if self._SyncObj__raftState == LEADER:
            return True
        return self.leader_id is not None and self._pre_vote.hears_leader

    @property
    def has_applied_noop(self) -> bool:
        """Whether this leader has applied an entry of its own term: it knows what is committed."""
        noop: int | None = self._SyncObj__noopIDx
        is_applied = noop is not None and self._SyncObj__raftLastApplied >= noop
        return is_applied and self._SyncObj__raftState == LEADER

    def find_match(self, peer_id: UUID) -> int:
        """As leader, return the last proposal that a peer has durably, as far as is known."""
        peer = self.leadership.peers.get(peer_id)
        return peer.match if peer and self.state == LEADER else 0

    # What the shard calls

    def tick(self) -> None:
        """Do what is due: elections, heartbeats, stepping down, committing, applying."""
        if running.clock is not self.clock:
            running.use(self.clock)
        self.is_due = False
        self.doTick(0)

    def propose(self, drafts: Sequence[tuple[int, bytes, int]]) -> tuple[int, int]:
        """Append a group as leader; return its number and term, which identify it."""
        if running.clock is not self.clock:
            running.use(self.clock)
        if self._SyncObj__raftState != LEADER:
            raise NotLeader(self.leader_id)
        number = self.journal.last + 1
        if number - self._SyncObj__raftLastApplied > self.config.proposals_waiting_max:
            limit = self.config.proposals_waiting_max
            raise ProposalRefused(f"{limit} proposals wait for their commit")
        self._applyCommand(Proposal(drafts), None)
        # If the process was paused at the wrong moment, it gives up after a heartbeat without
        # appending; then the next proposal would get this number.
        while self.journal.last < number:
            self._checkCommandsToApply()
        return number, self._SyncObj__raftCurrentTerm

    def hand_over(self, target: UUID, hold_ms: int = 0) -> None:
        """As leader, ask a peer that has the whole log to stand for election at once."""
        self.leadership.lease.give_up()
        self._send(target, TimeoutNow(self.term, hold_ms))

    def start_round(self) -> int:
        """Ask every peer to confirm that we lead; return the number of the question."""
        if running.clock is not self.clock:
            running.use(self.clock)
        commit = self.commit
        self.leadership.begin_round(commit if self.has_applied_noop else None)
        self.leadership.send_all(self.term, commit, ask=True)
        return self.leadership.round

    def confirmed_round(self) -> int:
        """Return the newest round that a majority has answered in this term."""
        if not self.protections.read_round:
            return self.leadership.round
        return self.leadership.confirmed_round()

    def on_synced(self) -> None:
        """The log's durable position has moved: ack it to the leader, or count it as leader."""
        if running.clock is not self.clock:
            running.use(self.clock)
        if self.state == LEADER:
            for peer_id in self._other_voters:
                self._feed_match(peer_id)
            self.is_due = self.is_due or not self._other_voters
            return
        vouched, leader_id = self._matched, self.leader_id
        if vouched.term == self.term and leader_id is not None and vouched.number:
            self._send(leader_id, vouched.ack(self.journal.durable))

    def on_message(self, sender: UUID, message: Message) -> None:
        """Handle a message of a peer; one from a non-member, or a stale one, is dropped."""
        if running.clock is not self.clock:
            running.use(self.clock)
        if message.term > self.term + TERM_STEP_MAX:
            self._drop(f"term {message.term}, here is {self.term}")
            return
        if sender not in self.membership.members and (
            self.state == LEADER or not self._pre_vote.may_be_new(sender, message, self.leader_id)
        ):
            self._drop(f"{sender} is not a member")
            return
        match message:
            case Append():
                try:
                    self._on_append(sender, message)
                except CorruptFile as error:  # an entry applied long ago is damaged
                    self.leadership.on_damage(error)
            case Offer():
                self.offers.on_offer(sender, message)
            case VoteRequest(pre_vote=True):
                self._on_pre_vote_request(sender, message)
            case VoteRequest():
                self._on_vote_request(sender, message)
            case Vote():
                self._on_vote(sender, message)
            case Ack():
                self._on_ack(sender, message)
            case Stale(term=term) if term > self.term:
                self._SyncObj__setCurrentTerm(term, None)
                self.step_down()
            case TimeoutNow(term) if term == self.term and self.self_id in self.membership.voters:
                self.handed = message
                self._feed(sender, {"type": "timeout_now", "term": term})

    def _drop(self, why: str) -> None:
        self.dropped_messages += 1
        self.refusal = why

    # Elections

    def _reconfigure(self) -> None:
        """Make pysyncobj's nodes the other voters of the newest membership in the log."""
        membership = self.journal.membership
        voters = [each for each in membership.voters if each != self.self_id]
        match: dict[Node, int] = self._SyncObj__raftMatchIndex
        heard_s: dict[Node, float] = self._SyncObj__lastResponseTime
        for peer_id in voters:
            match.setdefault(Node(peer_id), 0)
            heard_s.setdefault(Node(peer_id), self.clock.now_s())
        for node in [each for each in match if each.id not in voters]:
            del match[node]
            heard_s.pop(node, None)
        # A new set: pysyncobj may be walking through the old one.
        self._SyncObj__otherNodes = {Node(peer_id) for peer_id in voters}
        self._other_voters = voters
        others = [each for each in membership.members if each != self.self_id]
        self.leadership.reconfigure(others, voters)

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802 - asked before an election only
        """Return whether an election could be won; if unknown, ask the peers."""
        if self.self_id not in self.membership.voters:
            self._SyncObj__transferInProgress = False
            return False
        if self._SyncObj__transferInProgress:
            # A handover by the leader of an earlier term is void: a later leader has its lease.
            self._SyncObj__transferInProgress = self._is_handed(self.term + 1)
        is_alone = not self._other_voters
        if is_alone or not self.protections.pre_vote or self._SyncObj__transferInProgress:
            return True
        if self._pre_vote.is_bound:
            return False
        timeout_s = self._SyncObj__generateRaftTimeout()
        return self._pre_vote.would_win(self.term + 1, self._other_voters, timeout_s)

    def _is_handed(self, term: int) -> bool:
        """Return whether the leader of the term before ``term`` has handed over to this member."""
        return self.handed is not None and self.handed.term + 1 == term

    def _on_pre_vote_request(self, sender: UUID, request: VoteRequest) -> None:
        if request.term <= self.term:
            self._send(sender, Stale(self.term))
        elif self.state != LEADER:
            self._pre_vote.on_request(sender, request)

    def _on_vote_request(self, sender: UUID, request: VoteRequest) -> None:
        if request.term < self.term:
            self._send(sender, Stale(self.term))
            return
        led = self.state == LEADER
        if self._pre_vote.is_bound and not led and not request.is_handed:
            self._drop(f"{sender} stands for election while a leader is heard")
            return
        last = {"last_log_index": request.last_proposal, "last_log_term": request.last_term}
        self._feed(sender, {"type": "request_vote", "term": request.term, **last})
        if led and self.state != LEADER:
            self._restart_election_timer()

    def _on_vote(self, sender: UUID, vote: Vote) -> None:
        if vote.pre_vote:
            self._pre_vote.on_answer(sender, vote)
            return
        if self._votes.term != self.term:
            self._votes.open(self.term)
        if self.protections.vote_set and (
            sender not in self.membership.voters or not self._votes.add(vote.term, sender)
        ):
            self._drop("a vote that does not count")
            return
        self._feed(sender, {"type": "response_vote", "term": vote.term})

    def step_down(self) -> None:
        """Become a follower."""
        if self.state == LEADER:
            self._restart_election_timer()
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None
        self._SyncObj__transferInProgress = False

    def _restart_election_timer(self) -> None:
        """Restart the timer: that of a former leader ran out long ago."""
        timeout_s = self._SyncObj__generateRaftTimeout()
        self._SyncObj__raftElectionDeadline = self.clock.now_s() + timeout_s

    # A follower's side of appends

    def _on_append(self, sender: UUID, append: Append) -> None:
        if not self.accepts_leader(sender, append.term):
            return
        journal, previous = self.journal, append.previous
        try:
            is_held = journal.holds(previous, append.previous_term)
            groups = journal.check(previous, append.groups, append.term) if is_held else []
        except EntryError as error:
            self.damaged_messages += 1
            self._drop(f"from {sender}: {error}")
            return
        entries = [(each, previous + at, each.term) for at, each in enumerate(groups, start=1)]
        self._pre_vote.heard_leader()
        self.leadership.freshness.echoed(append.echo, append.commit)
        covered = previous + len(append.groups)
        commit = min(append.commit, covered) if self.protections.commit_clamp else append.commit
        message = {"type": "append_entries", "term": append.term, "commit_index": commit}
        message |= {"prevLogIdx": previous, "prevLogTerm": append.previous_term, "entries": entries}
        self._answering = append
        try:
            self._feed(sender, message)
        except (DiskFull, GroupTooLarge) as error:
            # Still following; only this append cannot be stored, and it is sent again later.
            self._drop(str(error))
            following = journal.durable + 1
            self._send(sender, Ack(append.term, append.round, following, False, False))
            return
        finally:
            self._answering = None
        travelled_s = self.leadership.freshness.travelled_s(append.echo)
        self._applier.heard(append.log_time_ns, travelled_s)
        self.is_due = self.is_due or self.commit > self.applied

    def accepts_leader(self, sender: UUID, term: int) -> bool:
        """Return whether to accept a leader's message; a leader of an older term gets ``Stale``."""
        if term < self.term:
            self._send(sender, Stale(self.term))
            return False
        if term == self.term and self.leader_id not in (None, sender):
            self._drop(f"{sender} and {self.leader_id} both lead term {self.term}")
            return False
        return True

    def follow(self, leader_id: UUID, term: int, commit: int) -> None:
        """Handle a heartbeat of a leader that vouches for nothing in this log."""
        self._pre_vote.heard_leader()
        if self.protections.snapshot_commit_clamp:
            commit = min(commit, self._SyncObj__raftCommitIndex)
        self._feed(leader_id, {"type": "append_entries", "term": term, "commit_index": commit})

    def begin_at_base(self, config: bytes) -> None:
        """Continue after a snapshot that was installed in the log and the state."""
        self.journal.begin_at_base(config)
        self._SyncObj__raftLastApplied = self._SyncObj__raftCommitIndex = self.journal.start

    def heard_from(self, peer_id: UUID, term: int) -> None:
        """Count any other message of a peer as a sign of life."""
        if running.clock is not self.clock:
            running.use(self.clock)
        if self.state == LEADER and peer_id in self._other_voters:
            self._SyncObj__lastResponseTime[Node(peer_id)] = self.clock.now_s()
        elif self.state != LEADER and peer_id == self.leader_id and term == self.term:
            self._pre_vote.heard_leader()
            self._restart_election_timer()

    def _SyncObj__getEntries(  # noqa: N802
        self, number: int | None, count: int | None = None, _size_max: int | None = None
    ) -> Any:
        """Return items; if pysyncobj asks for all from one on, return just that one.

        It would delete the entries after an append's previous entry, so it must not see them.
        """
        journal = self.journal
        if number is None or number < journal.start:
            return []
        count = 1 if count is None else count
        return [journal.item(each) for each in range(number, min(number + count, journal.last + 1))]

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Node,
        reset: bool = False,  # noqa: FBT001, FBT002 - pysyncobj's signature
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Answer an append at once, but acknowledge no more than is durable."""
        append = self._answering
        assert append is not None, "an answer to nothing"
        if success:
            assert nextNodeIdx is not None
            vouched = self._matched.note(append.term, append.round, nextNodeIdx - 1)
            is_safe = self.protections.follower_durable_ack
            self._send(node.id, self._matched.ack(self.journal.durable if is_safe else vouched))
            return
        if nextNodeIdx is None:  # the previous entry is missing
            following = self.journal.last + 1
        else:
            # It is another one. What is committed here is the same at the leader, so one
            # question is enough; pysyncobj would go back one by one.
            following = self._SyncObj__raftCommitIndex + 1
        self._send(node.id, Ack(append.term, append.round, following, success, reset))

    # A leader's side

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        """Begin a leadership knowing nothing: what a peer had under an earlier one may be cut."""
        self.leadership.begin()
        self._applier.lead()
        try:
            super()._SyncObj__onBecomeLeader()
        except DiskFull as error:
            # A leader that cannot write is worse than none: let another member try.
            self.refusal = str(error)
            self.step_down()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Send every peer what it lacks; pysyncobj's own version resends all after each ack."""
        self._SyncObj__newAppendEntriesTime = self.clock.now_s() + self.config.heartbeat_s / 2
        leadership, commit = self.leadership, self.commit
        leadership.begin_round(commit if self.has_applied_noop else None)
        leadership.send_all(self._SyncObj__raftCurrentTerm, commit)

    def _on_ack(self, sender: UUID, ack: Ack) -> None:
        peer = self.leadership.peers.get(sender)
        term = self.term if self.protections.stamped_acks else None
        if self.state != LEADER or peer is None or not self.leadership.is_ours(ack, term):
            self._drop("an ack for another leadership, or for what does not exist")
            return
        self.leadership.on_ack(peer, ack)
        if sender in self.membership.voters:
            self._SyncObj__lastResponseTime[Node(sender)] = self.clock.now_s()
            self._feed_match(sender)
        self.leadership.send_to(sender, self.term, self.commit)

    def _feed_match(self, peer_id: UUID) -> None:
        """Pass pysyncobj what a voter has, but no more than is durable here."""
        match = self.leadership.peers[peer_id].match
        if self.protections.leader_own_sync:
            match = min(match, self.journal.durable)
        known: dict[Node, int] = self._SyncObj__raftMatchIndex
        node = Node(peer_id)
        if match > known.get(node, match):
            known[node] = match
            self.is_due = self.is_due or match > self._SyncObj__raftCommitIndex

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply committed groups for a bounded time; return whether to tell followers now."""
        # Stored, not only reported: pysyncobj must not count more than this leader has synced.
        commit = self._SyncObj__raftCommitIndex = self.commit
        until_s = self.clock.now_s() + self.config.apply_s_max
        while self._SyncObj__raftLastApplied < commit:
            number = self._SyncObj__raftLastApplied + 1
            self._applier.apply(number, self.journal.log.proposals.data(number))
            self._SyncObj__raftLastApplied = number
            if self.clock.now_s() > until_s:
                self.is_due = True
                break
        return False  # followers hear of it with the next group, or the next heartbeat

    # Between pysyncobj and us

    def _feed(self, sender: UUID, message: dict[str, Any]) -> None:
        self._SyncObj__onMessageReceived(Node(sender), message)

    def _from_pysyncobj(self, node: Node, message: dict[str, Any]) -> None:
        """Translate and send a message that pysyncobj makes."""
        is_handed = self._is_handed(message["term"])
        self._send(node.id, translated(message, is_handed=is_handed))


# Changing


def change_membership(member: RaftMember, membership: Membership) -> tuple[int, int]:
    """As leader, propose other members; return the proposal's number and term."""
    if member.state != LEADER:
        raise NotLeader(member.leader_id)
    if member.protections.one_change:
        is_settled = member.journal.membership_number <= member.applied
        check_moment(leads=member.has_applied_noop, is_settled=is_settled)
        check_change(member.membership, membership, member.self_id)
    for each in set(membership.voters) - set(member.membership.voters):
        if member.find_match(each) < member.commit:
            raise MembershipRefused(f"{each} has not caught up yet")
    return member.propose([membership.draft()])


# Transfer

TransferCallback = Callable[[ClusterError | None], None]


class Transfer:
    """One attempt. ``advance`` until it returns True; then ``error`` says how it ended."""

    def __init__(
        self, member: RaftMember, target: UUID, callback: TransferCallback, hold_ms: int = 0
    ) -> None:
        """``hold_ms``: how long the target should keep it (``node/membership/balance.py``)."""
        if member.state != LEADER:
            raise NotLeader(member.leader_id)
        if target == member.self_id or target not in member.membership.voters:
            raise TransferFailed(f"{target} is no other member that votes")
        self.callback = callback
        self.error: ClusterError | None = None
        self._member = member
        self._target = target
        self._hold_ms = hold_ms
        self._term = member.term
        self._is_asked = False
        self._until_s = self._later_s()

    def advance(self) -> bool:
        """Take the next step if possible; return whether the attempt is over."""
        member = self._member
        if member.state != LEADER or member.term != self._term:
            return True  # another member leads, or soon will
        if member.clock.now_s() >= self._until_s:
            what = "was not elected in time" if self._is_asked else "did not catch up in time"
            self.error = TransferFailed(f"{self._target} {what}")
            return True
        if not self._is_asked and member.find_match(self._target) == member.journal.last:
            self._is_asked = True
            self._until_s = self._later_s()
            member.hand_over(self._target, self._hold_ms)
        return False

    def _later_s(self) -> float:
        return self._member.clock.now_s() + self._member.config.election_s_max
