"""Holds of real shards: what stays in the log for them, and when it goes all the same."""

from pathlib import Path

import pytest

from onelog.node.replica.retention import (
    BYTES_MAX_DEFAULT,
    LAST_BYTES,
    Holding,
    breaks,
    held_bytes,
    is_short,
    trouble,
)
from onelog.projections.codec import read_prefix
from onelog.projections.queue import commands
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.result import APPLIED, Applied, Refused
from onelog.projections.system.commands import (
    Command,
    HoldBreak,
    HoldRelease,
    HoldSet,
    decode_command,
    encode_command,
)
from onelog.projections.system.holds import Cause, Hold
from onelog.snapshot.store import RESERVE_BYTES
from onelog.ual.entry import Draft
from tests.node.replica.group import IDS, Group, trim
from tests.node.replica.lone import NAMESPACE, LoneNode
from tests.simulation.disk import CrashPolicy

DAY_NS = 86_400 * 10**9
SIZE = 1 << 30


@pytest.fixture
def lone() -> LoneNode:
    return LoneNode()


def do(lone: LoneNode, command: Command) -> object:
    (result,) = lone.write(encode_command(command))
    return result


def hold(lone: LoneNode, name: str = "export", index: int = 0, bytes_max: int = SIZE) -> int:
    result = do(lone, HoldSet(name, False, index, DAY_NS, bytes_max))
    assert isinstance(result, Applied)
    return result.number


def found(lone: LoneNode, name: str = "export") -> Hold:
    held = lone.shard.projections.system.holds.get(name)
    assert held is not None
    return held


def proposed(lone: LoneNode) -> list[Command]:
    """Return what a leader would propose about holds."""
    return [parse_command(draft) for draft in breaks(lone.shard)]


def parse_command(draft: Draft) -> Command:
    _, reader = read_prefix(draft.payload)
    return decode_command(draft.entry_type, reader)


def leave(lone: LoneNode, spare_bytes: int) -> None:
    """Leave so much room on the disk."""
    disk = lone.replica.disk
    disk.capacity = 1 << 50
    disk.capacity -= disk.free_bytes(Path("/")) - spare_bytes


def test_what_a_hold_keeps_stays_until_it_moves_and_is_released(lone: LoneNode) -> None:
    lone.fill()
    lone.fill()
    before = lone.trimmed_to()
    index = hold(lone)
    lone.fill()
    lone.fill()
    assert before <= lone.trimmed_to() <= index
    kept = [entry.index for entry in lone.shard.log.scan(index, lone.shard.log.applied_index)]
    assert kept == list(range(index, lone.shard.log.applied_index + 1))

    middle = index + 40
    assert do(lone, HoldSet("export", True, middle, 0, 0)) == Applied(middle)
    assert index < lone.trimmed_to() <= middle

    assert do(lone, HoldRelease("export")) == APPLIED
    assert lone.trimmed_to() > middle


def test_the_earliest_of_several_holds_counts(lone: LoneNode) -> None:
    early, late = hold(lone, "a"), hold(lone, "b")
    assert early < late
    lone.fill()
    lone.fill()
    assert lone.trimmed_to() <= early

    do(lone, HoldRelease("a"))
    assert lone.trimmed_to() <= late
    do(lone, HoldRelease("b"))
    assert lone.trimmed_to() > late


def test_a_hold_is_there_after_a_restart(lone: LoneNode) -> None:
    index = hold(lone)
    before = found(lone)
    lone.fill()
    lone.fill()
    lone.replica.crash(CrashPolicy.LOST)
    lone.replica.start()
    lone.pass_time(2.0)

    assert found(lone) == before
    lone.fill()
    assert lone.trimmed_to() <= index


def test_a_leader_ends_a_lifetime_by_itself(lone: LoneNode) -> None:
    """The shard proposes it in a tick, as it does other expiries."""
    result = do(lone, HoldSet("export", False, 0, 3 * 10**9, SIZE))
    assert isinstance(result, Applied)
    lone.fill()
    lone.fill()
    lone.pass_time(4.0)

    assert found(lone).cause is Cause.TIME
    assert "nobody moved it" in trouble(lone.shard, found(lone))
    assert lone.trimmed_to() > result.number


def test_a_hold_that_keeps_more_than_it_may_is_broken(lone: LoneNode) -> None:
    index = hold(lone, bytes_max=20_000)
    assert proposed(lone) == []
    lone.fill()
    lone.fill()
    assert held_bytes(lone.shard, found(lone)) > 20_000
    assert proposed(lone) == [HoldBreak("export", Cause.BYTES, found(lone).set_index)]

    lone.write(*breaks(lone.shard))

    assert proposed(lone) == []
    assert held_bytes(lone.shard, found(lone)) == 0
    assert lone.trimmed_to() > index


def test_bytes_are_counted_from_where_the_hold_stands(lone: LoneNode) -> None:
    """A reader that keeps up never breaks its hold, however much it has read."""
    hold(lone, bytes_max=20_000)
    lone.fill()
    lone.fill()
    do(lone, HoldSet("export", True, lone.shard.log.last_index, 0, 0))

    assert held_bytes(lone.shard, found(lone)) < 5_000
    assert proposed(lone) == []


