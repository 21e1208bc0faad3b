"""A wrong byte in any projection: the replica that has it stops, and every member names it."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from onelog.cluster.errors import StateDiverged
from onelog.node.replica.requests import ShardConfig
from onelog.node.replica.shard import Shard
from onelog.projections.kv import commands as kv
from onelog.projections.queue import commands as queue
from onelog.projections.queue.message import QueueConfig
from onelog.projections.stream import commands as stream
from onelog.projections.system import commands as system
from onelog.projections.timeseries import commands as timeseries
from onelog.projections.timeseries.types import Config
from onelog.ual.entry import OWNER_NAMES, Draft, Entry
from tests.node.replica.group import IDS, Group, Node

EVERY = ShardConfig(group_bytes_max=1 << 10, request_bytes_max=4 << 10, hash_index_step=1)
NAME, WRONG_NAME = b"right", b"wrong"
TEXT = NAME.decode()
DRAFTS: dict[str, Callable[[], Draft]] = {
    "system": lambda: system.encode_command(system.HoldSet(TEXT, False, 0, 10**18, 1 << 30)),
    "kv": lambda: kv.encode_command(kv.Put(NAME, b"v"), "default"),
    "queue": lambda: queue.encode_command(queue.QueueCreate(TEXT, QueueConfig()), "default"),
    "stream": lambda: stream.encode_command(stream.Create(TEXT), "default"),
    "timeseries": lambda: timeseries.encode_command(
        timeseries.CreateMeasurement(TEXT, Config()), "default"
    ),
}


class States(Group):
    """A group in which one replica may compute another state than the others."""

    def __init__(self) -> None:
        super().__init__(config=EVERY)

    def _look(self, shard: Shard) -> None:
        """Leave the judgement to the replicas."""

    def until_stopped(self) -> tuple[Node, StateDiverged]:
        """Run until a replica stops; what it has sent by then arrives."""
        for _ in range(2000):
            try:
                self.step()
            except StateDiverged as error:
                (node,) = (each for each in self.nodes.values() if each.shard.failure is error)
                for source, target, message in self.queue:
                    if target != node.node_id:
                        self.nodes[target].shard.on_message(source, message)
                self.queue = []
                self.down.add(node.node_id)
                return node, error
        raise AssertionError("no replica stopped")


def smuggle(shard: Shard) -> None:
    """Make this replica apply another name than the one in the log."""
    router = shard.router
    apply_group = router.apply_group

    def wrong(entries: Sequence[Entry]) -> Any:
        changed = [
            entry._replace(payload=entry.payload.replace(NAME, WRONG_NAME)) for entry in entries
        ]
        return apply_group(changed)

    router.apply_group = wrong  # type: ignore[method-assign]


@pytest.mark.parametrize("projection", OWNER_NAMES.values())
@pytest.mark.parametrize("who", ["leader", "follower"])
def test_a_wrong_byte_in_a_projection_stops_the_replica_and_all_members_say_so(
    projection: str, who: str
) -> None:
    group = States()
    owner = next(owner for owner, name in OWNER_NAMES.items() if name == projection)
    leader = group.elect()
    wrong = (
        leader
        if who == "leader"
        else next(each for each in group.nodes.values() if each is not leader)
    )
    others = [each for each in group.nodes.values() if each is not wrong]
    smuggle(wrong.shard)
    deadline_s = leader.clock.time_s + 60.0
    leader.shard.propose([DRAFTS[projection]()], deadline_s, group.outcomes.append)
    index = leader.shard.log.last_index + 1
    stopped, error = group.until_stopped()
    assert stopped is wrong
    assert error.index == index
    assert owner in error.owners  # names of series are in kv, too

    # Once it is down, the others go on, and know what has happened.
    group.until(lambda: all(each.shard.comparison.status().alarm for each in others))
    group.write(1)
    for node in others:
        alarm = node.shard.comparison.status().alarm
        assert alarm is not None
        assert projection in alarm.projections
        assert alarm.wrong == (wrong.node_id,)
        for text in (str(alarm), str(error)):
            assert f"at index {index} in {', '.join(alarm.projections)}" in text
            assert f"{wrong.node_id} stops" in text
            for row in alarm.rows:
                hashed = f"{projection} {dict(row.hashes)[owner]:016x}"
                assert hashed in text[text.index(f"{row.node_id} has ") :].partition(";")[0]
        assert {row.node_id for row in alarm.rows} == set(IDS[:3])

    # It starts again from its log, which is right: the alarm ends when states agree.
    group.down.discard(wrong.node_id)
    group.start(wrong.node_id, wrong.disk)
    group.write(1)
    group.until(
        lambda: not any(each.shard.comparison.status().alarm for each in group.nodes.values())
    )
    group.until(
        lambda: all(
            each.shard.comparison.status().agreed_index > index for each in group.nodes.values()
        )
    )
    assert all(each.shard.comparison.status().comparisons for each in group.nodes.values())
