"""Every protection, taken away: a simulator that does not notice proves nothing.

A mutation is a set of switches (``onelog.cluster.config.Protections``), or a replacement for the
method that protects, and the weather in which its absence should show. Replacements do what the
code would do without the protection, and what pysyncobj does as it ships where that is the
question.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from onelog.cluster.config import ALL_ON, Protections, RaftConfig
from onelog.cluster.errors import ProposalRefused
from onelog.cluster.raft import journal as journal_module
from onelog.cluster.raft.journal import KIND_DATA, RaftJournal
from onelog.cluster.raft.leadership import Leadership
from onelog.cluster.raft.member import LEADER, RaftMember
from onelog.cluster.raft.peers import Freshness, Lease
from onelog.cluster.raft.pre_vote import PreVote
from onelog.node.replica.shard import EXPIRE_LIMIT, Shard
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.table import LEASED
from onelog.projections.stream.reads import PageRead
from onelog.projections.system.commands import TYPE_EXPIRE, Expire, encode_command
from onelog.ual.entry import Unreadable
from onelog.ual.errors import DiskFull
from onelog.ual.hard_state import HardStateFile
from onelog.ual.jobs import SyncJob
from onelog.ual.log import Log
from tests.simulation.profile import MEMBERSHIP, Profile
from tests.simulation.replica import SHARD

Patches = tuple[tuple[Any, str, Any], ...]

# Leaders come and go quickly, but one that is cut off goes on believing in itself for a while.
NERVOUS = RaftConfig(
    heartbeat_s=0.03,
    election_s_min=0.1,
    election_s_max=0.2,
    leader_silence_s_max=1.5,
    frame_bytes_max=1,  # one group a frame
    window_bytes_max=1500,
)
SHORT = Profile(faults_s=12.0, heal_s=4.0, between_s=0.3, deadline_s=0.3, raft=NERVOUS)
# Power fails often and takes everything that was not synced; some disks are slow to sync.
POWER = replace(
    SHORT,
    weights={"crash": 3, "crash_all": 3, "cut_off_leader": 2, "mend": 2, "slow_sync": 4},
    slow_sync=(0.0, 1.0),
    lost=1.0,
)
# A deposed leader comes back and is cut short while its last sync is on its way.
CUT_WHILE_SYNCING = replace(
    SHORT,
    clients=6,
    weights={"crash_returning_leader": 1},
    between_s=0.8,
    down_s_max=0.5,
    slow_sync=(1.0,),
)
# Leaders come and go, and what they said arrives late and twice.
GOSSIP = replace(
    SHORT,
    weights={"cut_off_leader": 6, "cut_off": 2, "split": 2, "pause": 2, "mend": 4, "weather": 1},
    repeat=(0.3, 0.6),
    loss=(0.0, 0.05),
    slow=(0.0, 0.1),
    late_s_max=4.0,
)
# Leaders crash and are back, and lead again, while acks of their former life are on their way.
REBORN = replace(
    GOSSIP,
    weights={"isolate_reborn_leader": 1},
    between_s=1.5,
    cut_s_max=1.5,
    loss=(0.0,),
    late_s_max=6.0,
    slow=(0.0,),
)
# A leader is cut off and does not know it yet, while those who read stay with it.
ALONE = replace(
    GOSSIP, between_s=0.8, weights={"isolate_leader": 1}, cut_s_max=2.0, loss=(0.0,), slow=(0.0,)
)
# Everybody stands for election at the same time, and votes arrive twice.
SPLIT_VOTES = replace(
    GOSSIP,
    members=5,
    weights={"crash_leader": 4, "cut_off_leader": 3, "mend": 2},
    repeat=(0.9,),
    loss=(0.0,),
    slow=(0.3,),
    raft=replace(NERVOUS, election_s_max=0.11),
)
# A leader comes back whose last writes nobody has, and the others' logs begin behind them.
STRANDED = replace(
    SHORT,
    clients=8,
    faults_s=20.0,
    weights={"strand_leader": 1},
    between_s=4.0,
    loss=(0.0,),
    repeat=(0.0,),
    slow=(0.0,),
    slow_sync=(0.0,),
)
# Nothing happens but that followers are cut off and come back.
CALM = Profile(
    faults_s=12.0,
    heal_s=4.0,
    weights={"cut_off_follower": 1},
    loss=(0.0,),
    repeat=(0.0,),
    slow=(0.0,),
    slow_sync=(0.0,),
    stable_leader=True,
)
MEMBERS = replace(
    SHORT,
    members=5,
    weights=MEMBERSHIP | {"change_twice": 10.0, "cut_off": 5.0, "crash": 2.0},
)

# Snapshots are taken, so that segments can rot without harm, and they do.
ROTTEN = replace(
    SHORT, faults_s=20.0, models=True, weights={"snapshot_all": 1, "rot": 4}, slow_sync=(0.0,)
)


# Processes die and leaders are cut off, but no power fails: what was written stays written.
PROCESSES = replace(
    SHORT,
    weights={"crash": 3, "crash_leader": 4, "crash_all": 1, "cut_off_leader": 4, "pause": 1,
             "split": 2, "mend": 3, "slow_sync": 3, "transfer": 1},
    slow_sync=(0.0, 1.0),
    power_fails=False,
    async_writers=3,
)  # fmt: skip


# Processes stand still and messages are slow: what arrives is old.
LATE = replace(
    SHORT,
    weights={"pause": 4, "weather": 1, "cut_off": 1},
    slow=(0.1, 0.3),
    stale_readers=4,
)
# A leader that was replaced goes on talking to somebody who does not know it either.
ALONE_TOGETHER = replace(
    ALONE, members=5, weights={"isolate_leader_and_another": 1}, stale_readers=6
)
# Leases are long, and a leader that has one is left by all, while those who read stay with it.
LEASES = replace(
    SHORT,
    clients=8,
    between_s=2.0,
    cut_s_max=1.5,
    deadline_s=0.1,
    loss=(0.0,),
    repeat=(0.0,),
    slow=(0.0,),
    slow_sync=(0.0,),
    raft=replace(NERVOUS, election_s_min=0.4, election_s_max=0.45),
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One protection taken away; without a profile, in a run as its seed draws it."""

    profile: Profile | None = None
    protections: Protections = ALL_ON
    patches: Patches = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Replace the functions within a block."""
        with ExitStack() as stack:
            for owner, name, replacement in self.patches:
                stack.enter_context(patch.object(owner, name, replacement))
            yield


def _write_slots_unsynced(state: Any, area: bytes, offsets: Any) -> None:
    for offset in offsets:
        state._file.write(area, offset)


def _sync_finish_of_any_generation(log: Any, job: SyncJob) -> None:
    if job.error is not None:
        log._fail("sync", job.error)
    if job.index <= log.durable_index:
        return
    log.durable_index = min(job.index, log.last_index)
    if job.file is log._active.file:
        log._durable_position = min(job.position, log._active.end)
    log._save_hint()


def _delete_entries_from(journal: Any, at: int) -> None:
    number = journal.start + at
    if number <= journal.last:
        journal.log.truncate_from(journal.log.proposals.indexes(number)[0])
        journal._note_last()


def _get_entries(member: Any, number: int | None, count: int | None = None, _: Any = None) -> Any:
    journal = member.journal
    if number is None or number < journal.start:
        return []
    at = number - journal.start
    return journal[at:] if count is None else journal[at : at + count]


def _apply_by_first_byte(member: Any) -> bool:
    """Apply as pysyncobj does: by the type that byte 0 of an item says."""
    while member._SyncObj__raftLastApplied < member.commit:
        number = member._SyncObj__raftLastApplied + 1
        data = member.journal.item(number)[0]
        if data[:1] == KIND_DATA:
            member._applier.apply(number, data)
        member._SyncObj__raftLastApplied = number
    return True


def _now_of(freshness: Any, stamp: int) -> float | None:
    """Take the time when an echo arrives for the time when its stamp was made."""
    return freshness._clock.now_s() if stamp else None


def _unasked(freshness: Any, _number: int, commit: int, stamps: Any) -> None:
    """Echo stamps without asking anybody whether this member still leads."""
    freshness._learn(freshness._clock.now_s(), commit)
    freshness._echoes = stamps


def _from_the_answer(lease: Any, _number: int, promise_ms: int) -> float:
    """Count a promise from when it arrives, for all the time that a voter may keep it."""
    return float(lease._clock.now_s() + promise_ms / 1000)


_remembering = PreVote.__init__


def _forgetful(pre_vote: Any, *arguments: Any, **options: Any) -> None:
    """Begin as if no leader had ever been heard."""
    _remembering(pre_vote, *arguments, **options)
    pre_vote._leader_heard_s = float("-inf")


def _propose_what_falls_due_later(shard: Any) -> None:
    """As leader, leave alone for ever what was due when this leadership began."""
    member, router, now_ns = shard.member, shard.router, shard.log_time.now_ns()
    if getattr(shard, "began", (0, 0))[0] != member.term:
        shard.began = (member.term, now_ns)
    if shard._due_number > member.applied or not shard.log.has_room(SHARD.group_bytes_max):
        return
    owners = (router._system, *router._table.values())
    found = [due for owner in owners for due in owner.due(now_ns, EXPIRE_LIMIT)]
    ids = tuple((due.owner, due.item) for due in found if due.deadline_ns > shard.began[1])
    chores = [each for each in router.due(now_ns, EXPIRE_LIMIT) if each[0] != TYPE_EXPIRE]
    drafts = [encode_command(Expire(ids)), *chores] if ids else chores
    if drafts:
        with suppress(DiskFull, ProposalRefused):
            shard._due_number, _ = member.propose(shard._within_group(drafts))


_feed_match = RaftMember._feed_match


def _commit_unsynced_if_full(member: Any) -> int:
    """Count what this leader has not synced, while its disk has no room for another group."""
    commit: int = member._SyncObj__raftCommitIndex
    if member.state == LEADER and not _is_full(member):
        return int(min(commit, max(member.journal.durable, member.applied)))
    return commit


def _feed_match_if_full(member: Any, peer_id: Any) -> None:
    if _is_full(member):
        unclamped = replace(member.protections, leader_own_sync=False)
        with patch.object(member, "protections", unclamped):
            _feed_match(member, peer_id)
    else:
        _feed_match(member, peer_id)


def _is_full(member: Any) -> bool:
    return bool(member.journal.log._space.spare_bytes() < SHARD.group_bytes_max)


_records = PageRead._records


def _records_but_damaged(read: Any, log: Any, source: Any) -> Iterator[Any]:
    """Yield the records of a page, and say nothing of those that cannot be read."""
    return (each for each in _records(read, log, source) if not isinstance(each[1], Unreadable))


MUTATIONS = {
    "hard state durable": Mutation(
        POWER, patches=((HardStateFile, "_write_slots", _write_slots_unsynced),)
    ),
    "follower durable ack": Mutation(POWER, Protections(follower_durable_ack=False)),
    "leader's own sync": Mutation(POWER, Protections(leader_own_sync=False)),
    "sync generation": Mutation(
        CUT_WHILE_SYNCING,
        patches=((Log, "sync_finish", _sync_finish_of_any_generation),),
    ),
    "stamped acks": Mutation(REBORN, Protections(stamped_acks=False)),
    "vote set": Mutation(SPLIT_VOTES, Protections(vote_set=False)),
    "commit clamp on appends": Mutation(
        replace(GOSSIP, clients=6, members=5), Protections(commit_clamp=False)
    ),
    "commit clamp on snapshots": Mutation(STRANDED, Protections(snapshot_commit_clamp=False)),
    "non-destructive truncation": Mutation(
        GOSSIP,
        patches=(
            (RaftJournal, "deleteEntriesFrom", _delete_entries_from),
            (RaftMember, "_SyncObj__getEntries", _get_entries),
        ),
    ),
    "pre-vote": Mutation(CALM, Protections(pre_vote=False)),
    "read round": Mutation(ALONE, Protections(read_round=False)),
    "type byte": Mutation(
        CALM,
        patches=(
            (journal_module, "to_command", bytes),
            (RaftMember, "_SyncObj__applyLogEntries", _apply_by_first_byte),
        ),
    ),
    "membership one at a time": Mutation(MEMBERS, Protections(one_change=False)),
    "received by a majority": Mutation(
        PROCESSES,
        patches=((Leadership, "received_by_majority", lambda leading: leading._journal.last),),
    ),
    "age by stamps": Mutation(LATE, patches=((Freshness, "_made_s", _now_of),)),
    "age by rounds": Mutation(ALONE_TOGETHER, patches=((Freshness, "begin_round", _unasked),)),
    # Pre-votes ask the same question a moment earlier, and so hide most of what this one is for.
    "votes stay with a leader that is heard": Mutation(
        replace(LEASES, weights={"desert_leader": 1}),
        Protections(sticky_votes=False, pre_vote=False),
    ),
    "a restart does not free a voter": Mutation(
        replace(LEASES, weights={"desert_leader": 1}),
        patches=((PreVote, "__init__", _forgetful),),
    ),
    "lease from the start of a round": Mutation(
        replace(LEASES, weights={"stop_leader": 1}),
        patches=((Lease, "until_s", _from_the_answer),),
    ),
    "no lease after a transfer": Mutation(
        replace(LEASES, weights={"hand_over_and_isolate": 1}),
        patches=((Lease, "give_up", lambda _lease: None),),
    ),
    "retry sessions": Mutation(replace(GOSSIP, sessions=False)),
    "a new leader expires what fell due before": Mutation(
        patches=((Shard, "_propose_due", _propose_what_falls_due_later),),
    ),
    "leader's own sync on a full disk": Mutation(
        patches=(
            (RaftMember, "commit", property(_commit_unsynced_if_full)),
            (RaftMember, "_feed_match", _feed_match_if_full),
        ),
    ),
    "a release is no delivery": Mutation(patches=((queue_commands, "_TAKEN", LEASED),)),
    "a damaged read says so": Mutation(
        ROTTEN, patches=((PageRead, "_records", _records_but_damaged),)
    ),
}
