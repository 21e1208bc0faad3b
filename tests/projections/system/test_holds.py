"""Holds: what each operation does, and a model that any sequence of them agrees with."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from onelog.projections.codec import read_prefix
from onelog.projections.errors import CorruptSection
from onelog.projections.limits import HOLDS_MAX, TTL_NS_MAX, U64_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Refused, Result
from onelog.projections.system.commands import (
    HoldBreak,
    HoldRelease,
    HoldSet,
    SessionOpen,
    decode_command,
)
from onelog.projections.system.holds import Cause, Hold
from onelog.ual.entry import OWNER_SYSTEM, Draft
from tests.projections.world import SECOND, World, cut

SIZE = 1 << 20
NAMES = ("a", "b")


@pytest.fixture
def world() -> World:
    return World()


def create(world: World, name: str = "export", index: int = 0, ttl_ns: int = SECOND) -> Result:
    return world.system(HoldSet(name, False, index, ttl_ns, SIZE))


def move(world: World, index: int, ttl_ns: int = 0, bytes_max: int = 0) -> Result:
    return world.system(HoldSet("export", True, index, ttl_ns, bytes_max))


def found(world: World, name: str = "export") -> Hold:
    hold = world.state.system.holds.get(name)
    assert hold is not None
    return hold


def test_a_hold_without_an_index_begins_at_its_own_entry(world: World) -> None:
    """No end of the log has to be asked for first, which another entry could pass."""
    world.put(b"k", b"v")

    assert create(world) == Applied(2)

    assert found(world) == Hold("export", 2, 2, 2, world.now_ns, SECOND, SIZE)
    assert world.state.system.holds.first_index() == 2


def test_the_earliest_hold_decides_what_is_kept(world: World) -> None:
    for number in range(5):
        world.put(b"k", b"%d" % number)
    holds = world.state.system.holds
    assert holds.first_index() is None
    create(world, "late", 5)
    create(world, "early", 2)
    assert holds.first_index() == 2

    world.system(HoldRelease("early"))

    assert holds.first_index() == 5
    assert world.system(HoldRelease("early")) == Refused(Reason.HOLD_UNKNOWN)


def test_a_name_is_given_once(world: World) -> None:
    create(world, index=1)

    assert create(world) == Refused(Reason.HOLD_EXISTS, 1)
    assert found(world).index == 1


def test_a_hold_moves_forward_only_and_begins_its_lifetime_anew(world: World) -> None:
    create(world, index=1)
    world.put(b"k", b"v")
    world.now_ns += SECOND - 1

    assert move(world, 2) == Applied(2)
    assert move(world, 1) == Refused(Reason.HOLD_INDEX_INVALID, 2)
    assert found(world) == Hold("export", 1, 3, 2, world.now_ns, SECOND, SIZE)
    assert world.state.router.next_deadline() == world.now_ns + SECOND


def test_a_move_to_nowhere_renews_and_changes_the_limits_that_it_names(world: World) -> None:
    create(world, index=1)
    world.now_ns += 5

    assert move(world, 0, bytes_max=7) == Applied(1)
    assert (found(world).ttl_ns, found(world).bytes_max) == (SECOND, 7)
    assert move(world, 0, ttl_ns=2 * SECOND) == Applied(1)
    assert (found(world).ttl_ns, found(world).bytes_max) == (2 * SECOND, 7)
    assert found(world).expires_ns == world.now_ns + 2 * SECOND


@pytest.mark.parametrize("is_move", [False, True])
def test_nothing_is_held_that_does_not_exist_yet(world: World, *, is_move: bool) -> None:
    """A hold at an index of the future would look as if it kept something."""
    if is_move:
        create(world)
    command = HoldSet("export", is_move, world.index + 2, SECOND, SIZE)

    assert world.system(command) == Refused(Reason.INDEX_IN_FUTURE, world.index - 1)
    world.state.router.check()


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        (HoldSet("x", False, 1, 0, SIZE), Refused(Reason.HOLD_LIMIT_INVALID, 0)),
        (HoldSet("x", False, 1, SECOND, 0), Refused(Reason.HOLD_LIMIT_INVALID, 0)),
        (
            HoldSet("x", False, 1, TTL_NS_MAX + 1, SIZE),
            Refused(Reason.HOLD_LIMIT_INVALID, TTL_NS_MAX + 1),
        ),
        (
            HoldSet("export", True, 0, TTL_NS_MAX + 1, 0),
            Refused(Reason.HOLD_LIMIT_INVALID, TTL_NS_MAX + 1),
        ),
        (HoldSet("", False, 1, SECOND, SIZE), Refused(Reason.HOLD_NAME_INVALID, 0)),
        (HoldSet("é" * 65, False, 1, SECOND, SIZE), Refused(Reason.HOLD_NAME_INVALID, 130)),
        (HoldSet("x", True, 1, SECOND, SIZE), Refused(Reason.HOLD_UNKNOWN)),
        (HoldRelease("x"), Refused(Reason.HOLD_UNKNOWN)),
        (HoldBreak("x", Cause.BYTES, 1), Refused(Reason.HOLD_UNKNOWN)),
    ],
)
def test_what_makes_no_sense_changes_nothing(
    world: World, command: HoldSet | HoldRelease | HoldBreak, refused: Refused
) -> None:
    create(world)
    before = world.state.router.state_hashes()

    assert world.system(command) == refused

    assert world.state.router.state_hashes() == before
    world.state.router.check()


def test_bytes_that_no_hold_has_are_refused(world: World) -> None:
    create(world)
    numbers = bytes(24)

    for mode in (0, 3):
        draft = Draft(0x000B, b"\x01\x00\x00" + bytes((mode, 1)) + b"x" + numbers)
        assert world.draft(draft) == Refused(Reason.PAYLOAD_FIELD_INVALID, mode)
    for cause in (0, 4):
        draft = Draft(0x000D, b"\x01\x00\x00\x06export" + bytes((cause,)) + bytes(8))
        assert world.draft(draft) == Refused(Reason.PAYLOAD_FIELD_INVALID, cause)
    assert world.system(HoldRelease("export"), "orders") == Refused(Reason.PAYLOAD_FIELD_INVALID, 6)


def test_the_number_of_holds_is_bounded(world: World) -> None:
    for number in range(HOLDS_MAX):
        create(world, f"h{number}")

    assert create(world, "one more") == Refused(Reason.HOLDS_FULL, HOLDS_MAX)


def test_a_broken_hold_keeps_nothing_and_stays_until_it_is_released(world: World) -> None:
    create(world)
    created = world.index
    world.now_ns += 9

    assert world.system(HoldBreak("export", Cause.BYTES, created)) == APPLIED

    hold = found(world)
    assert (hold.cause, hold.broken_index, hold.broken_ns) == (Cause.BYTES, 2, world.now_ns)
    assert world.state.system.holds.first_index() is None
    assert world.state.router.next_deadline() is None
    assert move(world, 0) == Refused(Reason.HOLD_BROKEN, 2)
    assert create(world) == Refused(Reason.HOLD_EXISTS, created)
    again = HoldBreak("export", Cause.DISK, created)
    assert world.system(again) == Refused(Reason.HOLD_BROKEN, 2)
    assert world.system(HoldRelease("export")) == APPLIED
    assert create(world) == Applied(world.index)


def test_a_break_that_was_proposed_before_a_move_has_no_effect(world: World) -> None:
    """The reader came just in time, and the leader could not know."""
    create(world)
    move(world, 0)

    for cause in Cause:
        assert world.system(HoldBreak("export", cause, 1)) == Refused(Reason.HOLD_BREAK_STALE, 2)
    assert found(world).cause is None


def test_a_lifetime_ends_by_the_time_of_the_entry(world: World) -> None:
    create(world)
    world.now_ns += SECOND - 1
    early = world.system(HoldBreak("export", Cause.TIME, 1))
    assert early == Refused(Reason.HOLD_BREAK_STALE, 1)

    world.now_ns += 1
    assert world.system(HoldBreak("export", Cause.TIME, 1)) == APPLIED


def test_what_is_due_is_proposed_once_for_each_hold(world: World) -> None:
    world.system(SessionOpen(9 * SECOND))
    create(world, "a")
    create(world, "b", ttl_ns=5 * SECOND)
    router = world.state.router
    assert router.next_deadline() == world.now_ns + SECOND
    assert router.due(world.now_ns + SECOND - 1, 10) == []

    drafts = router.due(world.now_ns + SECOND, 10)

    (draft,) = drafts
    _, reader = read_prefix(draft.payload)
    assert decode_command(draft.entry_type, reader) == HoldBreak("a", Cause.TIME, 2)
    assert world.pass_time(SECOND) == [APPLIED]
    assert router.next_deadline() == found(world, "b").expires_ns
    assert world.pass_time(4 * SECOND) == [APPLIED]
    assert world.state.router.counts()["holds"] == 2


def test_a_lifetime_beyond_64_bits_ends_at_the_last_moment(world: World) -> None:
    world.now_ns = U64_MAX - 1
    create(world)

    assert world.state.router.next_deadline() == U64_MAX
    world.state.router.check()


def test_a_section_with_holds_that_cannot_be_is_refused(world: World) -> None:
    create(world, "a")
    create(world, "b")
    sections = world.sections()
    data = sections[OWNER_SYSTEM]
    at = data.index(b"\x01a")
    spoilt = {
        "out of order": data.replace(b"\x01a", b"\x01c"),
        "cause 9": data[: at + 2 + 48] + b"\x09" + data[at + 2 + 49 :],
        "hold 'a'": data[: at + 2 + 16] + bytes(8) + data[at + 2 + 24 :],
    }

    for words, bad in spoilt.items():
        with pytest.raises(CorruptSection, match=words):
            World().state.router.load({**{o: [d] for o, d in sections.items()}, 0: cut(bad, 9)})


@dataclass
class Twin:
    """What the model knows of one hold."""

    set_index: int
    index: int
    expires_ns: int
    ttl_ns: int
    is_broken: bool = False


class HoldsMachine(RuleBasedStateMachine):
    """Any operations in any order, against a dict of a few numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.twins: dict[str, Twin] = {}

    @rule(name=st.sampled_from(NAMES), back=st.integers(-2, 6), ttl_s=st.integers(0, 3))
    def create(self, name: str, back: int, ttl_s: int) -> None:
        entry_index = self.world.index + 1
        index = max(0, entry_index - back)
        result = self.world.system(HoldSet(name, False, index, ttl_s * SECOND, SIZE))
        if name in self.twins:
            assert result == Refused(Reason.HOLD_EXISTS, self.twins[name].index)
        elif index > entry_index or not ttl_s:
            assert isinstance(result, Refused)
        else:
            assert result == Applied(index or entry_index)
            ttl_ns = ttl_s * SECOND
            self.twins[name] = Twin(
                entry_index, index or entry_index, self.world.now_ns + ttl_ns, ttl_ns
            )

    @rule(name=st.sampled_from(NAMES), step=st.integers(-1, 9), ttl_s=st.integers(0, 3))
    def move(self, name: str, step: int, ttl_s: int) -> None:
        twin, entry_index = self.twins.get(name), self.world.index + 1
        index = 0 if twin is None else max(0, twin.index + step)
        result = self.world.system(HoldSet(name, True, index, ttl_s * SECOND, 0))
        if twin is None:
            assert result == Refused(Reason.HOLD_UNKNOWN)
        elif twin.is_broken:
            assert isinstance(result, Refused)
            assert result.reason is Reason.HOLD_BROKEN
        elif 0 < index < twin.index or index > entry_index:
            assert isinstance(result, Refused)
        else:
            assert result == Applied(index or twin.index)
            twin.set_index, twin.index = entry_index, index or twin.index
            twin.ttl_ns = ttl_s * SECOND or twin.ttl_ns
            twin.expires_ns = self.world.now_ns + twin.ttl_ns

    @rule(name=st.sampled_from(NAMES))
    def release(self, name: str) -> None:
        is_there = self.twins.pop(name, None) is not None
        expected = APPLIED if is_there else Refused(Reason.HOLD_UNKNOWN)
        assert self.world.system(HoldRelease(name)) == expected

    @rule(name=st.sampled_from(NAMES), cause=st.sampled_from(Cause), late=st.integers(0, 1))
    def break_(self, name: str, cause: Cause, late: int) -> None:
        twin = self.twins.get(name)
        set_index = 1 if twin is None else twin.set_index - late
        result = self.world.system(HoldBreak(name, cause, set_index))
        is_due = twin is not None and (cause is not Cause.TIME or self._is_due(twin))
        if twin is not None and not twin.is_broken and not late and is_due:
            assert result == APPLIED
            twin.is_broken = True
        else:
            assert isinstance(result, Refused)

    @rule(duration_ns=st.integers(0, 2 * SECOND))
    def pass_time(self, duration_ns: int) -> None:
        self.world.pass_time(duration_ns)
        for twin in self.twins.values():
            twin.is_broken = twin.is_broken or self._is_due(twin)

    @rule(size=st.integers(1, 300))
    def reload(self, size: int) -> None:
        now_ns, hashes = self.world.now_ns, self.world.state.router.state_hashes()
        self.world = self.world.reloaded(size)
        self.world.now_ns = now_ns
        assert self.world.state.router.state_hashes() == hashes

    def _is_due(self, twin: Twin) -> bool:
        return self.world.now_ns >= twin.expires_ns

    @invariant()
    def agrees(self) -> None:
        self.world.state.router.check()
        holds = self.world.state.system.holds
        assert {hold.name: (hold.index, hold.cause is not None) for hold in holds} == {
            name: (twin.index, twin.is_broken) for name, twin in self.twins.items()
        }
        kept = [twin.index for twin in self.twins.values() if not twin.is_broken]
        assert holds.first_index() == min(kept, default=None)


TestHolds = HoldsMachine.TestCase
TestHolds.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
