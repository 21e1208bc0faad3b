"""Batches with streams: all or nothing, and nothing is told to the log before it is sure."""

from random import Random

import pytest

from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition, Target
from onelog.projections.kv.commands import Put
from onelog.projections.kv.commands import encode_command as encode_kv
from onelog.projections.limits import U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Duplicate, Pending, Refused
from onelog.projections.stream.commands import (
    Ack,
    Append,
    Cause,
    Command,
    Configure,
    Create,
    Delete,
    Deliver,
    GroupCommit,
    GroupConfig,
    GroupCreate,
    GroupJoin,
    ProducerRef,
    Retention,
    Trim,
    encode_command,
)
from onelog.projections.system.commands import SessionOpen, encode_batch
from onelog.ual.entry import TYPE_NOOP, Draft
from tests.projections.stream.stream_histories import answers, random_commands
from tests.projections.stream.stream_world import StreamWorld, replay
from tests.projections.world import NAMESPACE, SECOND

FAILS = encode_command(Append("nowhere", b""), NAMESPACE)


@pytest.fixture
def world() -> StreamWorld:
    return StreamWorld()


def test_records_and_cursors_change_together(world: StreamWorld) -> None:
    """Consume, transform, produce: the cursor moves if and only if the results are there."""
    world.create("in")
    world.create("out")
    offset = world.append("in", b"1")
    world.run(GroupCreate("in", "g", 0))
    commit = GroupCommit("in", "g", 0, 0, ((0, offset + 1),))
    drafts = [encode_command(each, NAMESPACE) for each in (Append("out", b"2"), commit)]
    drafts.append(encode_kv(Put(b"k", b"v"), NAMESPACE))
    before = world.cursors("in", "g")

    refused = world.group(encode_batch([*drafts, FAILS], (), NAMESPACE))[0]
    assert refused == Refused(Reason.BATCH_REFUSED, 3, Reason.STREAM_UNKNOWN)
    assert world.values("out") == []
    assert world.cursors("in", "g") == before
    assert world.value(b"k") is None
    failed = [Condition(b"k", Target.EXISTS)]
    assert world.group(encode_batch(drafts, failed, NAMESPACE))[0] == Refused(
        Reason.CONDITION_FAILED, 0
    )
    applied = world.group(encode_batch(drafts, (), NAMESPACE))[0]

    assert applied == Applied(3, None, (APPLIED,) * 3)
    assert world.values("out") == [b"2"]
    assert world.cursors("in", "g") == b"[%d]" % (offset + 1)
    world.state.router.check()


def test_the_log_hears_of_records_when_the_batch_is_decided(world: StreamWorld) -> None:
    """What was noted cannot be taken back, so nothing may be noted too early."""
    stream_id = world.create("s")
    drafts = [encode_command(Append("s", b"%d" % n), NAMESPACE) for n in range(3)]
    world.group(encode_batch([*drafts, FAILS], (), NAMESPACE))
    assert world.records.records == {}

    first = world.index + 1
    world.group(encode_batch(drafts, (), NAMESPACE))
    assert world.records.records == {stream_id: [first + 1, first + 2, first + 3]}


def test_a_repeated_transaction_adds_nothing(world: StreamWorld) -> None:
    world.create("s")
    drafts = [
        encode_command(Append("s", b"%d" % n, producer=ProducerRef(1, 0, n)), NAMESPACE)
        for n in range(2)
    ]
    world.group(encode_batch(drafts, (), NAMESPACE))
    first = world.index
    results = world.group(encode_batch(drafts, (), NAMESPACE))

    assert results[1:] == [Applied(first - 1, b"\x01"), Applied(first, b"\x01")]
    assert world.values("s") == [b"0", b"1"]
    assert world.notes.voids == [(first + 2, first + 2), (first + 3, first + 3)]


def test_a_repeated_request_of_a_session_is_answered_as_the_first(world: StreamWorld) -> None:
    world.create("s")
    world.system(SessionOpen(10 * SECOND))
    session = SessionRef(world.index, 1, 0)
    assert world.run(Append("s", b"v", key=b"k"), session=session) == APPLIED
    index = world.index

    assert world.run(Append("s", b"v", key=b"k"), session=session) == Duplicate(index, APPLIED)
    assert world.values("s") == [b"v"]


