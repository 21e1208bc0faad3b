"""What the state refers to stays in the log, and goes when it is no longer needed."""

from dataclasses import replace

import pytest

from node.shard import Shard
from projections import kv_commands, queue_commands, stream_commands, ts_commands
from projections.queue_config import QueueConfig
from projections.queue_message import Enqueue, decode_message
from projections.queue_results import decode_leased
from projections.result import Applied, Result
from projections.stream_reads import Page, Record
from projections.stream_record import Append
from projections.ts_names import series_name
from projections.ts_query import Query, QueryEngine
from projections.ts_rules import Aggregate, Rule
from projections.ts_types import Config
from tests.simulation.mutations import CALM
from tests.simulation.world import World
from ual.damaged import DamagedSegment
from ual.entry import Draft
from ual.errors import CorruptFile
from ual.sealed import SealedSegment

NAMESPACE = "default"
SECOND = 10**9
ALONE = replace(CALM, members=1, clients=0, stale_readers=0, weights={"mend": 1.0})


class LoneNode:
    """A group of one on a simulated disk with small segments."""

    def __init__(self) -> None:
        self.world = World(1, ALONE)
        self.replica = self.world.replicas[0]
        self.replica.start()
        self.pass_time(2.0)

    @property
    def shard(self) -> Shard:
        assert self.replica.shard is not None
        return self.replica.shard

    def pass_time(self, seconds: float) -> None:
        schedule = self.world.schedule
        schedule.run_until(schedule.now_s + seconds)

    def write(self, *drafts: Draft) -> list[Result]:
        outcomes: list[object] = []
        deadline_s = self.replica.clock.now_s() + 5.0
        self.replica.run(lambda shard: shard.propose(drafts, deadline_s, outcomes.append))
        self.pass_time(0.1)
        assert len(outcomes) == 1
        assert isinstance(outcomes[0], list), outcomes
        return outcomes[0]

    def fill(self) -> None:
        """Write segments full of something else, and cover them by two snapshots."""
        for _ in range(2):
            for number in range(30):
                self.write(kv_commands.encode_command(kv_commands.Put(b"k", b"%0900d" % number),
                                                      NAMESPACE))  # fmt: skip
            self.replica.snapshot()

    def trimmed_to(self) -> int:
        """Trim, and return where the log begins now."""
        self.replica.trim()
        return self.shard.log.first_index


def queue_draft(command: queue_commands.Command) -> Draft:
    return queue_commands.encode_command(command, NAMESPACE)


def stream_draft(command: stream_commands.Command) -> Draft:
    return stream_commands.encode_command(command, NAMESPACE)


def ts_draft(command: ts_commands.Command) -> Draft:
    return ts_commands.encode_command(command, NAMESPACE)


@pytest.fixture
def node() -> LoneNode:
    return LoneNode()


def test_without_a_need_the_log_goes_up_to_the_older_snapshot(node: LoneNode) -> None:
    node.fill()
    node.fill()
    assert any(isinstance(each, SealedSegment) for each in node.shard.log.segments.segments)
    assert node.trimmed_to() > 1


def test_a_body_stays_until_its_message_is_done(node: LoneNode) -> None:
    (created,) = node.write(queue_draft(queue_commands.QueueCreate("jobs", QueueConfig())))
    assert isinstance(created, Applied)
    queue = created.number
    node.write(queue_draft(Enqueue(queue, b"body")))
    message_id = node.shard.log.last_index
    node.fill()
    node.fill()
    assert node.trimmed_to() <= message_id

    (leased,) = node.write(queue_draft(queue_commands.Lease(queue)))
    assert isinstance(leased, Applied)
    taken = decode_leased(leased)
    (message,) = taken.messages
    assert decode_message(node.shard.log.read(message.body_index)).body == b"body"

    node.write(queue_draft(queue_commands.Ack(queue, ((message.id, taken.token),))))
    assert node.trimmed_to() > message_id


def test_records_stay_until_they_are_trimmed(node: LoneNode) -> None:
    node.write(stream_draft(stream_commands.Create("events")))
    node.write(stream_draft(Append("events", b"one")))
    offset = node.shard.log.last_index
    node.fill()
    node.fill()
    assert node.trimmed_to() <= offset
    page = node.shard.projections.stream.read(node.shard.log, NAMESPACE, "events", 0)
    assert isinstance(page, Page)
    assert [item.value for item in page.items if isinstance(item, Record)] == [b"one"]

    cause = stream_commands.Cause.REQUEST
    node.write(stream_draft(stream_commands.Trim("events", cause, offset + 1)))
    assert node.trimmed_to() > offset


def test_a_leader_makes_blocks_and_rollups_that_stay(node: LoneNode) -> None:
    node.write(ts_draft(ts_commands.CreateMeasurement("cpu", Config())))
    rule = Rule("minutes", "cpu_1m", 60 * SECOND, 0, (Aggregate.MAX,))
    node.write(ts_draft(ts_commands.SetRule("cpu", rule)))
    name = series_name("cpu", {"host": "a"})
    for first in range(0, 1_200, 40):
        node.write(
            *(
                ts_draft(ts_commands.Write(name, number * SECOND, (("v", float(number % 7)),)))
                for number in range(first, first + 40)
            )
        )
    node.pass_time(5.0)
    pinned = node.shard.router.pinned(1, node.shard.log.last_index)
    assert pinned, "no block was made"
    node.fill()
    node.fill()
    assert node.trimmed_to() <= pinned[0]

    engine = QueryEngine(
        node.shard.projections.series, lambda index: node.shard.log.read(index).plain_payload()
    )
    (row,) = engine.query(NAMESPACE, Query("cpu", "v"))  # type: ignore[misc]
    assert row.values.tolist() == [float(number % 7) for number in range(1_200)]
    (rolled,) = engine.query(NAMESPACE, Query("cpu_1m", "v_max"))  # type: ignore[misc]
    assert set(rolled.values.tolist()) == {6.0}


def test_what_is_damaged_is_repaired_before_anything_behind_it_goes(node: LoneNode) -> None:
    node.write(stream_draft(stream_commands.Create("events")))
    node.write(stream_draft(Append("events", b"one")))
    offset = node.shard.log.last_index
    node.fill()
    node.fill()
    holder = node.shard.log.segments.covering(offset)
    assert isinstance(holder, SealedSegment)
    damage = CorruptFile(str(holder.path), "rot")
    node.replica.run(lambda shard: shard.shipping.note_damage(damage))
    assert isinstance(node.shard.log.segments.covering(offset), DamagedSegment)
    assert node.trimmed_to() <= offset


def test_a_trim_that_meets_rot_that_nobody_knew_of_sets_it_aside(node: LoneNode) -> None:
    """The start of what Raft keeps is looked up in the segment where it will be."""
    node.fill()
    node.fill()
    holder = node.shard.log.segments.covering(node.shard.snapshots.keep_from_index)
    assert isinstance(holder, SealedSegment)
    first_index = node.shard.log.first_index
    node.replica.disk.flip(holder.path, 8 * 200)
    assert node.trimmed_to() == first_index
    assert isinstance(node.shard.log.segments.covering(holder.first_index), DamagedSegment)
