"""Raft's window that begins behind a snapshot: number, term and time without a body."""

from uuid import UUID

from onelog.cluster.raft.journal import RaftJournal
from onelog.cluster.raft.membership import Membership
from onelog.ual.entry import Draft, encode_group
from onelog.ual.install import Installation, install
from onelog.ual.log import Log
from onelog.ual.manifest import Base, SnapshotRecord
from onelog.ual.recovery import open_hard_state, open_log
from onelog.ual.segments.notes import ApplyNotes
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.shards import SECOND, SMALL, make_shard

FOUNDERS = Membership.of([UUID(int=1), UUID(int=2), UUID(int=3)])
BASE = Base(index=500, proposal=70, term=4, timestamp_ns=9 * SECOND)


def opened(disk: SimDisk) -> tuple[Log, RaftJournal]:
    paths = make_shard(disk)
    hard_state = open_hard_state(disk, paths)
    log, _ = open_log(disk, paths, hard_state, shard=0, config=SMALL)
    return log, RaftJournal(log, hard_state, lambda: 10 * SECOND, FOUNDERS)


def installed() -> tuple[SimDisk, Log, RaftJournal]:
    disk = SimDisk()
    log, journal = opened(disk)
    journal.add(b"\1", 1, 0)
    log.sync()
    record = SnapshotRecord("0000000500-1.fsnap", BASE.index, BASE.term, 1, "00")
    install(log, disk, make_shard(disk), Installation(BASE, record, 0, []), ApplyNotes())
    journal.begin_at_base(b"")
    return disk, log, journal


def check(log: Log, journal: RaftJournal) -> None:
    assert (journal.start, journal.last, journal.last_term, len(journal)) == (70, 70, 4, 1)
    assert journal.holds(70, 4)
    assert not journal.holds(70, 3)
    assert not journal.holds(69, 4)
    assert journal[-1][1] == 70
    assert journal[-1][2] == 4
    assert journal.durable == 70
    assert journal.membership == FOUNDERS
    log.check()


def test_a_window_begins_at_a_proposal_whose_body_is_not_in_the_log() -> None:
    disk, log, journal = installed()
    check(log, journal)
    check(*opened(disk.crash(CrashPolicy.LOST)))


def test_what_a_leader_sends_behind_the_base_is_checked_against_its_term_and_time() -> None:
    disk, log, journal = installed()
    group = encode_group(
        [Draft(0x0101, b"x")], term=5, first_index=501, timestamp_ns=BASE.timestamp_ns
    )
    [checked] = journal.check(70, [group.data], 5)
    journal.add(checked, 71, 5)
    log.sync()

    # The base is not the last one any more, and still a place that appends may follow.
    [again] = journal.check(70, [group.data], 5)
    assert again.data == group.data
    _, journal = opened(disk.crash(CrashPolicy.LOST))
    assert (journal.start, journal.last, journal.find_term(71)) == (70, 71, 5)
    [again] = journal.check(70, [group.data], 5)
    journal.add(again, 71, 5)
    assert journal.last == 71


def test_what_is_remembered_of_terms_and_syncs_is_forgotten_with_a_cut() -> None:
    log, journal = opened(SimDisk())
    journal.add(b"\1", 1, 0)
    for number, term in ((2, 1), (3, 2), (4, 2)):
        follow(journal, number, term, index=number)
    log.sync()
    assert [journal.find_term(number) for number in (1, 2, 3, 4)] == [0, 1, 2, 2]
    assert journal.durable == 4

    # Another leader had two entries in one group: the same index is another proposal now.
    follow(journal, 3, 3, index=3, entries=2)
    log.sync()
    assert (journal.last, journal.durable, log.last_index) == (3, 3, 4)
    assert [journal.find_term(number) for number in (1, 2, 3)] == [0, 1, 3]
    follow(journal, 4, 3, index=5)
    assert [journal.find_term(number) for number in (1, 2, 3, 4)] == [0, 1, 3, 3]
    assert journal.durable == 3


def follow(journal: RaftJournal, number: int, term: int, *, index: int, entries: int = 1) -> None:
    """Add a proposal that a leader sent."""
    drafts = [Draft(0x0101, b"%d" % term)] * entries
    group = encode_group(drafts, term=term, first_index=index, timestamp_ns=SECOND)
    [checked] = journal.check(number - 1, [group.data], term)
    journal.add(checked, number, term)
