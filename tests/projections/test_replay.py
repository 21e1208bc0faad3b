"""Replay equivalence: the same log gives the same state, whatever happened to the replica.

The same random log is applied at once and one by one, through snapshots at random points, with
values moved to the spill store in between, and in another process with another PYTHONHASHSEED.
Hashes after every group, all answers and all snapshot bytes must be the same.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.projections.equivalence import compare_replicas, compare_with_writer
from tests.projections.mutations import MUTATIONS

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds)
@settings(max_examples=3, deadline=None)
def test_a_log_means_the_same_however_it_is_applied(seed: int) -> None:
    compare_replicas(seed)


@given(seed=seeds)
@settings(max_examples=5, deadline=None)
def test_a_replay_arrives_where_the_writer_is(seed: int) -> None:
    compare_with_writer(seed)


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
