"""The clients of the models: that they use these widely, and notice what they are there for."""

from collections.abc import Callable
from random import SystemRandom
from typing import Any

import pytest

from onelog.projections.queue.store import QueueState, Total
from onelog.projections.stream import operations
from onelog.projections.stream.commands import Nack
from onelog.projections.stream.groups import Group
from onelog.projections.stream.limits import partition_id
from onelog.projections.stream.operations import Moment
from onelog.projections.stream.projection import Stream
from onelog.projections.stream.state import Producers
from onelog.ual.entry import decode_entries
from tests.simulation.profile import Profile
from tests.simulation.world import Violation, World

# Little goes wrong, so that much gets done.
CALM = Profile(
    faults_s=30.0, models=True, deadlines=1, weights={"crash": 1.0}, between_s=5.0, stale_readers=0
)
SEEDS_MAX = 5
# What clients ask for and leaders make of it.
TYPES = {
    "expire": 0x0003,
    "session_open": 0x0004,
    "batch": 0x000A,
    "touch": 0x0103,
    "lease_grant": 0x010A,
    "lease_keepalive": 0x010B,
    "enqueue": 0x0201,
    "lease": 0x0202,
    "ack": 0x0203,
    "nack": 0x0204,
    "extend": 0x0205,
    "release": 0x0206,
    "purge": 0x0209,
    "redrive": 0x020A,
    "ts_write": 0x0301,
    "ts_write_batch": 0x0302,
    "ts_block": 0x0303,
    "append": 0x0401,
    "deliver": 0x040F,
    "stream_ack": 0x0410,
    "stream_nack": 0x0411,
    "dead_letter": 0x0412,
    "claim": 0x0413,
}


def test_the_clients_use_all_models_and_leaders_do_their_chores() -> None:
    base = SystemRandom().randrange(10**9)
    missing = set(TYPES.values())
    for seed in range(base, base + SEEDS_MAX):
        world = World(seed, CALM)
        world.run()
        for data in world.judge.applied.values():
            missing.difference_update(entry.entry_type for entry in decode_entries(data))
        if not missing:
            return

    rare = {name for name, number in TYPES.items() if number in missing}
    pytest.fail(f"{rare} did not occur in {SEEDS_MAX} runs from seed {base} on")


def a_nack_loses_records(patch: pytest.MonkeyPatch) -> None:
    """What a consumer gives back is nobody's any more."""
    nack = operations._nack

    def lose(group: Group, command: Nack, moment: Moment) -> Any:
        outcome = nack(group, command, moment)
        for number, offset in command.places:
            if group.pending.get(partition_id(offset, number)) is not None:
                group.pending.set(partition_id(offset, number), None)
        group.set_committed(tuple(map(group.committed_at, range(len(group.committed)))))
        return outcome

    patch.setattr(operations, "_nack", lose)


def a_refused_batch_keeps_its_records(patch: pytest.MonkeyPatch) -> None:
    """Streams do not take back what a refused batch did."""
    patch.setattr(Stream, "rollback_batch", Stream.commit_batch)


def a_purge_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Messages go, and no number says where to."""
    count = QueueState.count

    def forget(self: QueueState, total: Total, change: int = 1) -> None:
        count(self, total, 0 if total is Total.PURGED else change)

    patch.setattr(QueueState, "count", forget)


def producers_are_not_known(patch: pytest.MonkeyPatch) -> None:
    """A record that is sent again is another record."""
    patch.setattr(Producers, "admit", lambda *_: None)
    patch.setattr(Producers, "record", lambda *_: None)


def dead_letters_stay_where_they_are(patch: pytest.MonkeyPatch) -> None:
    """A leader knows of a chore and leaves it."""
    patch.setattr(Stream, "chores", lambda *_: [])


@pytest.mark.parametrize(
    "mistake",
    [
        a_nack_loses_records,
        a_refused_batch_keeps_its_records,
        a_purge_is_not_counted,
        producers_are_not_known,
        dead_letters_stay_where_they_are,
    ],
)
def test_a_mistake_in_a_model_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All replicas make it, so their states agree: only the clients and the law can tell."""
    mistake(monkeypatch)
    base = SystemRandom().randrange(10**9)

    assert any(not holds(seed) for seed in range(base, base + SEEDS_MAX)), base


def holds(seed: int) -> bool:
    """Tell whether a run finds nothing to complain of."""
    try:
        World(seed, CALM).run()
    except Violation:
        return False
    return True
