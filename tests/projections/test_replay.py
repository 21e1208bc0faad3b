"""Replay equivalence: the same log gives the same state, whatever happened to the replica.

The same random log is applied at once and one by one, through snapshots at random points, with
values moved to the spill store in between, and in another process with another PYTHONHASHSEED.
Hashes after every group, all answers and all snapshot bytes must be the same.
"""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from onelog.projections.kv import commands as kv_commands
from onelog.projections.queue import commands as queue_commands
from onelog.projections.stream import commands as stream_commands
from onelog.projections.system import commands as system_commands
from onelog.projections.timeseries import commands as ts_commands
from onelog.ual.entry import (
    OWNER_KV,
    OWNER_QUEUE,
    OWNER_STREAM,
    OWNER_SYSTEM,
    OWNER_TIMESERIES,
    TYPE_NOOP,
)
from tests.projections.equivalence import applied_types, compare_replicas, compare_with_writer
from tests.projections.mutations import MUTATIONS

REGISTRIES = {
    OWNER_SYSTEM: system_commands.SYSTEM_OPERATIONS,
    OWNER_KV: kv_commands.KV_OPERATIONS,
    OWNER_QUEUE: queue_commands.QUEUE_OPERATIONS,
    OWNER_TIMESERIES: ts_commands.TS_OPERATIONS,
    OWNER_STREAM: stream_commands.STREAM_OPERATIONS,
}
LOGS = 32
_OF_LEADERS = "test_ts_rollups.py: the leader makes it from blocks of the log, and worlds have none"
COMPARED_ELSEWHERE = {"BeginRollup": _OF_LEADERS, "Rollup": _OF_LEADERS}

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds)
@example(seed=123)  # outdated entries of a ready queue ended the turn of a tenant with a weight
@settings(max_examples=3, deadline=None)
def test_a_log_means_the_same_however_it_is_applied(seed: int) -> None:
    compare_replicas(seed)


@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_a_replay_arrives_where_the_writer_is(seed: int) -> None:
    compare_with_writer(seed)


def registered_types() -> dict[int, str]:
    """Return every type of entry that means something, with the name of its command."""
    names = {TYPE_NOOP: "Noop", system_commands.TYPE_RAFT_CONFIG: "RaftConfig"}
    for owner, operations in REGISTRIES.items():
        for each in operations:
            if each.is_entry:
                names[owner << 8 | each.number] = each.command.__name__
    return names


def test_every_type_of_entry_takes_effect_in_logs_that_are_compared() -> None:
    """What no log contains, no comparison can find wrong."""
    logs = [compare_with_writer(seed) for seed in range(LOGS)]
    applied = set().union(*(applied_types(log) for log in logs))

    missing = {name for number, name in registered_types().items() if number not in applied}
    assert missing <= COMPARED_ELSEWHERE.keys()


def is_noticed(mutation: str, seed: int) -> bool:
    try:
        compare_replicas(seed, mutation=mutation)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("mutation", sorted(MUTATIONS.keys() - {"none"}))
def test_a_smuggled_mistake_makes_the_comparison_fail(
    mutation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison above is only worth something if it finds what it is there to find.

    One log may miss what another shows, because the order of a set is left to chance; that all
    of them miss it would be one chance in 100,000.
    """
    MUTATIONS[mutation](monkeypatch)

    assert any(is_noticed(mutation, seed) for seed in range(1, 7))
