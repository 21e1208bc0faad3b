"""Views of the state: keys, queues, streams and series at the cut, at an index or at a time.

One task reads one shard. Options besides those of a read (``onelog.spark.options``):

==================  ==============================================================================
``as_of_index``     the state right after this entry of each shard, or ``shard=index,…``
``as_of_time``      the state at this log time, ISO 8601 or nanoseconds
==================  ==============================================================================

Without them it is the state at the cut, which is taken once when the table is loaded. An index
inside a transaction is refused: a transaction changes nothing until its last entry.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from onelog.errors import NotFound, OutOfRange
from onelog.spark.columns import arrays
from onelog.spark.columns.block import Block
from onelog.spark.columns.sections import SECTION_TABLES
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Output, View
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.options import Bound, ReadOptions, bad, parse_bound, parse_time
from onelog.spark.origin import Cut, Origin, Range, ShardCut
from onelog.spark.past import Past, open_past, open_replayed
from onelog.spark.series_points import TIMESERIES_SCHEMA, point_batches
from onelog.spark.table import open_origin

AS_OF_OPTIONS = ("as_of_index", "as_of_time")
_NAMES = ("kv", "kv_versions", "queue", "queues", "streams", "groups", "series")
_SHARD = pa.field("shard", pa.int32(), nullable=False)


def _refuse_entries(_block: Block, _output: Output) -> None:
    raise AssertionError("entries have no rows in a table of the state")


STATE_VIEWS: dict[str, View] = {
    name: View(
        name,
        pa.schema([_SHARD, *SECTION_TABLES[name].schema]),
        frozenset(),
        None,
        _refuse_entries,
    )
    for name in _NAMES
}
STATE_VIEWS["timeseries"] = View(
    "timeseries", TIMESERIES_SCHEMA, frozenset(), None, _refuse_entries
)


@dataclass(frozen=True)
class StatePart:
    """What one task reads: the state of a shard right after an index; 0: the empty state."""

    shard: int
    index: int


@dataclass(frozen=True, slots=True)
class AsOf:
    """Which state is wanted: at the cut, at an index of each shard, or at a log time."""

    index: Bound | None = None
    time_ns: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "AsOf":
        """Parse the options ``as_of_index`` and ``as_of_time``."""
        given = {name.lower(): value for name, value in options.items()}
        if "as_of_index" in given and "as_of_time" in given:
            allowed = "no as_of_index beside it"
            raise bad("OPTION_CONFLICT", "as_of_time", given["as_of_time"], allowed)
        time_ns = parse_time("as_of_time", given["as_of_time"]) if "as_of_time" in given else None
        return cls(parse_bound(given, "as_of_index"), time_ns)


@dataclass(frozen=True)
class StateTable:
    """A loaded table of the state: its origin, and an index of each shard."""

    options: ReadOptions
    origin: Origin
    cut: Cut
    parts: tuple[StatePart, ...]

    def batches(
        self, part: StatePart, columns: frozenset[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the wanted rows of a shard, with at least these columns of the view (None: all)."""
        if part.index:
            with self.open(part, columns) as (_, batches):
                yield from batches

    @contextmanager
    def open(
        self, part: StatePart, columns: frozenset[str] | None = None
    ) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        """Open a state that is not empty: its log time, and its rows as from ``batches``."""
        where = (self.origin, part.shard, part.index)
        if self.options.view.name == "timeseries":
            with open_replayed(*where) as state:
                points = point_batches(self.origin, self.options, part.shard, state, columns)
                yield state.projections.router.log_time_ns, points
        else:
            with open_past(*where) as past:
                yield past.log_time_ns, self._rows(past, part.shard)

    def _rows(self, past: Past, shard: int) -> Iterator[pa.RecordBatch]:
        table = SECTION_TABLES[self.options.view.name]
        for batch in table.rows(past.chunks(table.section_type)):
            wanted = self._select(batch)
            if wanted.num_rows:
                numbers = arrays.constant(shard, wanted.num_rows, pa.int32())
                every = [numbers, *wanted.columns]
                yield pa.RecordBatch.from_arrays(every, schema=self.options.view.schema)

    def _select(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        read = self.options
        if read.namespaces is not None:
            names = pa.array(sorted(name.decode() for name in read.namespaces), pa.string())
            batch = batch.filter(pc.is_in(batch.column("namespace"), names))
        if read.key_prefix is not None:
            batch = batch.filter(pc.starts_with(batch.column("key"), read.key_prefix))
        return batch


def load_state_table(read: ReadOptions, options: Mapping[str, str]) -> StateTable:
    """Take the cut, and find the wanted index of each shard."""
    as_of = AsOf.parse(options)
    origin = open_origin(read)
    cut = origin.cut(read.shards)
    return StateTable(read, origin, cut, find_parts(read, as_of, origin, cut))


def find_parts(read: ReadOptions, as_of: AsOf, origin: Origin, cut: Cut) -> tuple[StatePart, ...]:
    """Return the wanted state of each shard; refuse one outside the cut."""
    there = {part.shard for part in cut.shards}
    for shard in as_of.index if isinstance(as_of.index, dict) else ():
        if shard not in there:
            raise NotFound(
                f"option as_of_index names shard {shard}, and the shards that are read are "
                f"{', '.join(map(str, sorted(there)))}",
                reason="SHARD_UNKNOWN",
                metadata={"option": "as_of_index"},
            )
    parts = []
    for part in cut.shards:
        index = read.bound(as_of.index, part.shard)
        if as_of.time_ns is not None:
            index = _find_index(origin, part, as_of.time_ns)
        if index is not None and index > part.last_index:
            raise OutOfRange(
                f"option as_of_index is {index}, and shard {part.shard} ends at {part.last_index}",
                reason="INDEX_IN_FUTURE",
                metadata={"option": "as_of_index", "last_index": str(part.last_index)},
            )
        parts.append(StatePart(part.shard, part.last_index if index is None else index))
    return tuple(parts)


def _find_index(origin: Origin, part: ShardCut, time_ns: int) -> int:
    """Return the last entry of a shard at or before a time; 0 if the whole log is later."""
    whole = Range(part.shard, part.first_index, part.last_index)
    selection = Selection(to_time_ns=time_ns)
    # Times never decrease along the log: the last split with such an entry has the last of them.
    for split in reversed(origin.splits([whole], selection)):
        last = 0
        for block in origin.blocks(split, selection):
            last = int(block.headers["index"][-1])
        if last:
            return last
    if part.first_index > 1:
        raise OutOfRange(
            f"option as_of_time is {time_ns} ns, and what is kept of shard {part.shard} begins at "
            f"entry {part.first_index} with {part.first_timestamp_ns} ns",
            reason=REASON_DROPPED,
            metadata={"option": "as_of_time", "shard": str(part.shard)},
        )
    return 0
