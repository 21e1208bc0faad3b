"""When a snapshot is due."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.snapshot.trigger import Cause, Growth, TriggerConfig, snapshot_due

MIB = 1 << 20
CONFIG = TriggerConfig()


def growth(
    entries: int = 1, log: int = 0, last: int = 0, elapsed: float = 0, failed: float | None = None
) -> Growth:
    return Growth(entries, log, last, elapsed, failed)


@pytest.mark.parametrize(
    ("what", "cause"),
    [
        (growth(log=64 * MIB - 1), None),
        (growth(log=64 * MIB), Cause.SIZE),
        (growth(log=64 * MIB, last=100 * MIB), None),
        (growth(log=100 * MIB, last=100 * MIB), Cause.SIZE),
        (growth(log=10, elapsed=599.9), None),
        (growth(log=10, elapsed=600), Cause.AGE),
        (growth(entries=0, log=10, elapsed=6000), None),
        (growth(log=1 << 40, elapsed=6000, failed=59), None),
        (growth(log=1 << 40, elapsed=6000, failed=60), Cause.SIZE),
    ],
)
def test_the_rule(what: Growth, cause: Cause | None) -> None:
    assert snapshot_due(what, CONFIG) is cause


@settings(deadline=None)
@given(st.lists(st.integers(1, 200 * MIB), max_size=60))
def test_snapshots_write_no_more_than_the_log_and_one_state(sizes: list[int]) -> None:
    """Each is paid for by as much log since the last one: the cost stays in proportion."""
    log_bytes = state = last = since = written = total = 0
    for size in sizes:
        since += size
        total += size
        state += size  # the worst case: nothing is ever overwritten
        if snapshot_due(growth(log=since, last=last), CONFIG) is Cause.SIZE:
            written += state
            log_bytes += since
            last, since = state, 0
    assert written <= 2 * total + 200 * MIB


@pytest.mark.parametrize(
    "bad", [{"log_bytes_min": 0}, {"interval_s": 0.0}, {"retry_s": -1.0}], ids=str
)
def test_limits_that_would_never_stop_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        TriggerConfig(**bad)  # type: ignore[arg-type]
