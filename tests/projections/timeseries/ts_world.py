"""A shard of keys and time series without a log: commands go in and are applied.

Entries pass through the bytes of the log. Blocks are read back from there, as a node does it.
"""

from collections.abc import Sequence

from onelog.projections.codec import SessionRef
from onelog.projections.kv.projection import KV
from onelog.projections.kv.reads import KeyValue
from onelog.projections.projection import Position, Projection
from onelog.projections.result import Applied, Result
from onelog.projections.router import ProjectionRouter
from onelog.projections.system import commands
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import Fingerprints
from onelog.projections.timeseries.columns import Column, make_block
from onelog.projections.timeseries.commands import (
    Command,
    Write,
    encode_command,
    encode_write_batch,
)
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.projection import TimeSeries
from onelog.projections.timeseries.query import Query, Row
from onelog.projections.timeseries.store import Series
from onelog.projections.timeseries.types import Value
from onelog.ual.entry import OWNER_KV, OWNER_TIMESERIES, Draft, Entry, decode_entries, encode_group
from tests.projections.timeseries.ts_queries import Queries

NAMESPACE = "default"
SECOND = 1_000_000_000
ROUNDS_MAX = 50


class Voids:
    """Keeps the void ranges that the router reports."""

    def __init__(self) -> None:
        self.voids: list[tuple[int, int]] = []

    def add_record(self, stream_id: int, index: int) -> None:
        raise AssertionError(f"no streams here: {stream_id} {index}")

    def add_void(self, first_index: int, last_index: int) -> None:
        self.voids.append((first_index, last_index))


class SeriesWorld:
    """Keys and time series, the entries they were given, and the clock that stamps them."""

    def __init__(self, *, rollups: bool = True) -> None:
        self.notes = Voids()
        position = Position()
        self.kv = KV(position)
        self.series = TimeSeries(position, self.kv)
        table: dict[int, Projection] = {OWNER_KV: self.kv, OWNER_TIMESERIES: self.series}
        system = System(table)
        self.router = ProjectionRouter(
            table,
            self.notes,
            system=system,
            checker=self.kv,
            position=position,
            fingerprints=Fingerprints({}, {}),
        )
        self.entries: list[Entry] = []
        self.now_ns = 1_000 * SECOND
        self.queries = Queries(self.series, self.read_block)
        if rollups:
            self.series.use_log(self.read_block)

    @property
    def index(self) -> int:
        return self.router.applied_index

    def read_block(self, index: int) -> bytes:
        return self.entries[index - 1].plain_payload()

    def group(self, drafts: Sequence[Draft]) -> list[Result]:
        group = encode_group(drafts, term=1, first_index=self.index + 1, timestamp_ns=self.now_ns)
        entries = decode_entries(group.data)
        self.entries += entries
        return self.router.apply_group(entries)

    def draft(self, draft: Draft) -> Result:
        return self.group([draft])[0]

    def run(
        self, command: Command, namespace: str = NAMESPACE, session: SessionRef | None = None
    ) -> Result:
        return self.draft(encode_command(command, namespace, session))

    def system(self, command: commands.Command, namespace: str = "") -> Result:
        return self.draft(commands.encode_command(command, namespace))

    def write(self, series: bytes, time_ns: int, **fields: Value) -> Result:
        return self.run(Write(series, time_ns, tuple(fields.items())))

    def batch(self, *runs: Run, namespace: str = NAMESPACE) -> Result:
        return self.draft(encode_write_batch(encode_batch(runs), namespace))

    def find(self, name: bytes, namespace: str = NAMESPACE) -> Series:
        return self.series.spaces[namespace].series[name]

    def column(self, name: bytes, field: str) -> Column:
        series = self.find(name)
        return series.columns[series.measurement.field_ids[field]]

    def block(self, name: bytes, field: str) -> Result:
        """Apply the block that a leader would make of this column's buffer."""
        measurement = self.find(name).measurement
        column = self.column(name, field)
        block = make_block(column, measurement.config.policy, measurement.config_index)
        return self.run(block)

    def query(self, query: Query, namespace: str = NAMESPACE) -> list[Row]:
        rows = self.queries.query(namespace, query)
        assert isinstance(rows, list), rows
        return rows

    def points(self, name: bytes, field: str) -> list[tuple[int, Value]]:
        """Return all points of a series that a query shows."""
        measurement = self.find(name).measurement.name
        for row in self.query(Query(measurement, field)):
            if row.name == name:
                return list(zip(row.times.tolist(), row.values.tolist(), strict=True))
        return []

    def meta(self, name: bytes, namespace: str = NAMESPACE) -> bytes | None:
        item = self.kv.get(namespace, b"_ts:meta:" + name)
        return item.value if isinstance(item, KeyValue) else None

    def work(self) -> list[tuple[Draft, Result]]:
        """Apply what the leader should propose now, until there is nothing left."""
        done: list[tuple[Draft, Result]] = []
        for _ in range(ROUNDS_MAX):
            deadline = self.router.next_deadline()
            drafts = self.router.due(self.now_ns, 1_000)
            if not drafts:
                assert deadline is None or deadline > self.now_ns, "a deadline without work"
                return done
            assert deadline is not None and deadline <= self.now_ns  # noqa: PT018
            for draft in drafts:
                result = self.draft(draft)
                assert isinstance(result, Applied), result
                done.append((draft, result))
        raise AssertionError("what is to do does not go away")

    def pass_time(self, duration_ns: int) -> list[tuple[Draft, Result]]:
        self.now_ns += duration_ns
        return self.work()

    def section(self) -> bytes:
        return b"".join(self.series.dump())

    def reloaded(self, chunk_size: int = 1_000) -> "SeriesWorld":
        """Return a world that starts from this one's snapshot."""
        other = SeriesWorld()
        other.now_ns = self.now_ns
        other.entries = list(self.entries)
        sections = {}
        for owner, chunks in self.router.dump().items():
            data = b"".join(chunks)
            starts = range(0, len(data), chunk_size)
            sections[owner] = [data[start : start + chunk_size] for start in starts]
        other.router.load(sections)
        return other

    def replayed(self) -> "SeriesWorld":
        """Return a world that applied the same entries one by one."""
        other = SeriesWorld()
        other.now_ns = self.now_ns
        for entry in self.entries:
            other.router.apply(entry)
        other.entries = list(self.entries)
        return other
