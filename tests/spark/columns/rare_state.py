"""What random histories seldom leave behind: lifetimes, leases, dead records, trimmed series."""

from onelog.projections.kv.commands import Delete, LeaseGrant, Put, encode_command
from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.result import Applied
from onelog.projections.stream import commands as stream_commands
from onelog.projections.stream.commands import (
    Append,
    Deliver,
    GroupConfig,
    GroupCreate,
    GroupJoin,
    Nack,
)
from onelog.projections.stream.reads import GroupDescription
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.commands import CreateMeasurement, Write
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.types import Config, Policy
from onelog.ual.entry import Draft
from tests.projections.world import NAMESPACE, SECOND, World

HOUR = 3_600 * SECOND


def add_rare_state(world: World) -> None:
    """Bring every column of every table to a value that is neither null nor empty."""
    _add_series(world)
    world.kv(Put(b"expired", b"soon", ttl_ns=SECOND))
    world.pass_time(2 * HOUR)
    _do(world, encode_command(LeaseGrant(HOUR), NAMESPACE))
    lease = world.index
    world.kv(Put(b"bound", b"both", ttl_ns=HOUR, lease=lease))
    world.kv(Put(b"leased", b"1", lease=lease))
    world.kv(Put(b"leased", b"2", lease=lease))
    world.kv(Put(b"\xff\x00", b"binary"))
    world.kv(Put(b"large", b"x" * 3_000))
    world.kv(Delete(b"large"))
    _add_messages(world)
    _add_records(world)


def _do(world: World, draft: Draft) -> int:
    """Apply a draft that must take effect and return its index."""
    result = world.draft(draft)
    assert isinstance(result, Applied), result
    return world.index


def _add_series(world: World) -> None:
    def run(command: ts_commands.Command) -> None:
        _do(world, ts_commands.encode_command(command, NAMESPACE))

    run(CreateMeasurement("trimmed{}", Config(Policy.FIRST, retention_ns=HOUR)))
    for age_ns in (2 * HOUR, 0):
        series = series_name("trimmed{}", {"age": f"{age_ns}", "a=b": "x,y"})
        run(Write(series, world.now_ns + 2 * HOUR - age_ns, (("up", True), ("n", 7), ("f", 0.5))))


def _add_messages(world: World) -> None:
    def run(command: queue_commands.Command) -> int:
        return _do(world, queue_commands.encode_command(command, NAMESPACE))

    queue = run(queue_commands.QueueCreate("rare", QueueConfig(ttl_ns=HOUR, dedup_max=1)))
    for number in range(3):
        run(Enqueue(queue, b"", dedup=b"%d" % number, tenant=b"ada", group=b"g%d" % number))
    run(Enqueue(queue, b"", delay_ns=HOUR, priority=15))
    run(queue_commands.Lease(queue, 2))
    run(queue_commands.QueuePause(queue))


def _add_records(world: World) -> None:
    def run(command: stream_commands.Command) -> int:
        return _do(world, stream_commands.encode_command(command, NAMESPACE))

    run(stream_commands.Create("graves"))
    run(stream_commands.Create("rare", 2))
    offsets = [run(Append("rare", b"x", partition=1)) for _ in range(3)]
    config = GroupConfig(shared=True, max_deliveries=1, dead_letter="graves")
    run(GroupCreate("rare", "group", 0, config))
    member = run(GroupJoin("rare", "group", HOUR))
    described = world.state.stream.describe_group(NAMESPACE, "rare", "group")
    assert isinstance(described, GroupDescription)
    start = described.delivered[1]
    end = offsets[1] + 1
    run(Deliver("rare", "group", member, described.generation, 1, start, end, tuple(offsets[:2])))
    run(Nack("rare", "group", member, ((1, offsets[0]),), reason=b"broken"))
