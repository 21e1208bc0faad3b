"""What the state refers to stays in the log, and goes when it is no longer needed."""

import pytest

from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue, QueueConfig, decode_leased, decode_message
from onelog.projections.result import Applied
from onelog.projections.stream import commands as stream_commands
from onelog.projections.stream.commands import Append
from onelog.projections.stream.reads import Record
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.types import Aggregate, Config, Rule
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptFile
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from tests.node.replica.lone import NAMESPACE, LoneNode
from tests.projections.stream.stream_pages import read_page
from tests.projections.timeseries.ts_queries import Queries

SECOND = 10**9


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
    page = read_page(node.shard.projections.stream, node.shard.log, "events")
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

    queries = Queries(
        node.shard.projections.series, lambda index: node.shard.log.read(index).plain_payload()
    )
    (row,) = queries.query(NAMESPACE, Query("cpu", "v"))  # type: ignore[misc]
    assert row.values.tolist() == [float(number % 7) for number in range(1_200)]
    (rolled,) = queries.query(NAMESPACE, Query("cpu_1m", "v_max"))  # type: ignore[misc]
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
