"""The judge: sees every message, every applied group and every restart, and knows the promises.

* At most one leader per term; terms never go back; a replica votes once in a term.
* What was applied at a number is the same everywhere and for ever, and every new leader has it.
* While somebody has a lease, nobody leads a later term.
* At most one change of members is not committed yet, in any log.
* Equal indexes have equal state hashes, on every replica, and after every restart, which is a
  replay from a snapshot or from the beginning.
* After every group the law of each queue holds: what came in is what went out and what is there.
* In the end: all members stand at the same place and hold the same bytes; a replay of a whole log
  gives the live state; every client's history is linearizable, with the state that every member
  has in the end as its last reads.
"""

from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.messages import Append, Message, Vote, VoteRequest
from onelog.node.replica.shard import Shard
from onelog.projections.result import Refused
from onelog.projections.shard_state import build_projections
from onelog.snapshot.replay import replay
from onelog.ual.entry import decode_entries
from onelog.ual.errors import CorruptFile
from onelog.ual.segments.notes import ApplyNotes
from tests.simulation.caller import NAMESPACE
from tests.simulation.clients import COUNTERS, History
from tests.simulation.linearizability import Operation, is_linearizable
from tests.simulation.replica import Replica

Fail = Callable[[str], None]


class Judge:
    """See the module's text. ``fail`` raises."""

    def __init__(self, fail: Fail, note: Fail) -> None:
        self._fail = fail
        self._note = note
        self._leaders: dict[int, UUID] = {}
        self._votes: dict[tuple[UUID, int], UUID] = {}
        self._terms: dict[UUID, int] = {}
        self._applied: dict[int, bytes] = {}
        self._hashes: dict[int, int] = {}
        self._looked: dict[UUID, tuple[int, int]] = {}  # index and router that were compared
        self._applied_by_term: dict[int, int] = {}  # by the term in which it was first applied
        self.applied_max = 0
        self.stamps: dict[int, int] = {}  # the log time of each entry that was applied, by index
        self.compares_states = True
        self.on_first_applied: Callable[[int, int], None] = lambda _number, _index: None

    @property
    def applied(self) -> dict[int, bytes]:
        """The groups that were applied, by the numbers of their proposals."""
        return self._applied

    @property
    def elections(self) -> int:
        """How many terms had a leader."""
        return len(self._leaders)

    @property
    def leaders(self) -> dict[int, UUID]:
        """Who led which term."""
        return self._leaders

    def sent(self, source: UUID, target: UUID, message: Message) -> None:
        """Look at a message that is being sent: it shows who leads and who voted for whom."""
        match message:
            case Append(term=term):
                leader = self._leaders.setdefault(term, source)
                if leader != source:
                    self._fail(f"{leader.int} and {source.int} both lead term {term}")
            case Vote(term=term, pre_vote=False):
                self._voted(source, term, target)
            case VoteRequest(term=term, pre_vote=False):
                self._voted(source, term, source)

    def _voted(self, voter: UUID, term: int, candidate: UUID) -> None:
        before = self._votes.setdefault((voter, term), candidate)
        if before != candidate:
            what = f"{voter.int} votes for {candidate.int} in term {term}"
            self._fail(f"{what} and has voted for {before.int}")

    def started(self, replica: Replica, shard: Shard) -> None:
        """Look at a replica that has recovered, and from now on at all that it applies."""
        index, state_hash = shard.router.applied_index, shard.router.state_hash()
        if self._hashes.setdefault(index, state_hash) != state_hash:
            self._fail(f"a replay on {replica.name} gives another state at {index}")
        self.look(replica)
        apply, lead = shard.apply, shard.lead

        def watched_apply(number: int, data: bytes) -> None:
            if self._applied.setdefault(number, data) != data:
                self._fail(f"proposal {number} differs on {replica.name}")
            if number > self.applied_max:
                self.applied_max = self._applied_by_term[shard.member.term] = number
                entries = decode_entries(data)
                self.stamps.update((entry.index, entry.timestamp_ns) for entry in entries)
                self.on_first_applied(number, entries[-1].index)
            apply(number, data)
            index, state_hash = shard.router.applied_index, shard.router.state_hash()
            is_same = self._hashes.setdefault(index, state_hash) == state_hash
            if self.compares_states and not is_same:
                self._fail(f"state differs at {index} on {replica.name}")
            for queue in shard.projections.queue._queues.values():
                if not queue.is_conserved():
                    self._fail(f"queue {queue.id} breaks its law at {index} on {replica.name}")

        def watched_lead() -> None:
            self._leads(replica, shard)
            lead()

        shard.apply = watched_apply  # type: ignore[method-assign]
        shard.lead = watched_lead  # type: ignore[method-assign]

    def _leads(self, replica: Replica, shard: Shard) -> None:
        """A new leader has everything that was committed in earlier terms.

        In later ones, too, if it is not elected by votes that were long on their way.
        """
        journal, term = shard.member.journal, shard.member.term
        self._note(f"{replica.name} leads term {term}")
        earlier = (number for at, number in self._applied_by_term.items() if at < term)
        number = max(earlier, default=0)
        if journal.last < number:
            self._fail(f"{replica.name} leads without proposal {number}")
        for each in range(max(journal.start + 1, number - 20), number + 1):
            try:
                data = shard.log.proposals.data(each)
            except CorruptFile:
                continue  # rotten; whether it is repaired is asked in the end
            if data != self._applied.get(each):
                self._fail(f"{replica.name} leads with another proposal {each}")

    def look_at_leases(self, replicas: Iterable[Replica]) -> None:
        """While somebody has a lease, nobody leads a later term, whether anybody reads or not."""
        leading = [
            (each.shard.member.term, each)
            for each in replicas
            if each.shard is not None and each.shard.member.state == LEADER
        ]
        last_term = max((term for term, _ in leading), default=0)
        for term, replica in leading:
            assert replica.shard is not None
            if term < last_term and replica.shard.reads.may_look(by_lease=True):
                self._fail(f"{replica.name} has a lease of term {term}, {last_term} has a leader")

    def look(self, replica: Replica) -> None:
        """Look at a replica between its steps."""
        shard = replica.shard
        if shard is None:
            return
        member = shard.member
        if member.term < self._terms.get(replica.node_id, 0):
            self._fail(f"the term of {replica.name} went back")
        self._terms[replica.node_id] = member.term
        if member.state == LEADER:
            leader = self._leaders.setdefault(member.term, replica.node_id)
            if leader != replica.node_id:
                self._fail(f"{leader.int} and {replica.name} both lead term {member.term}")
        index = shard.router.applied_index
        if self._looked.get(replica.node_id) != (index, id(shard.router)):
            self._looked[replica.node_id] = (index, id(shard.router))
            state_hash = shard.router.state_hash()
            if self._hashes.setdefault(index, state_hash) != state_hash:
                self._fail(f"state differs at {index} on {replica.name}, by a snapshot")
        changes = [number for number, _ in member.journal._memberships]
        if sum(number > self.applied_max for number in changes) > 1:
            self._fail(f"two changes of members at once in the log of {replica.name}: {changes}")

    def finish(self, members: Iterable[Replica], history: History, now_s: float) -> None:
        """Judge the end of a run, when everything should be quiet and well."""
        shards = [(replica, replica.shard) for replica in members]
        stand = {replica.name: shard and shard.member.applied for replica, shard in shards}
        if len(set(stand.values())) != 1 or None in stand.values():
            self._fail(f"the members stand at {stand}")
        for replica, shard in shards:
            assert shard is not None
            shard.log.check()
            shard.router.check()
            if alarm := shard.comparison.status().alarm:
                self._fail(f"{replica.name} raises a false alarm: {alarm}")
            self._whole(replica, shard, [other for _, other in shards if other is not shard])
            if shard.shipping.repair.damages:
                continue
            for number in range(max(shard.log.first_proposal, 2), shard.member.applied + 1):
                if shard.log.proposals.data(number) != self._applied.get(number):
                    self._fail(f"proposal {number} of {replica.name} is not what was applied")
            self._replay(replica, shard)
            for key in history.by_key:
                found = shard.projections.kv.get(NAMESPACE, key)
                assert not isinstance(found, Refused), found
                value = None if found is None else found.value
                history.begin(key, Operation(-1, None, now_s, now_s + 1, value))
        for key, operations in history.by_key.items():
            model = counter if key in COUNTERS else register
            if not is_linearizable(operations, model, None):
                self._fail(f"the history of {key!r} is not linearizable")

    def _whole(self, replica: Replica, shard: Shard, others: list[Shard | None]) -> None:
        """What rotted was found, and replaced if anybody has it."""
        damages = shard.shipping.repair.damages
        if replica.has_rotten_files() and not damages:
            self._fail(f"nobody has found what rotted on {replica.name}")
        for damage in damages.values():
            for other in others:
                if other is not None and other.log.first_index <= damage.first_index:
                    self._fail(f"{damage} of {replica.name} was not repaired")

    def _replay(self, replica: Replica, shard: Shard) -> None:
        """While the log is whole, replaying it from index 1 gives the live state."""
        if shard.log.first_index > 1:
            return
        fresh = build_projections(ApplyNotes())
        last_index = shard.router.applied_index
        replay(fresh.router, shard.log.segments.scan(1, last_index), last_index=last_index)
        if fresh.router.state_hash() != shard.router.state_hash():
            self._fail(f"a replay of the whole log of {replica.name} gives another state")


def register(state: Any, argument: Any) -> tuple[Any, Any]:
    """A key: an argument is written, None reads."""
    return (state, state) if argument is None else (argument, "ok")


def counter(state: Any, argument: Any) -> tuple[Any, Any]:
    """A counter: an argument is added and the sum returned; None reads what the key holds."""
    if argument is None:
        return state, None if state is None else b"%d" % state
    total = (state or 0) + argument
    return total, total
