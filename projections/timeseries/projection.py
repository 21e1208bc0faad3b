"""The time series projection, owner 0x03: points of fields of series in measurements.

``TimeSeries`` decodes a command and executes it: writes (writes.py), blocks (here), deletes and
trims (deletes.py), rules and rollups (rollups.py). State is in store.py. Queries are in query.py,
independent of any transport; they read the state through ``spaces`` and blocks through a callable.
docs/timeseries.md describes it for users.

The newest points are in buffers, in the state; older ones are in blocks, which are entries of the
log that the state pins. Entries that brought points are not needed once they are applied.

``Chores`` is the leader's part: which entries to propose now. These are blocks for full buffers,
trims for measurements with a retention, and rollups for rules whose next window is closed. They
depend on the state alone, so a new leader continues where the old one stopped, and asking twice
gives the same entries. Compressing a block costs 0.2 ms: a block is kept until its column changes,
and one call makes a bounded number. Rollups read blocks; without ``read_block`` (a replica that
serves nothing) there are none.

The listings describe measurements, series and tags.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from heapq import nsmallest
from typing import assert_never

from onelog.projections.codec import Reader, chunked
from onelog.projections.errors import BadPayload
from onelog.projections.namespaces import Namespace
from onelog.projections.projection import DerivedKeys, Handler, Position, Projection, one_by_one
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused
from onelog.projections.state_hash import reduce_total
from onelog.projections.timeseries.columns import CorruptBlock, make_block
from onelog.projections.timeseries.commands import (
    TS_OPERATIONS,
    BeginRollup,
    Block,
    Command,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    Rollup,
    SetRule,
    Trim,
    Write,
    decode_command,
    encode_chore,
)
from onelog.projections.timeseries.deletes import delete, drop_measurement, trim
from onelog.projections.timeseries.limits import (
    BLOCK_POINTS_MAX,
    BLOCKS_PER_CHORE_MAX,
    LIST_SERIES_MAX,
    MEASUREMENTS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import Matcher, compile_matchers
from onelog.projections.timeseries.point_batch import WriteBatch
from onelog.projections.timeseries.read import BlockCache, ReadBlock
from onelog.projections.timeseries.rollups import (
    apply_rollup,
    begin_rollup,
    drop_rule,
    make_begin,
    make_rollup,
    rollup_due_ns,
    set_rule,
)
from onelog.projections.timeseries.snapshot import check_store, dump_parts, load_section
from onelog.projections.timeseries.store import (
    Measurement,
    Series,
    SeriesSpace,
    Store,
    trim_allowed_ns,
    trim_due_ns,
)
from onelog.projections.timeseries.types import TYPE_NAMES, Config, Progress, Rule
from onelog.projections.timeseries.writes import write_batch, write_row
from onelog.ual.entry import OWNER_TIMESERIES, Draft

_Mark = tuple[int, int, int]  # base, points, settings: a block is valid while these are unchanged


class Chores:
    """Finds the entries that a leader should propose for a store."""

    __slots__ = ("_made", "_store", "cache")

    def __init__(self, store: Store) -> None:
        self._store = store
        self._made: dict[tuple[int, int], tuple[_Mark, list[Draft]]] = {}
        self.cache: BlockCache | None = None

    def next_deadline(self) -> int | None:
        """Return the time of the next chore; 0: now."""
        if self._store.full:
            return 0
        deadlines: list[int] = []
        for measurement in self._store.timed.values():
            due_ns = trim_due_ns(measurement)
            if due_ns is not None:
                deadlines.append(max(0, due_ns))
            deadlines += self._rule_deadlines(measurement)
        return min(deadlines, default=None)

    def _rule_deadlines(self, measurement: Measurement) -> list[int]:
        if self.cache is None or not measurement.rules:
            return []
        dues = [rollup_due_ns(measurement, *rule) for rule in measurement.rules.values()]
        return [max(0, due_ns) for due_ns in dues if due_ns is not None]

    def drafts(self, now_ns: int, limit: int) -> list[Draft]:
        """Return up to ``limit`` entries to propose."""
        drafts = self._blocks(min(limit, BLOCKS_PER_CHORE_MAX))
        for key in sorted(self._store.timed):
            if len(drafts) >= limit:
                break
            measurement = self._store.timed[key]
            drafts += self._measurement_drafts(measurement, now_ns)[: limit - len(drafts)]
        return drafts

    def _blocks(self, limit: int) -> list[Draft]:
        """Return a block for each of the first full columns, and further ones of long buffers.

        A loop that fills one column must not be faster than its blocks are made.
        """
        full = self._store.full
        if not full:
            self._made.clear()
            return []
        counts = dict.fromkeys(nsmallest(limit, full), 1)
        left = limit - len(counts)
        for key in sorted(counts, key=lambda key: (-len(full[key]), key)) if left else ():
            more = min(left, len(full[key]) // BLOCK_POINTS_MAX - 1)
            if more <= 0:
                break
            counts[key] += more
            left -= more
        self._made = {key: self._make_blocks(key, count) for key, count in counts.items()}
        return [draft for _, drafts in self._made.values() for draft in drafts]

    def _make_blocks(self, key: tuple[int, int], count: int) -> tuple[_Mark, list[Draft]]:
        """Return ``count`` blocks of a column, those made before if they are still valid."""
        column = self._store.full[key]
        measurement = self._store.by_id[column.series_id].measurement
        config = measurement.config_index
        mark = (column.base, len(column), config)
        known, drafts = self._made.get(key, (mark, []))
        drafts = drafts[:count] if known == mark else []
        for number in range(len(drafts), count):
            skip = number * BLOCK_POINTS_MAX
            block = make_block(column, measurement.config.policy, config, skip)
            drafts.append(encode_chore(block, measurement.space.namespace))
        return mark, drafts

    def _measurement_drafts(self, measurement: Measurement, now_ns: int) -> list[Draft]:
        drafts: list[Draft] = []
        namespace = measurement.space.namespace
        for name in sorted(measurement.rules) if self.cache is not None else ():
            rule, progress = measurement.rules[name]
            due_ns = rollup_due_ns(measurement, rule, progress)
            if due_ns is None or due_ns > now_ns:
                continue
            if not progress.slice_index:
                begin = make_begin(measurement, rule, progress, now_ns)
                drafts.append(encode_chore(begin, namespace))
                continue
            assert self.cache is not None
            # An unreadable block is repaired later; other chores do not wait for it.
            with suppress(CorruptBlock):
                rollup = make_rollup(measurement, rule, progress, self.cache)
                drafts.append(encode_chore(rollup, namespace))
        due_ns = trim_due_ns(measurement)
        if due_ns is not None and due_ns <= now_ns:
            trim = Trim(
                measurement.name,
                measurement.created_index,
                trim_allowed_ns(measurement, now_ns),
                measurement.sweep_after,
            )
            drafts.append(encode_chore(trim, namespace))
        return drafts


# Listings


@dataclass(frozen=True, slots=True)
class MeasurementInfo:
    """One measurement."""

    name: str
    created_index: int
    config: Config
    series_count: int
    fields: tuple[tuple[str, str], ...]  # name and type, in the order of their first write
    tags: tuple[tuple[str, int], ...]  # name and number of values
    rules: tuple[tuple[Rule, Progress], ...]
    trimmed_ns: int | None  # points before it are gone


@dataclass(frozen=True, slots=True)
class SeriesInfo:
    """One series."""

    name: bytes
    series_id: int
    created_index: int
    fields: tuple[str, ...]
    buffered_points: int  # over all fields
    blocks: int


@dataclass(frozen=True, slots=True)
class SeriesPage:
    """Some series in the order of their ids; ``after`` is where the next page continues."""

    items: tuple[SeriesInfo, ...]
    after: int | None


def describe_measurement(measurement: Measurement) -> MeasurementInfo:
    """Describe a measurement without its series."""
    trimmed_ns = measurement.trimmed_ns
    return MeasurementInfo(
        name=measurement.name,
        created_index=measurement.created_index,
        config=measurement.config,
        series_count=len(measurement.series),
        fields=tuple((name, TYPE_NAMES[kind]) for name, kind in measurement.fields),
        tags=tuple(measurement.index.tags().items()),
        rules=tuple(measurement.rules[name] for name in sorted(measurement.rules)),
        trimmed_ns=None if trimmed_ns == TIME_NS_MIN else trimmed_ns,
    )


def describe_series(series: Series) -> SeriesInfo:
    """Describe a series."""
    columns = [series.columns[field_id] for field_id in sorted(series.columns)]
    return SeriesInfo(
        name=series.name,
        series_id=series.series_id,
        created_index=series.created_index,
        fields=tuple(series.measurement.fields[column.field_id].name for column in columns),
        buffered_points=sum(map(len, columns)),
        blocks=sum(len(column.rows()) for column in columns),
    )


def list_series(
    space: SeriesSpace, measurement: str, matchers: tuple[Matcher, ...], after: int, limit: int
) -> SeriesPage | Refused:
    """Return the matching series of a measurement with ids above ``after``."""
    if not 1 <= limit <= LIST_SERIES_MAX:
        return Refused(Reason.LIMIT_INVALID, limit)
    found = space.measurements.get(measurement)
    if found is None:
        return Refused(Reason.MEASUREMENT_UNKNOWN)
    try:
        ids = found.index.select(compile_matchers(matchers))
    except BadPayload as error:
        return Refused(error.reason, error.detail)
    ids = ids[ids > after]
    page = ids[:limit].tolist()
    more = page[-1] if len(ids) > limit else None
    return SeriesPage(tuple(describe_series(found.series[each]) for each in page), more)


# The projection


class TimeSeries(Projection):
    """The state of all series."""

    owner = OWNER_TIMESERIES
    operations = TS_OPERATIONS

    def __init__(self, position: Position, keys: DerivedKeys) -> None:
        self._position = position
        self._store = Store(keys)
        self._undo = self._store.undo
        self._chores = Chores(self._store)

    @property
    def spaces(self) -> Mapping[str, SeriesSpace]:
        """The time series of each namespace, for reading."""
        return self._store.spaces

    def use_log(self, read_block: ReadBlock) -> None:
        """Set the reader of blocks, which a leader needs to compute rollups."""
        self._chores.cache = BlockCache(read_block)

    def handlers(self) -> Mapping[int, Handler]:
        """Return the handler of each operation."""
        return {
            OWNER_TIMESERIES << 8 | each.number: one_by_one(partial(self._apply, each.number))
            for each in TS_OPERATIONS
        }

    def _apply(
        self, number: int, namespace: str, reader: Reader, index: int, timestamp_ns: int
    ) -> Outcome:
        command = decode_command(number, reader)
        space = self._store.spaces.get(namespace)
        if space is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        return self._execute(space, command, index, timestamp_ns)

    def _execute(
        self, space: SeriesSpace, command: Command, index: int, timestamp_ns: int
    ) -> Outcome:
        store = self._store
        match command:
            case Write():
                return write_row(store, space, command, index)
            case WriteBatch():
                return write_batch(store, space, command, index)
            case Block():
                return self._apply_block(space, command, index)
            case CreateMeasurement() | ConfigureMeasurement():
                return self._configure(space, command, index)
            case DropMeasurement():
                return drop_measurement(store, space, command, index)
            case Delete():
                return delete(store, space, command, index)
            case SetRule():
                return set_rule(store, space, command, index, timestamp_ns)
            case DropRule():
                return drop_rule(store, space, command, index)
            case Trim():
                return trim(store, space, command, index, timestamp_ns)
            case BeginRollup():
                return begin_rollup(store, space, command, index, timestamp_ns)
            case Rollup():
                return apply_rollup(store, space, command, index, timestamp_ns)
            case _:
                assert_never(command)

    def _configure(
        self, space: SeriesSpace, command: CreateMeasurement | ConfigureMeasurement, index: int
    ) -> Outcome:
        measurement = space.measurements.get(command.measurement)
        if isinstance(command, CreateMeasurement):
            if measurement is not None:
                return Refused(Reason.MEASUREMENT_EXISTS, measurement.created_index)
            if len(space.measurements) >= MEASUREMENTS_MAX:
                return Refused(Reason.MEASUREMENTS_FULL, MEASUREMENTS_MAX)
            self._store.create_measurement(space, command.measurement, command.config, index)
            return Applied(index)
        if measurement is None:
            return Refused(Reason.MEASUREMENT_UNKNOWN)
        self._store.update(measurement, config=command.config, config_index=index)
        self._store.publish_measurement(measurement, index)
        return APPLIED

    def _apply_block(self, space: SeriesSpace, block: Block, index: int) -> Outcome:
        """Replace buffered points by a block, if they are still those that it was made of."""
        series = self._store.by_id.get(block.series_id)
        column = None if series is None else series.columns.get(block.field_id)
        if (
            series is None
            or column is None
            or series.measurement.space is not space
            or series.measurement.config_index != block.config_index
            or column.base != block.base
            or len(column) < block.taken
            or column.prefix_hash(block.taken) != block.source_hash
        ):
            return Refused(Reason.BLOCK_STALE)
        row = (index, block.first_ns, block.last_ns, block.points)
        self._store.add_block(column, block.taken, row)
        return APPLIED

    def measurements(self, namespace: str) -> list[MeasurementInfo] | Refused:
        """Return the measurements of a namespace in the order of names."""
        space = self._store.spaces.get(namespace)
        if space is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        return [describe_measurement(measurement) for measurement in space.in_order()]

    def series(
        self,
        namespace: str,
        measurement: str,
        matchers: tuple[Matcher, ...] = (),
        *,
        after: int = 0,
        limit: int = 1_000,
    ) -> SeriesPage | Refused:
        """Return series of a measurement that pass the matchers, page by page."""
        space = self._store.spaces.get(namespace)
        if space is None:
            return Refused(Reason.NAMESPACE_UNKNOWN)
        return list_series(space, measurement, matchers, after, limit)

    def begin_batch(self) -> None:
        """Record every change from now on, so that it can be rolled back."""
        self._store.begin()

    def namespace_created(self, namespace: Namespace) -> None:
        """Open an empty space."""
        space = SeriesSpace(namespace.name, namespace.created_index)
        self._store.spaces[namespace.name] = space

    def namespace_deleted(self, namespace: Namespace) -> None:
        """Drop all series."""
        self._store.close_space(namespace.name)

    def next_deadline(self) -> int | None:
        """Return the time at which a leader has something to propose."""
        return self._chores.next_deadline()

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        """Return blocks, trims and rollups to propose."""
        return self._chores.drafts(now_ns, limit)

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        """Return the blocks from first to last."""
        return self._store.pins.between(first_index, last_index)

    def state_hash(self) -> int:
        """Return the hash of all content."""
        return reduce_total(self._store.hash_total)

    def memory(self) -> dict[str, int]:
        """Return the bytes held, by kind."""
        return self._store.memory()

    def counts(self) -> dict[str, int]:
        """Return the number of objects, by kind."""
        store = self._store
        return {
            "measurements": sum(len(space.measurements) for space in store.spaces.values()),
            "series": len(store.by_id),
            "series_columns": store.column_count,
            "series_points_buffered": store.point_count,
            "series_blocks": store.block_count,
            "series_buffers_full": len(store.full),
        }

    def dump(self) -> Iterator[bytes]:
        """Yield the snapshot section."""
        return chunked(dump_parts(self._store))

    def load(self, chunks: Iterable[bytes]) -> None:
        """Load a section; the namespaces exist already."""
        load_section(self._store, chunks, self._position.applied_index)

    def check(self) -> None:
        """Assert every invariant."""
        check_store(self._store)
