"""Short runs of the simulator in all its weathers; ``make simulate`` runs many long ones."""

from dataclasses import replace
from random import SystemRandom

import pytest

from onelog.projections.system.holds import Holds
from tests.simulation.mutations import CALM, MEMBERS, POWER, PROCESSES, STRANDED
from tests.simulation.profile import SHIPPING, Profile, profile_of
from tests.simulation.world import Violation, World

RUNS = 4
FAULTS_S = 20.0
HELD = Profile(
    faults_s=FAULTS_S, holds=True, lets_go=False, weights=SHIPPING, down_s_max=5.0, between_s=0.5
)


def run_from_random_base(profile: Profile | None = None) -> None:
    """Run a seed; a violation names it."""
    seed = SystemRandom().randrange(10**9)
    World(seed, profile or profile_of(seed, FAULTS_S)).run()


@pytest.mark.parametrize("_run", range(RUNS))
def test_every_promise_holds_in_a_run_of_random_faults(_run: int) -> None:
    run_from_random_base()


def test_nothing_acknowledged_is_lost_when_everybody_loses_power_at_once() -> None:
    run_from_random_base(POWER)


def test_what_a_majority_received_is_not_lost_while_no_power_fails() -> None:
    run_from_random_base(PROCESSES)


def test_members_come_and_go_under_faults() -> None:
    run_from_random_base(MEMBERS)


def test_a_leader_that_was_cut_off_takes_a_snapshot_and_forgets_what_only_it_had() -> None:
    seed = SystemRandom().randrange(10**9)
    world = World(seed, STRANDED)
    world.run()

    bases = [each.shard.log.base for each in world.replicas if each.shard is not None]
    assert any(bases), (seed, world.events)


def test_a_member_that_was_cut_off_does_not_depose_a_healthy_leader() -> None:
    run_from_random_base(CALM)


def test_what_is_held_stays_while_logs_are_dropped_and_shipped() -> None:
    run_from_random_base(HELD)


def test_a_log_that_forgets_its_holds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holds, "first_index", lambda _: None)

    def run() -> None:
        for _ in range(RUNS):
            run_from_random_base(HELD)

    with pytest.raises(Violation, match="reader-"):
        run()


def test_a_seed_replays_exactly() -> None:
    seed = SystemRandom().randrange(10**9)
    first, second = (World(seed, profile_of(seed, faults_s=5.0)) for _ in range(2))
    first.run()
    second.run()

    assert list(first.events) == list(second.events)
    assert first.network.sent == second.network.sent
    assert first.history.by_key == second.history.by_key
    assert first.due.happened == second.due.happened


def test_stale_reads_with_a_bound_are_answered_by_every_replica_of_a_healthy_cluster() -> None:
    seed = SystemRandom().randrange(10**9)
    world = World(seed, replace(CALM, weights={"snapshot": 1}, faults_s=10.0))
    world.run()

    for replica in world.replicas:
        asked = sum(reader.asked[replica.name, 1.0] for reader in world.stale_readers)
        answered = sum(reader.answered[replica.name, 1.0] for reader in world.stale_readers)
        assert asked > 10, seed
        # All but those before the first leader, and what the first second may need.
        assert answered >= 0.7 * asked, (seed, replica.name, answered, asked)


def test_leadership_is_handed_over_under_load() -> None:
    profile = replace(
        CALM, stable_leader=False, weights={"transfer": 1}, between_s=0.5, faults_s=10.0
    )
    seed = SystemRandom().randrange(10**9)
    world = World(seed, profile)
    world.run()

    # One after the other, hardly any in vain: a transfer needs no election timeout.
    assert world.judge.elections >= 5, (seed, world.events)
