"""ASYNC: answered when a majority has written it, visible no sooner than ever."""

import pytest

from onelog.cluster.errors import Discarded, ResultNeeded
from onelog.cluster.raft.messages import Ack, Append
from onelog.node.replica.requests import Durability, Received
from onelog.projections.codec import SessionRef
from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.commands import Delete, Increment, LeaseGrant, Put
from onelog.projections.result import Applied
from onelog.projections.shard_state import needs_result
from onelog.projections.system import commands as system_commands
from onelog.ual.entry import FLAG_CONDITIONAL, Draft, encode_group
from tests.cluster.raft.lone_shard import ME, OTHER, PEER, LoneShard, put


def leading() -> LoneShard:
    lone = LoneShard()
    lone.lead()
    return lone


def propose(lone: LoneShard, key: bytes, durability: Durability) -> None:
    deadline_s = lone.clock.time_s + 5.0
    lone.shard.propose([put(key, b"v")], deadline_s, lone.outcomes.append, durability=durability)
    lone.start()


def received_ack(lone: LoneShard) -> Ack:
    """What a peer answers that has written everything and synced none of the last proposal."""
    member = lone.member
    last = member.journal.last
    return Ack(member.term, member.leadership.round, last, True, False, received=last)


def test_it_is_answered_when_a_majority_has_it_and_applied_when_a_majority_has_synced_it() -> None:
    lone = leading()
    propose(lone, b"k", Durability.ASYNC)
    lone.tick()
    assert lone.outcomes == []  # one of three is no majority

    lone.hear(PEER, received_ack(lone))
    index = lone.shard.log.last_index
    assert lone.outcomes == [Received(index, index)]
    assert lone.value(b"k") is None
    assert lone.shard.log.commit_index < index

    lone.acknowledge()
    assert lone.value(b"k") == b"v"
    assert len(lone.outcomes) == 1


def test_requests_of_both_classes_share_a_group_and_have_their_own_answers() -> None:
    lone = leading()
    propose(lone, b"first", Durability.SYNC)  # goes out at once
    job = lone.shard.sync_begin()
    assert job is not None
    before = lone.member.journal.last
    propose(lone, b"sync", Durability.SYNC)  # waits for the sync
    propose(lone, b"async", Durability.ASYNC)  # does not, and takes it along
    assert lone.member.journal.last == before + 1

    lone.hear(PEER, received_ack(lone))
    last = lone.shard.log.last_index
    assert lone.outcomes == [Received(last, last)]

    job.run()
    lone.run(lambda: lone.shard.on_synced(job))
    lone.acknowledge()
    assert lone.outcomes[1:] == [[Applied()], [Applied()]]


def test_a_group_of_one_answers_what_it_has_written() -> None:
    lone = LoneShard(founders=[ME])
    lone.pass_time(1.0)
    lone.sync()
    propose(lone, b"k", Durability.ASYNC)
    assert [type(each) for each in lone.outcomes] == [Received]
    assert lone.value(b"k") is None


def test_a_leader_of_a_later_term_does_not_answer_for_an_earlier_one() -> None:
    """Whatever a majority has of an earlier term may still be replaced."""
    lone = leading()
    propose(lone, b"k", Durability.ASYNC)
    number, term = lone.member.journal.last, lone.member.term
    lone.hear(OTHER, Append(term + 1, 1, number - 1, term, (), 1))
    lone.elect()
    ack = Ack(lone.member.term, lone.member.leadership.round, 2, True, False, received=number)
    lone.hear(PEER, ack)
    assert lone.outcomes == []

    lone.acknowledge()  # the entry is committed with the no-op of the later term
    assert [type(each) for each in lone.outcomes] == [Received]


def test_what_another_leader_replaced_is_discarded() -> None:
    lone = leading()
    propose(lone, b"k", Durability.ASYNC)
    journal, log = lone.member.journal, lone.shard.log
    last, term = journal.last, lone.member.term
    theirs = encode_group(
        [put(b"k", b"theirs")],
        term=term + 1,
        first_index=log.proposals.indexes(last)[0],
        timestamp_ns=log.last_timestamp_ns,
    )
    before = journal.find_term(last - 1)
    lone.hear(OTHER, Append(term + 1, 1, last - 1, before, (theirs.data,), last))
    lone.tick()
    assert [type(each) for each in lone.outcomes] == [Discarded]


SESSION = SessionRef(1, 1, 1)


@pytest.mark.parametrize(
    "draft",
    [
        kv_commands.encode_command(Put(b"k", b"v", expected=3), "default"),
        kv_commands.encode_command(Put(b"k", b"v", lease=3), "default"),
        kv_commands.encode_command(Put(b"k", b"v"), "default", SESSION),
        kv_commands.encode_command(Delete(b"k"), "default"),
        kv_commands.encode_command(Increment(b"k", 1), "default"),
        kv_commands.encode_command(LeaseGrant(10**9), "default"),
        system_commands.encode_command(system_commands.SessionOpen(10**9)),
        put(b"k", b"v")._replace(flags=FLAG_CONDITIONAL),
        Draft(kv_commands.TYPE_PUT, b""),
        Draft(kv_commands.TYPE_PUT, b"\1\0\7default"),
        Draft(kv_commands.TYPE_PUT, b"\2\0\7default\0\0\0"),
        Draft(0x0999, b"\1\0\0\0\0\0"),
    ],
    ids=str,
)
def test_what_needs_its_result_is_refused(draft: Draft) -> None:
    assert needs_result(draft)
    lone = leading()
    last = lone.member.journal.last
    lone.shard.propose(
        [put(b"k", b"v"), draft], lone.clock.time_s + 5.0, lone.outcomes.append,
        durability=Durability.ASYNC,
    )  # fmt: skip
    (refusal,) = lone.outcomes
    assert isinstance(refusal, ResultNeeded)
    assert refusal.reason == "ASYNC_NEEDS_RESULT"
    assert lone.member.journal.last == last


def test_a_plain_put_with_or_without_a_lifetime_needs_no_result() -> None:
    assert not needs_result(put(b"k", b"v"))
    assert not needs_result(kv_commands.encode_command(Put(b"k", b"v", ttl_ns=10**9), "default"))


def test_an_ack_that_claims_more_than_there_is_counts_for_nothing() -> None:
    lone = leading()
    propose(lone, b"k", Durability.ASYNC)
    lone.tick()
    good = received_ack(lone)
    lone.hear(PEER, Ack(good.term, good.round, good.next, True, False, good.received + 1))
    assert lone.outcomes == []
