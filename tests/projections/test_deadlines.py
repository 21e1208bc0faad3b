"""Deadlines against a plain dict."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.deadlines import GARBAGE_MAX, Deadlines

steps = st.lists(
    st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(0, 20)), st.integers(0, 20)),
    max_size=80,
)


@given(steps)
def test_deadlines_answer_like_a_sorted_dict(changes: list[tuple[int, int | None, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    plain: dict[int, int] = {}
    for item, deadline_ns, now_ns in changes:
        if deadline_ns is not None:
            deadlines.schedule(item, deadline_ns)
            plain[item] = deadline_ns
        elif item in plain:
            deadlines.cancel(item)
            del plain[item]
        expected = sorted((when, which) for which, when in plain.items())
        assert deadlines.first() == (expected[0][0] if expected else None)
        due = [entry for entry in expected if entry[0] <= now_ns]
        assert deadlines.due(now_ns, 100) == due
        assert deadlines.due(now_ns, 2) == due[:2]
        assert deadlines.get(item) == plain.get(item)
        assert len(deadlines) == len(plain)
        deadlines.check()


def test_postponing_costs_no_memory() -> None:
    """A lease that is kept alive every second for a year must not leave an entry each time."""
    deadlines: Deadlines[int] = Deadlines()
    for now_ns in range(10_000):
        deadlines.schedule(1, now_ns)
    assert len(deadlines._heap) == 1
    assert deadlines.first() == 9_999


def test_garbage_is_bounded() -> None:
    deadlines: Deadlines[bytes] = Deadlines()
    for number in range(5 * GARBAGE_MAX):
        deadlines.schedule(b"k", number)
        deadlines.cancel(b"k")
    deadlines.check()
    assert len(deadlines._heap) <= GARBAGE_MAX + 1
