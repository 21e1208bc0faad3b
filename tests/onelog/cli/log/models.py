"""A data directory with keys, queues, streams and time series in it, written by a real shard."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from onelog.projections.codec import SessionRef
from onelog.projections.queue import commands as queue
from onelog.projections.queue.message import Enqueue, QueueConfig
from onelog.projections.result import Refused
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.stream import commands as groups
from onelog.projections.stream import commands as stream
from onelog.projections.stream.commands import Append
from onelog.projections.stream.reads import Record
from onelog.projections.system.commands import SessionOpen, encode_batch
from onelog.projections.system.commands import encode_command as encode_system
from onelog.projections.timeseries import commands as series
from onelog.projections.timeseries.columns import make_block
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.types import Aggregate, Policy, Rule
from onelog.ual.entry import Draft
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from tests.projections.stream.stream_pages import read_undelivered
from tests.snapshot.live import MINUTE, SECOND, LiveShard, put
from tests.ual.shards import close_active, seal_closed

NAMESPACE = "default"
CONFIG = LogConfig(ring_bytes=4096, segment_bytes_max=900, free_bytes_min=0)
HOUR = 60 * MINUTE
TIME = 1_700_000_000 * SECOND
SERIES = series_name("cpu", {"host": "a"})
ESCAPE = b"\xff\x1b[2J"  # no text, and what a terminal would obey


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Ask = Callable[..., Result]


class Models:
    """Writes one entry after the other and remembers the index of each by a name."""

    def __init__(self, path: Path) -> None:
        self.live: LiveShard[Projections] = LiveShard(
            DiskFiles(), build_projections, data_dir=path, config=CONFIG
        )
        self.at: dict[str, int] = {}

    @property
    def state(self) -> Projections:
        return self.live.state

    @property
    def data_dir(self) -> Path:
        return self.live.data_dir

    def do(self, name: str, draft: Draft) -> int:
        """Write one entry, and return its index."""
        self.live.do([draft])
        self.at[name] = self.live.log.last_index
        return self.at[name]

    def queue(self, name: str, command: queue.Command) -> int:
        return self.do(name, queue.encode_command(command, NAMESPACE))

    def stream(self, name: str, command: stream.Command) -> int:
        return self.do(name, stream.encode_command(command, NAMESPACE))

    def series(self, name: str, command: series.Command) -> int:
        return self.do(name, series.encode_command(command, NAMESPACE))

    # What is written, in this order.

    def write_keys(self) -> None:
        session = self.do("session", encode_system(SessionOpen(MINUTE)))
        self.do("key", put(b"user/1", b"Ada"))
        sent = SessionRef(session, 1, 0)
        self.do("purge", queue.encode_command(queue.Purge(999), NAMESPACE, sent))  # refused

    def write_queue(self) -> None:
        """Leave one message acknowledged, one leased, one delayed, one ready, one dead."""
        dead = self.queue("dead", queue.QueueCreate("dead", QueueConfig()))
        config = QueueConfig(max_deliveries=1, dead_queue=dead, visibility_ns=HOUR)
        mail = self.queue("mail", queue.QueueCreate("mail", config))
        first = self.queue("first", Enqueue(mail, b"first"))
        lease = self.queue("lease", queue.Lease(mail))
        self.queue("ack", queue.Ack(mail, ((first, lease),)))
        second = self.queue("second", Enqueue(mail, b"second"))
        lease = self.queue("second lease", queue.Lease(mail))
        self.queue("nack", queue.Nack(mail, ((second, lease),), failure=b"no such address"))
        self.queue("binary", Enqueue(mail, ESCAPE, priority=3, headers=((b"kind", b"\x00"),)))
        self.queue("third lease", queue.Lease(mail))
        self.queue("later", Enqueue(mail, b"later", delay_ns=HOUR))
        self.queue("long", Enqueue(mail, b"long " * 100, tenant=b"t\x07"))

    def write_stream(self) -> None:
        """Leave six records in two partitions, and a group that has some of them."""
        self.stream("orders", stream.Create("orders", 2))
        for number in range(6):
            record = Append("orders", b"order %d" % number, key=b"k%d" % number)
            self.stream(f"order {number}", record)
        self.stream("billing", groups.GroupCreate("orders", "billing", 0))
        member, offsets = self.deliver("orders", "billing", 2)
        self.stream("stream ack", groups.Ack("orders", "billing", member, ((0, offsets[0]),)))

    def deliver(self, name: str, group: str, limit: int) -> tuple[int, tuple[int, ...]]:
        """Deliver records of the first partition to a new member; return it, and their offsets."""
        member = self.stream("member", groups.GroupJoin(name, group, MINUTE))
        found = self.state.stream.describe_group(NAMESPACE, name, group)
        assert not isinstance(found, Refused), found
        page = read_undelivered(self.state.stream, self.live.log, name, group, 0, limit)
        offsets = tuple(item.offset for item in page.items if isinstance(item, Record))
        deliver = groups.Deliver(
            name, group, member, found.generation, 0, found.delivered[0], page.next_offset, offsets
        )
        self.stream("deliver", deliver)
        return member, offsets

    def write_dead_letter(self) -> None:
        """Fail a record in a group until it becomes a dead letter in another stream."""
        self.stream("lost", stream.Create("lost"))
        self.stream("jobs", stream.Create("jobs"))
        self.stream("job", Append("jobs", b"a job", key=b"\x00"))
        config = groups.GroupConfig(max_deliveries=1, dead_letter="lost")
        self.stream("workers", groups.GroupCreate("jobs", "workers", 0, config))
        member, (offset,) = self.deliver("jobs", "workers", 1)
        nack = groups.Nack("jobs", "workers", member, ((0, offset),), reason=b"too \x1b hard")
        self.stream("job nack", nack)
        (draft,) = self.state.router.due(self.live.log.last_timestamp_ns + SECOND, 10)
        self.do("letter", draft)

    def write_series(self) -> None:
        """Leave five points, three of them in a block, a second field, a second series, a rule."""
        for number in range(3):
            fields = (("usage", 0.5 + number),)
            self.series(f"point {number}", series.Write(SERIES, TIME + number * SECOND, fields))
        (found,) = self.state.series.spaces[NAMESPACE].series.values()
        block = make_block(found.columns[0], Policy.LAST, found.measurement.config_index)
        self.series("block", block)
        for number in (3, 4):
            both = (("usage", 0.5 + number), ("up", True))
            self.series(f"point {number}", series.Write(SERIES, TIME + number * SECOND, both))
        other = series_name("cpu", {"host": "b"})
        self.series("other", series.Write(other, TIME, (("usage", 1.0),)))
        rule = Rule("minutely", "cpu_1m", MINUTE, 0, (Aggregate.MEAN, Aggregate.MAX))
        self.series("rule", series.SetRule("cpu", rule))

    def write_batch(self) -> None:
        """Write a batch over models, and what no projection understands."""
        sent = queue.encode_command(Enqueue(self.at["mail"], b"of a batch"), NAMESPACE)
        self.live.do(encode_batch([put(b"user/1", b"Grace"), sent], namespace=NAMESPACE))
        self.at["batch"] = self.live.log.last_index
        self.do("junk", Draft(0x0101, b"hello \x1b[2J"))


def build_models(path: Path, *, close: bool = True) -> Models:
    """Write all of it, with two snapshots: before the series, and before the batch.

    The records of the stream are noted by the first, and are in sealed files before the second.
    """
    models = Models(path)
    models.write_keys()
    models.write_queue()
    seal_closed(models.live.log)
    models.write_stream()
    models.live.snapshot()
    close_active(models.live.log)
    seal_closed(models.live.log)
    models.write_series()
    models.live.snapshot()
    models.write_batch()
    if close:
        models.live.log.close()
    return models