def test_an_append_in_a_session_counts_like_one_without(world: StreamWorld) -> None:
    world.create("s")
    world.system(SessionOpen(10 * SECOND))
    world.run(Append("s", b"v", tag="t"), session=SessionRef(world.index, 1, 0))
    world.run(Append("s", b"v", tag="t"))
    found = world.stream.describe(NAMESPACE, "s")

    assert not isinstance(found, Refused)
    assert found.partitions[0].size_kept == 2 * len(b"\x10\x01s\x01tv")


def test_a_whole_life_in_one_batch_is_taken_back(world: StreamWorld) -> None:
    world.create("dead")
    before = world.stream.state_hash(), answers(world.stream)
    at = world.index + 2  # where the stream will be created
    life: list[Command] = [
        Create("s", 2, Retention(count_max=1)),
        *(Append("s", b"x", partition=0, producer=ProducerRef(1, 0, n)) for n in range(9)),
        GroupCreate("s", "g", 0, GroupConfig(shared=True, max_deliveries=1, dead_letter="dead")),
        GroupJoin("s", "g", SECOND),
        Deliver("s", "g", at + 11, 1, 0, at + 1, at + 2, (at + 1,)),
        Ack("s", "g", at + 11, ((0, at + 1),)),
    ]
    drafts = [encode_command(each, NAMESPACE) for each in life]
    refused = world.group(encode_batch([*drafts, FAILS], (), NAMESPACE))[0]
    assert refused == Refused(Reason.BATCH_REFUSED, len(life), Reason.STREAM_UNKNOWN)
    assert (world.stream.state_hash(), answers(world.stream)) == before
    world.state.router.check()

    drafts.append(encode_command(Delete("dead"), NAMESPACE))
    shift = world.index + 2 - at
    again: list[Command] = [
        *life[:12],
        Deliver("s", "g", at + shift + 11, 1, 0, at + shift + 1, at + shift + 2, (at + shift + 1,)),
    ]
    drafts = [encode_command(each, NAMESPACE) for each in again]
    assert isinstance(world.group(encode_batch(drafts, (), NAMESPACE))[0], Applied)
    world.state.router.check()


@pytest.mark.parametrize(
    "command",
    [
        Trim("s", Cause.REQUEST, U64_MAX),  # there would be nothing to trim later
        Append("s", b"late"),  # the run would be over later
        Configure("s", Retention()),
        GroupCreate("s", "g", 0),  # the policy would have to wait
    ],
)
def test_what_is_due_is_due_again_after_a_batch_that_failed(
    world: StreamWorld, command: Command
) -> None:
    world.create("s", retention=Retention(age_ns=32 * SECOND))
    world.append("s")
    due_ns = world.now_ns + 32 * SECOND
    world.now_ns += 20 * SECOND
    drafts = [encode_command(command, NAMESPACE), FAILS]
    assert isinstance(world.group(encode_batch(drafts, (), NAMESPACE))[0], Refused)

    world.state.router.check()
    assert world.state.router.next_deadline() == due_ns
    world.pass_time(12 * SECOND)
    assert world.values("s") == []


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_does_what_its_entries_do_or_nothing(seed: int) -> None:
    """The same entries behind a no-op are the twin of a batch that is applied."""
    rng = Random(seed)
    world = StreamWorld()
    for step in range(120):
        label = f"seed {seed}, step {step}"
        drafts = [each for _ in range(2) for each in random_commands(rng, world.stream)]
        if rng.random() < 0.3:
            world.pass_time(rng.randrange(2 * SECOND))
        if rng.random() < 0.5:
            world.group(drafts)
            continue
        before = world.stream.state_hash(), answers(world.stream), world.sections()[4]
        records = {key: list(rows) for key, rows in world.records.records.items()}
        twin = world.reloaded()
        result = world.group(encode_batch(drafts, (), NAMESPACE))[0]
        assert not isinstance(result, Pending)
        if isinstance(result, Refused):
            after = world.stream.state_hash(), answers(world.stream), world.sections()[4]
            assert after == before, label
            assert world.records.records == records, label
        else:
            twin.group([Draft(TYPE_NOOP, b""), *drafts])
            assert twin.state.router.state_hash() == world.state.router.state_hash(), label
            assert answers(twin.stream) == answers(world.stream), label
            assert twin.records.records == world.records.records, label
        world.state.router.check()
    other = replay(world.entries)
    assert other.state.router.state_hash() == world.state.router.state_hash()
