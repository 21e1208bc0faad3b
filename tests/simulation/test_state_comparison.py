"""A replica whose apply is not deterministic is found by the replicas themselves, and stops.

The judge is blinded here: it would see the difference at once. One replica, leader or follower,
applies puts with another byte; nothing but the product's own comparison can notice.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any

import pytest

from onelog.cluster.raft.member import LEADER
from onelog.cluster.raft.state_comparison import Alarm
from onelog.projections.kv.commands import TYPE_PUT
from onelog.ual.entry import OWNER_KV
from tests.simulation.mutations import CALM
from tests.simulation.replica import Replica
from tests.simulation.world import World

SMUGGLED_S = 3.0
# Virtual seconds. How soon a difference is found depends on when clients put and where marks fall.
FOUND_S = 30.0
STEP_S = 0.5
REST_S = 6.0


def begun(seed: int, members: int) -> World:
    """A cluster without faults that has a leader and serves its clients."""
    world = World(seed, replace(CALM, members=members, weights={"snapshot": 1}))
    world.judge.compares_states = False
    for replica in world.replicas:
        replica.may_diverge = True
        replica.start()
    for client in world.clients:
        client.start()
    world.schedule.run_until(SMUGGLED_S)
    return world


def run_until(world: World, is_done: Callable[[], bool]) -> float:
    """Run the cluster until the condition holds, at most to ``FOUND_S``; return the time."""
    now_s = SMUGGLED_S
    while now_s < FOUND_S and not is_done():
        now_s += STEP_S
        world.schedule.run_until(now_s)
    return now_s


def leading(world: World) -> list[Replica]:
    return [
        each
        for each in world.replicas
        if each.shard is not None and each.shard.member.state == LEADER
    ]


def smuggle(replica: Replica) -> None:
    """Make this replica alone apply puts with another byte from now on.

    Not one put only: its key is soon overwritten, and then the states are equal again.
    """
    assert replica.shard is not None
    handlers = replica.shard.router._handlers
    put = handlers[TYPE_PUT]

    def wrong(prefix: bytes, index: int, now_ns: int, payloads: Sequence[bytes]) -> Any:
        changed = [payload[:-1] + bytes([payload[-1] ^ 1]) for payload in payloads]
        return put(prefix, index, now_ns, changed)

    handlers[TYPE_PUT] = wrong


@pytest.mark.parametrize("members", [3, 5])
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_the_replica_with_the_wrong_state_is_found_and_stops(who: str, members: int) -> None:
    seed = SystemRandom().randrange(10**9)
    world = begun(seed, members)
    (leader,) = leading(world)
    others = [each for each in world.replicas if each is not leader]
    wrong = leader if who == "leader" else others[seed % len(others)]
    smuggle(wrong)
    shards = [each.shard for each in world.replicas]
    found_s = run_until(world, lambda: any(each.diverged for each in world.replicas))

    stopped = [each for each in world.replicas if each.diverged is not None]
    assert stopped == [wrong], (seed, [each.name for each in stopped])
    assert wrong.diverged is not None
    assert wrong.diverged.owners == (OWNER_KV,)
    # Somebody can say what differs; the wrong one in any case, though it has stopped.
    own = shards[wrong.node_id.int - 1]
    assert own is not None
    assert own.comparison.status().alarm is not None
    alarms = [shard.comparison.status().alarm for shard in shards if shard is not None]
    told = [alarm for alarm in alarms if alarm is not None]
    for alarm in told:
        assert OWNER_KV in alarm.owners
        hashes = {row.node_id: row.hashes for row in alarm.rows}
        assert hashes[wrong.node_id] not in [
            each for node_id, each in hashes.items() if node_id != wrong.node_id
        ]

    # The others go on without it.
    done = sum(client.done for client in world.clients)
    world.schedule.run_until(found_s + REST_S)
    assert len(leading(world)) == 1, seed
    assert sum(client.done for client in world.clients) > done + 20, seed
    assert [each for each in world.replicas if each.diverged is not None] == [wrong]


def test_where_there_is_no_majority_everybody_alarms_and_nobody_stops() -> None:
    seed = SystemRandom().randrange(10**9)
    world = begun(seed, members=2)
    smuggle(world.replicas[seed % 2])

    def alarm_of(replica: Replica) -> Alarm | None:
        assert replica.shard is not None, seed
        return replica.shard.comparison.status().alarm

    run_until(world, lambda: all(map(alarm_of, world.replicas)))
    for replica in world.replicas:
        alarm = alarm_of(replica)
        assert alarm is not None, seed
        assert alarm.wrong is None
        assert len(alarm.rows) == 2


def test_states_that_are_equal_are_found_to_be_equal() -> None:
    seed = SystemRandom().randrange(10**9)
    world = begun(seed, members=3)
    world.schedule.run_until(SMUGGLED_S + REST_S)

    (leader,) = leading(world)
    assert leader.shard is not None
    status = leader.shard.comparison.status()
    assert status.alarm is None
    assert status.marks > 3
    # All but the newest, which the followers may still be on their way to.
    assert status.agreed_index >= status.marked_index - 64
