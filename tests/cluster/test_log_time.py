"""Log time under clocks that jump, crawl and run backwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.cluster.log_time import ALARM_NS, SLEW, LogTime

SECOND = 1_000_000_000


class Clocks:
    def __init__(self, wall_ns: int) -> None:
        self.monotonic_ns = 5 * SECOND
        self.wall_ns = wall_ns
        self.last_ns = 0
        self.time = LogTime(lambda: self.monotonic_ns, lambda: self.wall_ns, lambda: self.last_ns)

    def pass_time(self, elapsed_ns: int, wall_jump_ns: int = 0) -> int:
        self.monotonic_ns += elapsed_ns
        self.wall_ns += elapsed_ns + wall_jump_ns
        self.last_ns = self.time.now_ns()
        return self.last_ns


def test_a_leader_starts_at_its_wall_clock_but_never_before_the_last_entry() -> None:
    clocks = Clocks(wall_ns=100 * SECOND)
    clocks.time.start()
    assert clocks.time.now_ns() == 100 * SECOND

    clocks.last_ns = 200 * SECOND
    clocks.time.start()
    assert clocks.time.now_ns() == 200 * SECOND


def test_a_jump_of_the_wall_clock_is_not_followed_but_reported() -> None:
    for jump in (3600 * SECOND, -3600 * SECOND):
        clocks = Clocks(wall_ns=10_000 * SECOND)
        clocks.time.start()
        before = clocks.pass_time(SECOND)
        assert not clocks.time.is_alarming

        after = clocks.pass_time(SECOND, jump)

        assert abs(after - before - SECOND) <= SLEW * SECOND
        assert clocks.time.is_alarming


def test_a_small_offset_is_slewed_away() -> None:
    clocks = Clocks(wall_ns=100 * SECOND)
    clocks.time.start()
    clocks.pass_time(SECOND, SECOND // 2)
    for _ in range(10):
        clocks.pass_time(SECOND)
    assert clocks.last_ns == clocks.wall_ns


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(-(10**12), 10**12)), max_size=30))
def test_it_never_runs_backwards_and_never_faster_than_the_slew(
    steps: list[tuple[int, int]],
) -> None:
    clocks = Clocks(wall_ns=10**15)
    clocks.time.start()
    last = clocks.pass_time(0)
    for elapsed_ns, jump_ns in steps:
        now = clocks.pass_time(elapsed_ns, jump_ns)
        assert last + elapsed_ns * (1 - SLEW) - 1 <= now <= last + elapsed_ns * (1 + SLEW) + 1
        last = now
    assert ALARM_NS > 0


def test_a_new_leader_far_from_the_last_ones_time_goes_on_from_there_and_reports() -> None:
    """Following its own clock would let every lease expire at once, or none for an hour."""
    for wrong in (3600 * SECOND, -3600 * SECOND):
        clocks = Clocks(wall_ns=10_000 * SECOND + wrong)
        clocks.last_ns = 10_000 * SECOND
        clocks.time.heard(clocks.last_ns, 0.0)
        clocks.monotonic_ns += 5 * SECOND
        clocks.wall_ns += 5 * SECOND
        clocks.time.start()
        assert clocks.time.now_ns() == 10_005 * SECOND
        assert clocks.time.is_alarming


def test_a_new_leader_close_to_the_last_ones_time_starts_at_its_own_clock() -> None:
    clocks = Clocks(wall_ns=10_001 * SECOND)
    clocks.last_ns = 10_000 * SECOND
    clocks.time.heard(clocks.last_ns, 0.0)
    clocks.time.start()
    assert clocks.time.now_ns() == 10_001 * SECOND
    assert not clocks.time.is_alarming


def test_a_leader_that_leads_again_goes_on_with_its_own_time() -> None:
    clocks = Clocks(wall_ns=10_000 * SECOND)
    clocks.time.start()
    clocks.pass_time(SECOND, 3600 * SECOND)
    clocks.last_ns = 0  # nothing was written
    clocks.monotonic_ns += SECOND
    clocks.time.start()
    assert abs(clocks.time.now_ns() - 10_002 * SECOND) <= SECOND
    assert clocks.time.is_alarming


def test_a_leader_that_slows_down_is_followed() -> None:
    """What was heard first must not run ahead of it, or the next leader would begin there."""
    clocks = Clocks(wall_ns=10_000 * SECOND)
    for second in range(600):
        clocks.time.heard(10_000 * SECOND + int(second * SECOND * (1 - SLEW)), 0.0)
        clocks.monotonic_ns += SECOND
    clocks.wall_ns = 10_540 * SECOND
    clocks.time.start()
    assert abs(clocks.time.now_ns() - 10_540 * SECOND) <= SECOND
    assert not clocks.time.is_alarming


def test_what_was_long_on_its_way_does_not_turn_time_back() -> None:
    clocks = Clocks(wall_ns=20_000 * SECOND)
    clocks.time.heard(10_000 * SECOND, 0.0)
    clocks.time.heard(9_000 * SECOND, 0.0)
    clocks.time.start()
    assert clocks.time.now_ns() == 10_000 * SECOND


@pytest.mark.parametrize("travelled_s", [8.0, float("inf")])
def test_what_was_sent_before_a_network_was_cut_does_not_hold_time_back(travelled_s: float) -> None:
    """It says what time it was then; the next leader would begin there, with an alarm."""
    clocks = Clocks(wall_ns=10_000 * SECOND)
    clocks.time.heard(10_000 * SECOND, 0.0)
    clocks.monotonic_ns += 8 * SECOND
    clocks.wall_ns += 8 * SECOND
    clocks.time.heard(10_001 * SECOND, travelled_s)
    clocks.time.start()
    assert clocks.time.now_ns() == 10_008 * SECOND
    assert not clocks.time.is_alarming


def test_a_follower_reports_a_wall_clock_that_is_wrong_until_it_is_right_again() -> None:
    """Before it leads, and after it has led: by what a leader says, if that came soon."""
    clocks = Clocks(wall_ns=10_000 * SECOND)
    clocks.time.start()
    clocks.pass_time(SECOND, 3600 * SECOND)
    assert clocks.time.is_alarming
    clocks.wall_ns -= 3600 * SECOND
    clocks.time.heard(clocks.wall_ns, 0.1)
    assert not clocks.time.is_alarming
    clocks.wall_ns += 3600 * SECOND
    clocks.time.heard(clocks.wall_ns - 3600 * SECOND, 9.0)
    assert not clocks.time.is_alarming
    clocks.time.heard(clocks.wall_ns - 3600 * SECOND, 0.1)
    assert clocks.time.is_alarming
