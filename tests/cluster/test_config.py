"""Tests of cluster/config.py: what it accepts, pysyncobj accepts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.cluster.config import RaftConfig
from onelog.cluster.raft.pysyncobj_seam import configuration

seconds = st.sampled_from([0.005, 0.015, 0.1, 0.3, 0.4, 1.0, 3.0, 3.5, 5.0, 60.0, 600.0])


@given(seconds, seconds, seconds, seconds)
def test_pysyncobj_accepts_the_times_that_a_configuration_does(
    heartbeat_s: float, election_s_min: float, election_s_max: float, silence_s: float
) -> None:
    """It asserts rules of its own, and a node would end with INTERNAL instead of a clear error."""
    try:
        config = RaftConfig(heartbeat_s, election_s_min, election_s_max, silence_s)
    except ValueError:
        return
    configuration(config, object()).validate()


@pytest.mark.parametrize(
    ("times", "said"),
    [
        ({"heartbeat_s": 0.2, "election_s_min": 0.6}, "three heartbeats"),
        ({"election_s_min": 0.8, "election_s_max": 0.8}, "exceed the shortest"),
        ({"heartbeat_s": 0.1, "leader_silence_s_max": 0.1}, "step down"),
    ],
)
def test_times_that_cannot_work_are_refused(times: dict[str, float], said: str) -> None:
    """Each names the rule that is broken."""
    with pytest.raises(ValueError, match=said):
        RaftConfig(**times)  # type: ignore[arg-type]
