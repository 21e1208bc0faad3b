"""``spark.readStream.format("onelog")``: micro-batches of the log, each entry once.

An offset (``onelog.spark.offsets``) names the last entry that was read of each shard.

* An offset is always the end of a group, so that no transaction is divided.
* A batch is the entries between two offsets. Entries never change, so a batch that is read again
  has the same rows: with an idempotent sink, each row takes effect exactly once.
* A checkpoint is refused if it is of another cluster, if the log now ends before it, or if the log
  has a different entry at its offset. This is checked before a batch is planned and before it is
  read.
* With ``hold``, a named hold follows the query and keeps what it has not read yet. Without one,
  entries may be dropped before they are read. That is an error, or with ``on_loss=gap`` one row
  that names the entries and the cause.

Options besides those of a read (``onelog.spark.options``):

==============  =================================================================================
``max_rows``    about how many entries a batch has; one such as a ``put_many`` may have many rows
``max_bytes``   about how many bytes of the log a batch has
``hold``        the name of a hold that starts at the query's first offset and moves with commits
``on_loss``     ``fail`` (default), or ``gap``: a row with the operation ``gap`` and its range
==============  =================================================================================

All views of entries can be streamed, and so can ``kv_changes``. A batch of ``kv_changes`` is
replayed from the newest snapshot below its first entry, or from the beginning of the log. A hold
keeps the log but no snapshots: a query that falls behind all kept snapshots has lost what it has
not read.

A stream has no end, so ``to_index`` and ``to_time`` are refused. From files, a stream reads as far
as a batch read does: up to the last sealed entry or a snapshot.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from onelog.errors import AlreadyExists, FailedPrecondition, NotFound, OutOfRange
from onelog.spark.changes import ChangesPart, cut_changes, plan_changes, read_changes
from onelog.spark.columns import arrays
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.views import VIEWS
from onelog.spark.faults import REASON_DROPPED
from onelog.spark.offsets import Offset, prove
from onelog.spark.options import INDEX_MAX, ReadOptions, bad, parse_number
from onelog.spark.origin import Cut, Origin, QueueNames, Range, Split
from onelog.spark.table import Table, find_queue_names, find_ranges, open_origin

if TYPE_CHECKING:
    from onelog.client.sync.client import Client

STREAMED_VIEWS = (*VIEWS, "kv_changes")
STREAM_OPTIONS = ("max_rows", "max_bytes", "hold", "on_loss")
HOLD_NAME_SIZE_MAX = 128
# A hold is moved after this many entries or seconds. Each move is an entry of the log itself: a
# query that moved its hold with every batch would find its own moves to read, without end.
HOLD_STEP_ENTRIES = 1_000
HOLD_STEP_S = 600.0
# How often a batch is planned again because entries were dropped during planning.
PLANS_MAX = 5

GAP_FIELDS = (
    pa.field("gap_first_index", pa.int64()),
    pa.field("gap_last_index", pa.int64()),
    pa.field("gap_cause", pa.string()),
)
GAP_OPERATION = "gap"
# Entries can be lost in one way only: retention dropped what no hold kept.
GAP_CAUSE = "RETENTION"

T = TypeVar("T")
_GAP_NAMES = frozenset(each.name for each in GAP_FIELDS)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream besides those of a read."""

    max_rows: int | None = None
    max_bytes: int | None = None
    hold: str | None = None
    with_gaps: bool = False

    @classmethod
    def parse(cls, options: Mapping[str, str], read: ReadOptions) -> "StreamOptions":
        """Return checked options; refuse what a stream cannot have."""
        given = {name.lower(): value for name, value in options.items()}
        for name in ("to_index", "to_time"):
            if name in given:
                raise bad("OPTION_UNCONCERNED", name, given[name], "only for a batch read")
        hold = given.get("hold")
        if hold is not None and not 0 < len(hold.encode()) <= HOLD_NAME_SIZE_MAX:
            raise bad("OPTION_INVALID", "hold", hold, f"a name of 1 to {HOLD_NAME_SIZE_MAX} bytes")
        if hold is not None and read.path is not None:
            raise bad("OPTION_UNCONCERNED", "hold", hold, "only with endpoint")
        on_loss = given.get("on_loss", "fail")
        if on_loss not in ("fail", "gap"):
            raise bad("OPTION_INVALID", "on_loss", on_loss, "fail or gap")
        limits = {
            name: parse_number(name, given[name], 1, INDEX_MAX)
            for name in ("max_rows", "max_bytes")
            if name in given
        }
        return cls(limits.get("max_rows"), limits.get("max_bytes"), hold, on_loss == "gap")


