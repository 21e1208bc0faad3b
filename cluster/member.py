"""One member of a Raft group: pysyncobj, fenced.

This is the only file that touches pysyncobj's private names. They are listed in ``PRIVATE_NAMES``
and a test compares them with the installed version. Elections, terms, the commit rule and the
follower's log matching are pysyncobj's; what it gets wrong is put right here:

* It acknowledges what it received; we acknowledge what is synced, and feed a leader the acks of
  others no further than its own sync has come.
* It counts votes and acks without asking of whom, of which term, and how often; every message here
  carries its term, votes are a set, and what is not from a member is dropped.
* A follower commits up to its last entry, vouched for or not; the commit index of an append is
  lowered to what that append covers.
* It has no pre-vote: the question whether it is connected to anybody, which it asks before it
  stands for election, is answered with the outcome of one.
* It rewinds with every ack, pickles, and reads a global clock; sending, applying and time are ours.

Everything happens inside calls on one thread: ``tick``, ``on_message``, ``on_synced``, ``propose``.
Calls of different members never nest, which is what lets them share pysyncobj's module globals.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol
from uuid import UUID

from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node

from cluster.config import ALL_ON, Protections, RaftConfig
from cluster.errors import NotLeader, ProposalRefused
from cluster.journal import Proposal, RaftJournal, command_of, term_of_group
from cluster.messages import Ack, Append, Message, Stale, TimeoutNow, Vote, VoteRequest
from cluster.peers import Peer
from cluster.seam import Clock, NoPoller, Wire, running

PRIVATE_NAMES = (
    "raftState", "raftCurrentTerm", "votedForNodeId", "votesCount", "raftLeader", "otherNodes",
    "raftElectionDeadline", "transferInProgress", "raftCommitIndex", "raftLastApplied",
    "raftNextIndex", "raftMatchIndex", "lastResponseTime", "newAppendEntriesTime",
    "connectedNodes", "noopIDx", "setState", "setCurrentTerm", "generateRaftTimeout",
    "onMessageReceived",
    # overridden below:
    "applyLogEntries", "connectedToAnyone", "getEntries", "onBecomeLeader", "sendAppendEntries",
    "sendNextNodeIdx",
)  # fmt: skip

FOLLOWER, CANDIDATE, LEADER = 0, 1, 2
NEVER_ENTRIES = 10**9  # log compaction is ours: pysyncobj's would pickle this object


class Applier(Protocol):
    """Who learns that proposals are committed, in order, each once."""

    def lead(self) -> None:
        """This member is about to lead: its next call may append."""

    def apply(self, number: int, data: bytes) -> None:
        """Fold a committed group into the state. Must not raise: that would stop the replica."""


class RaftMember(SyncObj):  # type: ignore[misc]
    """See the module's text."""

    def __init__(
        self,
        config: RaftConfig,
        self_id: UUID,
        peer_ids: list[UUID],
        journal: RaftJournal,
        clock: Clock,
        applier: Applier,
        send: Callable[[UUID, Message], None],
        *,
        applied: int,
        protections: Protections = ALL_ON,
    ) -> None:
        self.config = config
        self.journal = journal
        self.clock = clock
        self.protections = protections
        self.dropped_messages = 0
        self._applier = applier
        self._send = send
        self._peers: dict[UUID, Peer] = {}
        self._round = 0
        self._votes: set[UUID] = set()
        self._votes_term = -1
        self._pre_votes: set[UUID] = set()
        self._pre_vote_term = -1
        self._pre_vote_until_s = float("-inf")
        self._leader_heard_s = float("-inf")
        self._answering: Append | None = None
        self._matched = (0, 0, 0)  # term, round, number: what the leader vouched for
        self._waiting_count = 0
        journal.is_leading = lambda: self.state == LEADER
        running.clock = clock
        super().__init__(
            Node(self_id),
            [Node(peer) for peer in sorted(peer_ids)],
            SyncObjConf(
                autoTick=False,
                appendEntriesUseBatch=False,
                commandsWaitLeader=False,
                dynamicMembershipChange=False,
                fullDumpFile=None,
                journalFile=journal,
                logCompactionMinEntries=NEVER_ENTRIES,
                logCompactionMinTime=NEVER_ENTRIES,
                appendEntriesPeriod=config.heartbeat_s,
                raftMinTimeout=config.election_s_min,
                raftMaxTimeout=config.election_s_max,
                leaderFallbackTimeout=config.leader_silence_s_max,
                commandsQueueSize=config.proposals_waiting_max,
                pollerType="select",
            ),
            transport=Wire(self._from_pysyncobj),
        )
        self._poller = NoPoller()
        self._SyncObj__connectedNodes.update(self._SyncObj__otherNodes)
        # pysyncobj would begin at 1 and apply nothing, or everything, again.
        self._SyncObj__raftLastApplied = applied
        self._SyncObj__raftCommitIndex = max(applied, journal.start)

    # State

    @property
    def self_id(self) -> UUID:
        """This member."""
        return self._SyncObj__selfNode.id  # type: ignore[no-any-return]

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
        """Who leads, as far as this member knows."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    @property
    def applied(self) -> int:
        """The last proposal that was applied."""
        return self._SyncObj__raftLastApplied

    @property
    def commit(self) -> int:
        """The last proposal that is committed and may be applied here.

        A leader without peers is a majority by itself as soon as it has written something, says
        pysyncobj; we say, as soon as that is synced.
        """
        commit: int = self._SyncObj__raftCommitIndex
        if self.state == LEADER and self.protections.leader_own_sync:
            return min(commit, max(self.journal.durable, self.applied))
        return commit

    @property
    def peer_ids(self) -> list[UUID]:
        """The other members, in a fixed order."""
        return sorted(node.id for node in self._SyncObj__otherNodes)

    def _majority(self, others: int) -> bool:
        return others + 1 > (len(self._SyncObj__otherNodes) + 1) / 2

    # What the shard calls

    def tick(self) -> None:
        """Let time pass: elections, heartbeats, stepping down, committing, applying."""
        running.clock = self.clock
        self.doTick(0)

    def propose(self, drafts: Sequence[tuple[int, bytes, int]]) -> tuple[int, int]:
        """Append a group as leader; return its number and term, which name its outcome."""
        running.clock = self.clock
        if self.state != LEADER:
            raise NotLeader(self.leader_id)
        if self.journal.last - self.applied >= self.config.proposals_waiting_max:
            limit = self.config.proposals_waiting_max
            raise ProposalRefused(f"{limit} proposals wait for their commit")
        self._applyCommand(Proposal(drafts), None)
        self._checkCommandsToApply()
        return self.journal.last, self.term

    @property
    def has_applied_noop(self) -> bool:
        """Whether this leader has applied an entry of its own term: it knows what is committed."""
        noop = self._SyncObj__noopIDx
        return self.state == LEADER and noop is not None and self.applied >= noop

    def start_round(self) -> int:
        """Ask every peer to confirm that we lead; return the number of the question."""
        running.clock = self.clock
        self._round += 1
        now_s = self.clock.now_s()
        for peer_id in self.peer_ids:
            self._send_to(peer_id, now_s, ask=True)
        return self._round

    def confirmed_round(self) -> int:
        """Return the newest round that a majority has answered in this term."""
        if not self.protections.read_round or not self._SyncObj__otherNodes:
            return self._round
        rounds = sorted((peer.round for peer in self._peers.values()), reverse=True)
        # With this member, so many peers are a majority of all.
        needed = (len(rounds) + 1) // 2
        return rounds[needed - 1]

    def on_synced(self) -> None:
        """The log's durable position has moved: tell the leader, or count it as one."""
        running.clock = self.clock
        if self.state == LEADER:
            for peer_id, peer in self._peers.items():
                self._feed_match(peer_id, peer.match)
            return
        term, round_, matched = self._matched
        if term == self.term and self.leader_id is not None and matched:
            acked = min(matched, self.journal.durable)
            self._send(self.leader_id, Ack(term, round_, acked + 1, success=True, reset=False))

    def on_message(self, sender: UUID, message: Message) -> None:
        """Take a message of a peer; one that is not from a member, or is stale, is dropped."""
        running.clock = self.clock
        if Node(sender) not in self._SyncObj__otherNodes:
            self.dropped_messages += 1
            return
        match message:
            case VoteRequest(pre_vote=True):
                self._on_pre_vote_request(sender, message)
            case VoteRequest():
                self._on_vote_request(sender, message)
            case Vote():
                self._on_vote(sender, message)
            case Append():
                self._on_append(sender, message)
            case Ack():
                self._on_ack(sender, message)
            case Stale(term=term):
                self._step_down_to(term)
            case TimeoutNow(term=term):
                self._feed(sender, {"type": "timeout_now", "term": term})

    # Elections

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802 - asked before an election only
        """Say whether an election would have a chance; if that is not known, ask the peers."""
        if not self._SyncObj__otherNodes or not self.protections.pre_vote:
            return True
        if self._SyncObj__transferInProgress:
            return True
        if self._pre_vote_term == self.term + 1 and self._majority(len(self._pre_votes)):
            self._pre_vote_term = -1
            return True
        now_s = self.clock.now_s()
        if now_s >= self._pre_vote_until_s:
            self._pre_vote_until_s = now_s + self._SyncObj__generateRaftTimeout()
            self._pre_vote_term = self.term + 1
            self._pre_votes = set()
            journal = self.journal
            self._broadcast(
                VoteRequest(self.term + 1, journal.last, journal.last_term, pre_vote=True)
            )
        return False

    def _on_pre_vote_request(self, sender: UUID, request: VoteRequest) -> None:
        """Say yes if the sender could win and nothing is known against an election."""
        silent_s = self.clock.now_s() - self._leader_heard_s
        led = self.state == LEADER or silent_s < self.config.election_s_min
        ours = (self.journal.last_term, self.journal.last)
        if (
            request.term > self.term
            and not led
            and (request.last_term, request.last_proposal) >= ours
        ):
            self._send(sender, Vote(request.term, pre_vote=True))
        elif request.term <= self.term:
            self._send(sender, Stale(self.term))

    def _on_vote_request(self, sender: UUID, request: VoteRequest) -> None:
        if request.term < self.term:
            self._send(sender, Stale(self.term))
            return
        self._feed(
            sender,
            {
                "type": "request_vote",
                "term": request.term,
                "last_log_index": request.last_proposal,
                "last_log_term": request.last_term,
            },
        )

    def _on_vote(self, sender: UUID, vote: Vote) -> None:
        if vote.pre_vote:
            if vote.term == self._pre_vote_term:
                self._pre_votes.add(sender)
            return
        if self._votes_term != self.term:
            self._votes_term, self._votes = self.term, set()
        if self.protections.vote_set:
            if vote.term != self.term or sender in self._votes:
                self.dropped_messages += 1
                return
            self._votes.add(sender)
        self._feed(sender, {"type": "response_vote", "term": vote.term})

    def _step_down_to(self, term: int) -> None:
        """Follow a higher term that somebody told us of."""
        if term > self.term:
            self._SyncObj__setCurrentTerm(term, None)
            self._SyncObj__setState(FOLLOWER)
            self._SyncObj__raftLeader = None

    # A follower's side of appends

    def _on_append(self, sender: UUID, append: Append) -> None:
        if append.term < self.term:
            self._send(sender, Stale(self.term))
            return
        self._leader_heard_s = self.clock.now_s()
        covered = append.previous + len(append.groups)
        commit = min(append.commit, covered) if self.protections.commit_clamp else append.commit
        self._answering = append
        try:
            self._feed(
                sender,
                {
                    "type": "append_entries",
                    "term": append.term,
                    "prevLogIdx": append.previous,
                    "prevLogTerm": append.previous_term,
                    "entries": [
                        (command_of(group), append.previous + at, term_of_group(group))
                        for at, group in enumerate(append.groups, start=1)
                    ],
                    "commit_index": commit,
                },
            )
        finally:
            self._answering = None

    def _SyncObj__getEntries(  # noqa: N802
        self, number: int | None, count: int | None = None, _size_max: int | None = None
    ) -> Any:
        """Return items; where pysyncobj asks for all from one on, it needs just that one.

        It would delete what follows an append's previous entry; it must not see that.
        """
        journal = self.journal
        if number is None or number < journal.start:
            return []
        at = number - journal.start
        return journal[at : at + (1 if count is None else count)]

    def _SyncObj__sendNextNodeIdx(  # noqa: N802
        self,
        node: Node,
        reset: bool = False,  # noqa: FBT001, FBT002 - pysyncobj's signature
        nextNodeIdx: int | None = None,  # noqa: N803
        success: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        """Answer an append: at once, but for no more than is durable."""
        append = self._answering
        assert append is not None, "an answer to nothing"
        following = self.journal.last + 1 if nextNodeIdx is None else nextNodeIdx
        if success:
            matched = following - 1
            self._matched = (append.term, append.round, matched)
            if self.protections.follower_durable_ack:
                following = min(matched, self.journal.durable) + 1
        self._send(node.id, Ack(append.term, append.round, following, success, reset))

    # A leader's side

    def _SyncObj__onBecomeLeader(self) -> None:  # noqa: N802
        """Begin a leadership knowing nothing: what a peer had under an earlier one may be cut."""
        self._peers = {peer_id: Peer() for peer_id in self.peer_ids}
        self._applier.lead()
        super()._SyncObj__onBecomeLeader()

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Send every peer what it lacks, within its window; at least a heartbeat when due."""
        now_s = self.clock.now_s()
        self._SyncObj__newAppendEntriesTime = now_s + self.config.heartbeat_s
        for peer_id in self.peer_ids:
            self._send_to(peer_id, now_s)

    def _send_to(self, peer_id: UUID, now_s: float, *, ask: bool = False) -> None:
        node, journal, config = Node(peer_id), self.journal, self.config
        peer = self._peers.setdefault(peer_id, Peer())
        due = ask or now_s - peer.spoken_s >= config.heartbeat_s * 0.9
        following: int = self._SyncObj__raftNextIndex[node]
        while True:
            previous = following - 1
            if previous < journal.start:
                return  # below the window: only a snapshot helps
            groups: list[bytes] = []
            size = 0
            while (
                following <= journal.last
                and size < config.frame_bytes_max
                and peer.in_flight_bytes < config.window_bytes_max
            ):
                group = journal.log.proposals.data(following)
                peer.sent(following, len(group))
                groups.append(group)
                size += len(group)
                following += 1
            if not groups and not due:
                return
            previous_term = journal.term_of(previous)
            commit = self.commit
            self._send(
                peer_id,
                Append(self.term, self._round, previous, previous_term, tuple(groups), commit),
            )
            self._SyncObj__raftNextIndex[node] = following
            peer.spoken_s, due = now_s, False

    def _on_ack(self, sender: UUID, ack: Ack) -> None:
        self._step_down_to(ack.term)
        if self.state != LEADER or (self.protections.stamped_acks and ack.term != self.term):
            self.dropped_messages += 1
            return
        node = Node(sender)
        peer = self._peers.setdefault(sender, Peer())
        peer.round = max(peer.round, ack.round)
        self._SyncObj__lastResponseTime[node] = self.clock.now_s()
        if ack.reset:
            peer.rewound()
            following = min(max(ack.next, peer.match + 1), self.journal.last + 1)
            self._SyncObj__raftNextIndex[node] = following
        elif ack.success:
            peer.confirmed(ack.next - 1)
            self._feed_match(sender, peer.match)
        self._send_to(sender, self.clock.now_s())

    def _feed_match(self, peer_id: UUID, match: int) -> None:
        """Tell pysyncobj what a peer has, no further than what is durable here, too."""
        if self.protections.leader_own_sync:
            match = min(match, self.journal.durable)
        node = Node(peer_id)
        if match <= self._SyncObj__raftMatchIndex.get(node, 0):
            return
        # As shipped, an ack moves the next index back to itself and all is sent again.
        following = self._SyncObj__raftNextIndex[node]
        heard_s = self._SyncObj__lastResponseTime.get(node)
        message = {"type": "next_node_idx", "next_node_idx": match + 1}
        self._feed(peer_id, message | {"reset": False, "success": True})
        self._SyncObj__raftNextIndex[node] = max(following, match + 1)
        if heard_s is not None:
            self._SyncObj__lastResponseTime[node] = heard_s

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """Apply what is committed, for a bounded time; return whether followers should know."""
        commit, until_s = self.commit, self.clock.now_s() + self.config.apply_s_max
        moved = False
        while self._SyncObj__raftLastApplied < commit:
            number = self._SyncObj__raftLastApplied + 1
            self._applier.apply(number, self.journal.log.proposals.data(number))
            self._SyncObj__raftLastApplied = number
            moved = True
            if self.clock.now_s() > until_s:
                break
        return moved

    # Between the two worlds

    def _feed(self, sender: UUID, message: dict[str, Any]) -> None:
        self._SyncObj__onMessageReceived(Node(sender), message)

    def _from_pysyncobj(self, node: Node, message: dict[str, Any]) -> None:
        """Translate what pysyncobj sends; what we send ourselves never comes this way."""
        match message["type"]:
            case "request_vote":
                self._send(
                    node.id,
                    VoteRequest(
                        message["term"],
                        message["last_log_index"],
                        message["last_log_term"],
                    ),
                )
            case "response_vote":
                self._send(node.id, Vote(message["term"]))
            case "timeout_now":
                self._send(node.id, TimeoutNow(message["term"]))
            case other:
                raise AssertionError(f"pysyncobj sent {other} behind our back")

    def _broadcast(self, message: Message) -> None:
        for peer_id in self.peer_ids:
            self._send(peer_id, message)