def test_a_short_disk_breaks_the_hold_that_is_in_the_way_and_the_next_when_it_has_to(
    lone: LoneNode,
) -> None:
    early = hold(lone, "early")
    lone.fill()
    late = hold(lone, "late")
    last = hold(lone, "at the end", lone.shard.log.last_index + 1)
    lone.fill()
    lone.fill()
    hold(lone, "newest")
    leave(lone, RESERVE_BYTES)
    assert not is_short(lone.shard)
    assert proposed(lone) == []

    broken: list[Command] = []
    for _ in range(9):
        if lone.trimmed_to() > last:
            break
        leave(lone, RESERVE_BYTES - 1)  # also after what was dropped: others fill the disk
        drafts = breaks(lone.shard)
        if drafts:
            lone.write(*drafts)
            broken += map(parse_command, drafts)
            assert lone.shard.log.first_index <= early or len(broken) > 1
    assert [each.name for each in broken if isinstance(each, HoldBreak)] == [
        "early",
        "late",
        "at the end",
    ]
    assert {each.cause for each in broken if isinstance(each, HoldBreak)} == {Cause.DISK}
    assert late < last < lone.shard.log.first_index
    leave(lone, RESERVE_BYTES - 1)
    assert proposed(lone) == []  # what is newer than the snapshots would stay without it


def test_a_short_disk_breaks_no_hold_where_something_else_keeps_the_log(lone: LoneNode) -> None:
    (created,) = lone.write(
        commands.encode_command(commands.QueueCreate("jobs", QueueConfig()), NAMESPACE)
    )
    assert isinstance(created, Applied)
    lone.write(commands.encode_command(Enqueue(created.number, b"body"), NAMESPACE))
    hold(lone)
    lone.fill()
    lone.fill()
    lone.trimmed_to()
    leave(lone, RESERVE_BYTES - 1)

    assert proposed(lone) == []
    lone.write(commands.encode_command(commands.Purge(created.number), NAMESPACE))
    lone.trimmed_to()
    leave(lone, RESERVE_BYTES - 1)
    assert proposed(lone) == [HoldBreak("export", Cause.DISK, found(lone).set_index)]


def test_below_the_last_reserve_a_replica_drops_what_it_must_and_says_so(lone: LoneNode) -> None:
    """A full disk takes no entry that would break the hold, and a follower cannot propose one."""
    index = hold(lone)
    lone.fill()
    lone.fill()
    leave(lone, LAST_BYTES)
    assert lone.trimmed_to() <= index
    assert trouble(lone.shard, found(lone)) == ""

    lone.pass_time(6.0)  # what was dropped is removed
    leave(lone, LAST_BYTES - 1)
    assert lone.trimmed_to() > index

    assert found(lone).cause is None
    assert "is not kept here" in trouble(lone.shard, found(lone))
    leave(lone, 1 << 40)
    assert proposed(lone) == [HoldBreak("export", Cause.DISK, found(lone).set_index)]
    lone.write(*breaks(lone.shard))
    assert found(lone).cause is Cause.DISK
    do(lone, HoldRelease("export"))
    again = hold(lone)
    assert again > index
    assert trouble(lone.shard, found(lone)) == ""


def test_a_break_that_comes_too_late_is_refused(lone: LoneNode) -> None:
    hold(lone, bytes_max=20_000)
    lone.fill()
    lone.fill()
    drafts = breaks(lone.shard)
    do(lone, HoldSet("export", True, lone.shard.log.last_index, 0, 0))

    (result,) = lone.write(*drafts)

    assert isinstance(result, Refused)
    assert found(lone).cause is None


def test_what_is_asked_for_is_the_earliest_index_of_a_shard(lone: LoneNode) -> None:
    holding = Holding({}, lone.replica.clock)
    assert holding.asked_from(0) is None
    with holding.asking(0, 7), holding.asking(0, 5), holding.asking(1, 3):
        with holding.asking(0, 5):
            assert holding.asked_from(0) == 5
        assert holding.asked_from(0) == 5
        assert holding.asked_from(1) == 3
    assert holding.asked_from(0) is None


@pytest.mark.parametrize("is_new", [False, True], ids=["was away", "empty disk"])
def test_a_replica_that_catches_up_gets_what_is_held(*, is_new: bool) -> None:
    """Otherwise the reader would lose it when that replica leads."""
    group = Group()
    group.write(5)
    away = IDS[2]
    if group.elect().node_id == away:
        group.down.add(away)
        group.until(lambda: group.elect().node_id != away)
    if not is_new:
        group.down.add(away)
    leader = group.leader
    draft = encode_command(HoldSet("export", False, 0, DAY_NS, SIZE))
    leader.shard.propose([draft], leader.clock.time_s + 60.0, group.outcomes.append)
    group.until(lambda: len(leader.shard.projections.system.holds) == 1)
    index = leader.shard.projections.system.holds.first_index()
    assert index is not None
    for _ in range(3):
        group.write(40)
        for node in group.nodes.values():
            if node.node_id not in group.down:
                group.snapshot(node)
                trim(node.shard)
    # Raft has let go of it, so that a snapshot is needed; the log has not.
    assert leader.shard.member.journal.start > 50
    assert leader.shard.log.first_index <= index

    late = group.join(IDS[3]) if is_new else group.nodes[away]
    group.down.discard(away)
    group.until(group.is_settled)

    assert late.shard.log.base is not None
    group.write(40)
    group.until(group.is_settled)
    for node in group.nodes.values():
        log = node.shard.log
        assert log.first_index <= index
        kept = [entry.index for entry in log.segments.scan(index, log.applied_index)]
        assert kept == list(range(index, log.applied_index + 1))
        assert [each.name for each in node.shard.projections.system.holds] == ["export"]
        group.snapshot(node)
        trim(node.shard)
        assert log.first_index <= index


def test_the_reserves_are_in_order() -> None:
    """Holds are broken in the log first; dropping them unasked is the last resort."""
    assert 0 < LAST_BYTES < RESERVE_BYTES < BYTES_MAX_DEFAULT