def schema_with_gaps(schema: pa.Schema) -> pa.Schema:
    """Return a view's columns and those of a gap; in the row of a gap the others are null."""
    return pa.schema([*(each.with_nullable(True) for each in schema), *GAP_FIELDS])


class BatchPartition(InputPartition):
    """What one task reads, and the names of its shard's queues."""

    def __init__(self, split: Split, queue_names: dict[int, str]) -> None:
        super().__init__(split)
        self.split = split
        self.queue_names = queue_names


class ChangesPartition(InputPartition):
    """What one task replays."""

    def __init__(self, part: ChangesPart) -> None:
        super().__init__(part)
        self.part = part


class GapPartition(InputPartition):
    """Entries that are gone: one row."""

    def __init__(self, gap: Range) -> None:
        super().__init__(gap)
        self.gap = gap


class OnelogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of one query."""

    def __init__(self, read: ReadOptions, stream: StreamOptions, schema: StructType) -> None:
        self._read = read
        self._stream = stream
        # Spark compares a batch with this, names and order included.
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._origin: Origin = open_origin(read)
        self._target: dict[int, int] | None = None  # the end of a query with trigger availableNow
        self._proved: tuple[Offset, Offset] | None = None  # the last batch that was planned
        self._moved: tuple[dict[int, int], float] | None = None  # where the hold is, since when

    # The driver's side; Spark keeps one reader for a query.

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where a new query begins; set its hold first, so that nothing is lost."""
        return self._planned(self._find_begin, is_repeatable=not self._says_beginning)

    def _find_begin(self) -> dict[str, Any]:
        cut = self._cut()
        begins = {
            each.shard: each.first_index for each in find_ranges(self._read, self._origin, cut)
        }
        if self._stream.hold is not None:
            begins = self._make_hold(begins)
        begin = Offset(cut.cluster_id, {shard: first - 1 for shard, first in begins.items()})
        return prove(self._origin, begin, begin).encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of the options; Spark passes it on unless a trigger overrides it."""
        if self._stream.max_rows is not None:
            return ReadMaxRows(self._stream.max_rows)
        if self._stream.max_bytes is not None:
            return ReadMaxBytes(self._stream.max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note where the log ends now: the query stops there."""
        self._target = _last_indexes(self._cut())

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the log, so that the query's progress shows how far it is behind."""
        cut = self._cut()
        return Offset(cut.cluster_id, _last_indexes(cut)).encode()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next batch: within the limit, where groups end."""
        may_repeat = self._stream.with_gaps
        begin = Offset.decode(start)
        end = self._planned(lambda: self._find_end(begin, limit), is_repeatable=may_repeat)
        self._proved = begin, end
        return end.encode()

    def _find_end(self, start: Offset, limit: ReadLimit) -> Offset:
        cut = self._cut()
        start.refuse_other_log(cut, self._origin.name)
        waiting: list[Range] = []
        ends = {}
        for each in cut.shards:
            first = start.indexes[each.shard] + 1
            last = each.last_index
            if self._target is not None:
                last = min(last, self._target[each.shard])
            ends[each.shard] = max(last, first - 1)
            if last >= first:
                # Dropped entries do not count towards the limit.
                waiting.append(Range(each.shard, max(first, each.first_index), last))
        if not isinstance(limit, ReadAllAvailable):
            ends |= self._within_limits(waiting, limit)
        return prove(self._origin, start, Offset(cut.cluster_id, ends))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return what tasks read between two offsets."""
        may_repeat = self._stream.with_gaps
        ends = Offset.decode(start), Offset.decode(end)
        return self._planned(lambda: self._find_partitions(*ends), is_repeatable=may_repeat)

    def _find_partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        cut = self._cut()
        for offset in (start, end):
            offset.refuse_other_log(cut, self._origin.name)
        if (start, end) != self._proved:  # a batch repeated from a checkpoint
            prove(self._origin, start, end)
        found: list[InputPartition] = []
        ranges: list[Range] = []
        for each in cut.shards:
            first, last = start.indexes[each.shard] + 1, end.indexes[each.shard]
            kept = max(first, each.first_index)
            if first < kept and first <= last:
                gone = Range(each.shard, first, min(last, kept - 1))
                if not self._stream.with_gaps:
                    raise _lost(gone, each.first_index)
                found.append(GapPartition(gone))
            if kept <= last:
                ranges.append(Range(each.shard, kept, last))
        if self._read.view.is_replayed:
            parts = plan_changes(self._origin, cut, ranges)
            return found + [ChangesPartition(each) for each in parts]
        table = self._table(cut, find_queue_names(self._read, self._origin, cut))
        splits = self._origin.splits(ranges, table.selection())
        return found + [
            BatchPartition(each, table.queue_names.get(each.shard, {})) for each in splits
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Move the hold now and then: the sink has everything up to this offset."""
        if self._stream.hold is None:
            return
        ends = Offset.decode(end).indexes
        now_s = monotonic()
        if self._moved is not None:
            before, moved_s = self._moved
            entries = sum(ends.values()) - sum(before.values())
            if entries < HOLD_STEP_ENTRIES and now_s - moved_s < HOLD_STEP_S:
                return
        with self._connect() as client:
            indexes = {shard: index + 1 for shard, index in ends.items()}
            if self._read.shards is not None:
                # A hold covers all shards. In a shard that is not read it must keep nothing, or it
                # would reach its limit and break.
                rest = {each.shard: each.last_index + 1 for each in self._origin.cut().shards}
                indexes = rest | indexes
            try:
                client.admin.set_hold(self._stream.hold, indexes=indexes, move=True)
            except NotFound:
                # The hold was released meanwhile: set it again at the first unread entries.
                client.admin.set_hold(self._stream.hold, indexes=indexes)
        self._moved = ends, now_s

    # A task's side

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split, or the row of a gap."""
        if isinstance(partition, GapPartition):
            yield gap_row(partition.gap, self._schema)
        elif isinstance(partition, BatchPartition):
            yield from self._read_split(partition)
        elif isinstance(partition, ChangesPartition):
            for batch in read_changes(self._read, self._origin, partition.part):
                yield arrays.conform(batch, self._schema)

    def _read_split(self, partition: BatchPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split; with ``on_loss=gap``, also gaps that arose since planning."""
        split = partition.split
        table = self._table(Cut("", 0, ()), {split.shard: partition.queue_names})
        request = table.request(split.shard, frozenset(self._schema.names) - _GAP_NAMES)
        while split.first_index <= split.last_index:
            reached = split.first_index - 1
            try:
                for block in self._origin.blocks(split, request.selection):
                    for batch in table.view.batches(block, request):
                        yield arrays.conform(batch, self._schema)
                    if len(block):
                        reached = int(block.headers["index"][-1])
            except OutOfRange as error:
                if not self._stream.with_gaps or error.reason != REASON_DROPPED:
                    raise
                (kept,) = self._origin.cut((split.shard,)).shards
                gone = Range(split.shard, reached + 1, min(kept.first_index - 1, split.last_index))
                if gone.first_index > gone.last_index:
                    raise
                yield gap_row(gone, self._schema)
                split = replace(split, first_index=gone.last_index + 1)
            else:
                return

    # Inside

    def _planned(self, plan: Callable[[], T], *, is_repeatable: bool) -> T:
        """Plan again if entries were dropped during planning, unless that loss must be reported."""
        for _ in range(PLANS_MAX - 1):
            try:
                return plan()
            except OutOfRange as error:
                if not is_repeatable or error.reason != REASON_DROPPED:
                    raise
        return plan()

    @property
    def _says_beginning(self) -> bool:
        return self._read.from_index is not None or self._read.from_time_ns > 0

    def _cut(self) -> Cut:
        """Return how far each shard can be read; changes begin where replay can start."""
        if self._read.view.is_replayed:
            return cut_changes(self._origin, self._read.shards)
        return self._origin.cut(self._read.shards)

    def _table(self, cut: Cut, queue_names: QueueNames) -> Table:
        return Table(self._read, self._origin, cut, (), queue_names)

    def _within_limits(self, waiting: list[Range], limit: ReadLimit) -> dict[int, int]:
        """Return where a batch within the limits ends in each shard that it does not finish.

        Each shard gets a share in proportion to its unread entries, and at least one group.
        """
        rows, size = self._stream.max_rows, self._stream.max_bytes
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        share = 1.0
        count = sum(each.last_index - each.first_index + 1 for each in waiting)
        if rows is not None and count > rows:
            share = rows / count
        if size is not None and count:
            there = sum(each.size_bytes for each in self._origin.splits(waiting, Selection()))
            share = min(share, size / max(there, 1))
        if share >= 1.0:
            return {}
        ends = {}
        for each in waiting:
            taken = max(int((each.last_index - each.first_index + 1) * share), 1)
            index = each.first_index + taken - 1
            ends[each.shard] = self._origin.group_end(each.shard, index, each.last_index)
        return ends

    def _make_hold(self, begins: dict[int, int]) -> dict[int, int]:
        """Set the query's hold where the query begins; return where it begins.

        An existing hold is taken over. A query without a given beginning then starts at the hold,
        which was prepared for it or set by its first attempt.
        """
        name = self._stream.hold
        assert name is not None
        with self._connect() as client:
            try:
                client.admin.set_hold(name, indexes=begins)
            except AlreadyExists:
                stands = {
                    each.shard: each.index
                    for each in client.admin.list_holds()
                    if each.name == name
                }
                if not self._says_beginning:
                    return {shard: stands[shard] for shard in begins}
                for shard, first in begins.items():
                    if stands[shard] > first:
                        raise FailedPrecondition(
                            f"the hold {name} stands at {stands[shard]} in shard {shard}, and the "
                            f"query begins at {first}: use another name, or release it",
                            reason="HOLD_AHEAD",
                        ) from None
        return begins

    def _connect(self) -> "AbstractContextManager[Client]":
        from onelog.spark.endpoint import EndpointOrigin

        assert isinstance(self._origin, EndpointOrigin), "a hold needs an endpoint"
        return self._origin.connect()


def gap_row(gap: Range, schema: pa.Schema) -> pa.RecordBatch:
    """Return the row that stands for dropped entries, with the columns of a schema."""
    values = {
        "shard": gap.shard,
        "index": gap.first_index,
        "position": 0,
        "operation": GAP_OPERATION,
        "gap_first_index": gap.first_index,
        "gap_last_index": gap.last_index,
        "gap_cause": GAP_CAUSE,
    }
    columns = [pa.array([values.get(each.name)], each.type) for each in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _last_indexes(cut: Cut) -> dict[int, int]:
    return {each.shard: each.last_index for each in cut.shards}


def _lost(gone: Range, first_index: int) -> OutOfRange:
    return OutOfRange(
        f"entries {gone.first_index} to {gone.last_index} of shard {gone.shard} are not kept any "
        f"more: the log begins at {first_index}; set a hold for a query that falls behind, or "
        "continue with on_loss=gap",
        reason=REASON_DROPPED,
        metadata={
            "shard": str(gone.shard),
            "first_index": str(gone.first_index),
            "last_index": str(gone.last_index),
        },
    )
