"""Time series: ``client.ts``, with numpy arrays in and out.

::

    client.ts.write("cpu", times_ns, {"load": loads}, tags={"host": "a"})
    for group in client.ts.query("cpu", "load", start, end, aggregate="mean", window_s=60):
        plot(group.times_ns, group.values)

Arrays go in and out of protobuf without a loop over their values: a packed field has the bytes of
the array, little-endian, eight for a time, a double or an integer, one for a bool
(onelog/packed.py).

numpy is imported with the first points: the import takes a quarter of a second of CPU, which
programs and commands without points should not pay.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from onelog.client.arrays import (
    Array,
    ArrayLike,
    are_plain_columns,
    are_plain_times,
    to_column,
    to_times,
)
from onelog.client.batch import POINTS
from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.tables import Row, Rows, import_library
from onelog.client.times import Time, to_nanoseconds
from onelog.client.validation import check_fields, refuse_unsendable
from onelog.client.values import Key, Read, milliseconds, nanoseconds, to_bytes
from onelog.errors import AlreadyExists, InvalidArgument, OnelogError
from onelog.packed import SERIES, PointsPacker, join_times, unsized
from onelog.v1 import timeseries_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True, eq=False)
class SeriesData:
    """Points of one series or group: their times, and in each field one value per time."""

    tags: Mapping[str, str]
    times_ns: "npt.NDArray[np.int64]"
    fields: Mapping[str, Array]

    @property
    def values(self) -> Array:
        """The values of the only field, as in the result of a query."""
        (only,) = self.fields.values()
        return only

    def __len__(self) -> int:
        return len(self.times_ns)

    def to_pandas(self) -> Any:
        """Return a pandas.DataFrame: times are the index, fields the columns, tags in ``attrs``."""
        library = import_library("pandas", "to_pandas")
        index = library.DatetimeIndex(self.times_ns.astype("datetime64[ns]"), tz="UTC", name="time")
        frame = library.DataFrame(dict(self.fields), index=index)
        frame.attrs.update(self.tags)
        return frame

    def to_arrow(self) -> Any:
        """Return a pyarrow.Table: the times, each field, and each tag as a column."""
        return Rows([self]).to_arrow()

    def _repr_html_(self) -> str:
        """Return the table as notebooks show it."""
        return Rows([self])._repr_html_()

    def _to_columns(self) -> dict[str, list[Any]]:
        named = {"times_ns": self.times_ns.tolist()}
        named |= {name: values.tolist() for name, values in self.fields.items()}
        columns = {
            f"tag.{tag}" if tag in named else tag: [value] * len(self)
            for tag, value in self.tags.items()
        }
        return columns | named


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of one series as they are sent: checked, and of the types that are stored."""

    tags: Mapping[str, str]
    times: "npt.NDArray[np.int64]"
    columns: Mapping[str, Array]

    @property
    def value_count(self) -> int:
        """The number of values."""
        return len(self.times) * len(self.columns)

    def cut(self, first: int, end: int) -> "Points":
        """Return the points from one position to before another."""
        columns = {name: column[first:end] for name, column in self.columns.items()}
        return Points(self.tags, self.times[first:end], columns)

    def fill(self, message: timeseries_pb2.SeriesPoints) -> None:
        """Fill in the protobuf message."""
        message.MergeFromString(self.pack(PointsPacker()))

    def pack(self, packer: PointsPacker) -> bytes:
        """Return the bytes of the message."""
        return packer.pack(self.tags.items(), self.times, self.columns.items())


def to_points(
    times_ns: Any,
    fields: Mapping[str, ArrayLike],
    tags: Mapping[str, str] | None,
    of_which: str = "",
) -> Points:
    """Check the points of one series, which ``of_which`` names among others, and return them.

    Times are int64 nanoseconds, datetime64 or datetimes with a zone; a single one is one point. The
    type of a field follows from its array: floats, integers, bools.
    """
    times = to_times(times_ns, f"times_ns{of_which}")
    columns = {name: to_column(values, f"{name}{of_which}") for name, values in fields.items()}
    return _make_points(times, columns, tags, of_which)


def to_points_of_each(series: Iterable[SeriesData]) -> list[Points]:
    """Check the points of several series and return them."""
    series = list(series)
    fields = [values for each in series for values in each.fields.values()]
    if are_plain_times([each.times_ns for each in series]) and are_plain_columns(fields):
        make: Callable[..., Points] = _make_points
    else:
        make = to_points
    return [
        make(each.times_ns, each.fields, each.tags, f" of series[{at}]")
        for at, each in enumerate(series)
    ]


def _make_points(
    times: "npt.NDArray[np.int64]",
    columns: Mapping[str, Array],
    tags: Mapping[str, str] | None,
    of_which: str,
) -> Points:
    if not columns:
        what = f"points{of_which} have at least one field"
        raise InvalidArgument(what, reason="FIELDS_INVALID")
    for tag, value in (tags or {}).items():
        if not value:
            # A series without a tag is the same series as one with an empty value of it.
            what = f"tag {tag}{of_which} is empty; leave it out"
            raise InvalidArgument(what, reason="TAG_INVALID")
    for name, column in columns.items():
        if column.shape != times.shape:
            raise InvalidArgument(
                f"field {name}{of_which} has {column.shape} values for {times.shape} times",
                reason="FIELDS_INVALID",
            )
    return Points(tags or {}, times, columns)


# What one write may hold: the server refuses more, so larger ones are split.
WRITE_VALUES_MAX = 100_000
WRITE_SERIES_MAX = 5_000
WRITE_COLUMNS_MAX = 20_000
WRITE_BYTES_MAX = 4 << 20


def split_points(measurement: str, series: Iterable[Points]) -> Iterator[Any]:
    """Yield requests that hold the points, in order, each within the limits of a write."""
    packer = PointsPacker(SERIES)
    parts: list[bytes] = []
    values = columns = size = 0
    for each in series:
        rows_max = max(1, WRITE_VALUES_MAX // len(each.columns))
        for first in range(0, len(each.times), rows_max):
            part = each if len(each.times) <= rows_max else each.cut(first, first + rows_max)
            data = part.pack(packer)
            is_full = (
                values + part.value_count > WRITE_VALUES_MAX
                or len(parts) >= WRITE_SERIES_MAX
                or columns + len(part.columns) > WRITE_COLUMNS_MAX
                or size + len(data) > WRITE_BYTES_MAX
            )
            if is_full and parts:
                yield _make_request(measurement, parts)
                parts = []
                values = columns = size = 0
            parts.append(data)
            values += part.value_count
            columns += len(part.columns)
            size += len(data)
    if parts:
        yield _make_request(measurement, parts)


def _make_request(measurement: str, series: list[bytes]) -> Any:
    request = timeseries_pb2.WritePointsRequest(measurement=measurement)
    request.MergeFromString(b"".join(series))
    return request


def to_series_data(several: Sequence[timeseries_pb2.SeriesPoints]) -> Iterator[SeriesData]:
    """Yield points as arrays."""
    import numpy as np

    raw_times, sizes = join_times(several)
    times = np.frombuffer(raw_times, "<i8")
    end = 0
    for size, points in zip(sizes, several, strict=True):
        begin, end = end, end + size
        tags = dict(sorted(points.tags.items()))
        yield SeriesData(tags, times[begin:end], _to_fields(points))


def _to_fields(points: timeseries_pb2.SeriesPoints) -> dict[str, Array]:
    import numpy as np

    fields: dict[str, Array] = {}
    for column in points.columns:
        match column.WhichOneof("values"):
            case "doubles":
                fields[column.field] = _array(column.doubles, "<f8")
            case "integers":
                fields[column.field] = _array(column.integers, "<i8")
            case "bools":
                fields[column.field] = _array(column.bools, "?")
            case _:
                fields[column.field] = np.zeros(0)
    return fields


def _array(values: Any, dtype: str) -> Array:
    import numpy as np

    return np.frombuffer(unsized(values.SerializeToString()), dtype)


# Measurements and queries

Duplicates = Literal["last", "first", "reject"]
Aggregate = Literal[
    "", "mean", "sum", "count", "min", "max", "first", "last", "stddev", "percentile", "rate",
    "delta",
]  # fmt: skip

# A tag's value, or an operator (=, !=, =~, !~) and a value.
Matchers = Mapping[str, str | tuple[str, str]]

_OPERATORS: dict[str, timeseries_pb2.MatchOperator] = {
    "=": timeseries_pb2.MATCH_OPERATOR_EQUAL,
    "!=": timeseries_pb2.MATCH_OPERATOR_NOT_EQUAL,
    "=~": timeseries_pb2.MATCH_OPERATOR_REGEX,
    "!~": timeseries_pb2.MATCH_OPERATOR_NOT_REGEX,
}
_TYPES = {1: "f64", 2: "i64", 3: "bool"}
_DUPLICATES: tuple[Duplicates, ...] = ("last", "last", "first", "reject")


@dataclass(frozen=True, slots=True)
class MeasurementConfig:
    """Settings of a measurement."""

    # Which of two points with the same series, field and time is kept.
    duplicates: Duplicates = "last"

    # Points older than this may be deleted; 0: never.
    retention_s: float = 0.0

    # The most series that it may have; 0: 100,000.
    series_max: int = 0

    def __post_init__(self) -> None:
        check_fields(self)

    def fill(self, config: timeseries_pb2.MeasurementConfig) -> None:
        """Fill in the protobuf message."""
        if self.duplicates not in _DUPLICATES:
            what = f"duplicates is {self.duplicates!r}; it must be last, first or reject"
            raise InvalidArgument(what, reason="DUPLICATES_INVALID")
        config.duplicates = _DUPLICATES.index(self.duplicates, 1)  # type: ignore[assignment]
        config.retention_ms = milliseconds(self.retention_s)
        config.series_max = self.series_max


@dataclass(frozen=True, slots=True)
class Rule:
    """A downsampling rule: writes aggregates of each window to another measurement."""

    name: str
    window_s: float
    aggregates: Sequence[Aggregate]
    target_measurement: str

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class MeasurementInfo(Row):
    """A measurement: its settings, fields with their types, number of series, rules."""

    measurement: str
    config: MeasurementConfig
    fields: Mapping[str, str]
    series_count: int
    rules: tuple[Rule, ...]


@refuse_unsendable
class AsyncTimeSeries:
    """Time series: a measurement with tags is a series, which has points with fields."""

    def __init__(self, connection: Connection, scope: Scope) -> None:
        self._connection = connection
        self._scope = scope

    async def write(
        self,
        measurement: str,
        times_ns: ArrayLike,
        fields: Mapping[str, ArrayLike],
        *,
        tags: Mapping[str, str] | None = None,
    ) -> int:
        """Write points of one series; return how many values were written.

        Times may be in any order: int64 nanoseconds, datetime64 (UTC), or datetimes with a zone.
        Each field has one value for each time. Up to 100,000 values are one atomic write. More are
        written in parts, one after the other; if one fails, ``written_count`` in the metadata of
        the error is the number of values in the parts before it.
        """
        return await self._write_parts(measurement, [to_points(times_ns, fields, tags)])

    async def write_many(self, measurement: str, series: Iterable[SeriesData]) -> int:
        """Write points of several series at once; return how many values were written.

        Up to 100,000 values of 5,000 series are one atomic write; see ``write`` for more.
        """
        return await self._write_parts(measurement, to_points_of_each(series))

    async def query(
        self,
        measurement: str,
        field: str,
        from_ns: Time,
        to_ns: Time,
        *,
        where: Matchers | None = None,
        aggregate: Aggregate = "",
        percentile: float | None = None,
        window_s: float = 0.0,
        group_by: Sequence[str] = (),
        by_series: bool = False,
        top: int = 0,
        limit: int = 0,
        read: Read | None = None,
    ) -> Rows[SeriesData]:
        """Return points of a field, or aggregates of windows, from ``from_ns`` to before ``to_ns``.

        Times are nanoseconds since 1970, datetimes with a zone, datetime64 (UTC), or texts such as
        ``now-1h`` and RFC 3339.

        Without ``aggregate`` the result is the points of each series. Aggregates have one result
        for each combination of the tags in ``group_by``, with ``by_series`` one for each series,
        else one for all. Without ``window_s`` everything is one window. ``where`` selects series by
        their tags, ``top`` the groups with the largest results, ``limit`` the first points or
        windows of each group; ``percentile`` (0 to 100) is for the aggregate of that name.
        """
        if (percentile is None) is (aggregate == "percentile"):
            what = f"percentile is {percentile} and aggregate is {aggregate!r}; one needs the other"
            raise InvalidArgument(what, reason="QUERY_INVALID")
        request = timeseries_pb2.QueryRequest(
            namespace=self._scope.namespace,
            measurement=measurement,
            field=field,
            from_ns=to_nanoseconds(from_ns, "from_ns"),
            to_ns=to_nanoseconds(to_ns, "to_ns"),
            aggregate=aggregate_number(aggregate),
            parameter=percentile or 0.0,
            window_ns=nanoseconds(window_s),
            group_by=group_by,
            by_series=by_series,
            top=top,
            limit=limit,
        )
        _fill_matchers(request.matchers, where)
        answer = await self._look("TimeSeries/Query", request, measurement, read)
        return Rows(to_series_data(answer.groups))

    async def series(
        self, measurement: str, *, where: Matchers | None = None, read: Read | None = None
    ) -> AsyncIterator[Mapping[str, str]]:
        """Yield the tags of each matching series."""
        request = timeseries_pb2.ListSeriesRequest(
            namespace=self._scope.namespace, measurement=measurement
        )
        _fill_matchers(request.matchers, where)
        while True:
            answer = await self._look("TimeSeries/ListSeries", request, measurement, read)
            for each in answer.series:
                yield dict(each.tags)
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token

    async def delete(
        self,
        measurement: str,
        *,
        where: Matchers | None = None,
        first_ns: Time | None = None,
        last_ns: Time | None = None,
    ) -> int:
        """Delete points of matching series, or whole series without a time; return how many.

        Both times are included; see ``query`` for what a time may be.
        """
        self._scope.need_result("a delete")
        request = timeseries_pb2.DeletePointsRequest(measurement=measurement)
        _fill_matchers(request.matchers, where)
        if first_ns is not None:
            request.first_ns = to_nanoseconds(first_ns, "first_ns")
        if last_ns is not None:
            request.last_ns = to_nanoseconds(last_ns, "last_ns")
        answer = await self._change("TimeSeries/DeletePoints", request)
        count: int = answer.series_count
        return count

    # Measurements

    async def create(
        self,
        measurement: str,
        config: MeasurementConfig | None = None,
        *,
        exist_ok: bool = False,
    ) -> None:
        """Create a measurement with these settings; a first write would create it with defaults.

        With ``exist_ok`` an existing one stays as it is.
        """
        request = timeseries_pb2.CreateMeasurementRequest(measurement=measurement)
        (config or MeasurementConfig()).fill(request.config)
        try:
            await self._change("TimeSeries/CreateMeasurement", request)
        except AlreadyExists:
            if not exist_ok:
                raise

    async def configure(self, measurement: str, config: MeasurementConfig) -> None:
        """Replace the settings of a measurement."""
        request = timeseries_pb2.ConfigureMeasurementRequest(measurement=measurement)
        config.fill(request.config)
        await self._change("TimeSeries/ConfigureMeasurement", request)

    async def drop(self, measurement: str) -> None:
        """Delete a measurement with all of its series."""
        request = timeseries_pb2.DeleteMeasurementRequest(measurement=measurement)
        await self._change("TimeSeries/DeleteMeasurement", request)

    async def info(self, measurement: str, *, read: Read | None = None) -> MeasurementInfo:
        """Return the settings and the state of a measurement."""
        request = timeseries_pb2.GetMeasurementRequest(
            namespace=self._scope.namespace, measurement=measurement
        )
        answer = await self._look("TimeSeries/GetMeasurement", request, measurement, read)
        return _to_measurement_info(answer.measurement)

    async def measurements(
        self, prefix: str = "", *, routing_key: Key = b"", read: Read | None = None
    ) -> AsyncIterator[MeasurementInfo]:
        """Yield the measurements whose name begins with ``prefix``.

        With ``routing_key`` only those in its shard. A read with an index (``min_index``,
        ``as_of_index``) needs one, because an index belongs to one shard.
        """
        request = timeseries_pb2.ListMeasurementsRequest(
            namespace=self._scope.namespace, prefix=prefix, routing_key=to_bytes(routing_key)
        )
        path, timeout_s = "TimeSeries/ListMeasurements", self._scope.timeout_s
        async for page in self._connection.pages(path, request, timeout_s, read):
            for each in page.measurements:
                yield _to_measurement_info(each)

    async def set_rule(self, measurement: str, rule: Rule) -> None:
        """Set a downsampling rule; a field ``f`` becomes ``f_mean``, ``f_max``, … in its target."""
        request = timeseries_pb2.SetRuleRequest(measurement=measurement)
        request.rule.name = rule.name
        request.rule.window_ns = nanoseconds(rule.window_s)
        request.rule.aggregates.extend(aggregate_number(each) for each in rule.aggregates)
        request.rule.target_measurement = rule.target_measurement
        await self._change("TimeSeries/SetRule", request)

    async def delete_rule(self, measurement: str, name: str) -> None:
        """Delete a downsampling rule; the points that it wrote stay."""
        request = timeseries_pb2.DeleteRuleRequest(measurement=measurement, rule=name)
        await self._change("TimeSeries/DeleteRule", request)

    # Parts

    async def _write_parts(self, measurement: str, series: Sequence[Points]) -> int:
        count = 0
        for request in split_points(measurement, series):
            try:
                count += await self._write(request)
            except OnelogError as error:
                if count:
                    error.metadata["written_count"] = str(count)
                    error.add_note(f"{count} values of the same call were written before")
                raise
        return count

    async def _write(self, request: timeseries_pb2.WritePointsRequest) -> int:
        connection, scope = self._connection, self._scope
        if not connection.is_clear:
            await connection.ready(scope.timeout_s)
        is_early, name = scope.is_early, request.measurement.encode()
        lane = connection.early_lane(name) if is_early else connection.write_lane(name)
        assert lane is not None
        target = scope.namespace, request.measurement, is_early
        value_count = sum(len(each.times_ns) * len(each.columns) for each in request.series)
        written: int = await lane.call(
            POINTS,
            target,
            (request.series, value_count),
            request.ByteSize(),
            scope.timeout_s,
            len(request.series),
        )
        return written

    async def _change(self, path: str, request: Any) -> Any:
        request.namespace = self._scope.namespace
        name = request.measurement.encode()
        return await self._connection.call_write(path, request, self._scope.timeout_s, name=name)

    async def _look(self, path: str, request: Any, measurement: str, read: Read | None) -> Any:
        if read is not None:
            read.fill(request.options)
        return await self._connection.call_read(
            path,
            request,
            self._scope.timeout_s,
            name=measurement.encode(),
            is_stale=read is not None and read.stale,
        )


def aggregate_number(aggregate: Aggregate) -> Any:
    """Return the protobuf number of an aggregate."""
    name = f"AGGREGATE_{aggregate.upper() or 'UNSPECIFIED'}"
    try:
        return timeseries_pb2.Aggregate.Value(name)
    except ValueError:
        known = list(timeseries_pb2.Aggregate.DESCRIPTOR.values_by_name)[1:]
        names = ", ".join(each.removeprefix("AGGREGATE_").lower() for each in known)
        what = f"there is no aggregate {aggregate!r}; there are {names}"
        raise InvalidArgument(what, reason="AGGREGATE_INVALID") from None


def _fill_matchers(matchers: Any, where: Matchers | None) -> None:
    for tag, wanted in (where or {}).items():
        operator, value = ("=", wanted) if isinstance(wanted, str) else wanted
        if operator not in _OPERATORS:
            raise InvalidArgument(
                f"{operator!r} is none of {' '.join(_OPERATORS)}", reason="MATCHER_INVALID"
            )
        matchers.add(tag=tag, operator=_OPERATORS[operator], value=value)


def _to_measurement_info(info: timeseries_pb2.MeasurementInfo) -> MeasurementInfo:
    config = MeasurementConfig(
        _DUPLICATES[info.config.duplicates], info.config.retention_ms / 1000, info.config.series_max
    )
    rules = []
    for rule in info.rules:
        names = (timeseries_pb2.Aggregate.Name(each) for each in rule.aggregates)
        aggregates: Any = tuple(name.removeprefix("AGGREGATE_").lower() for name in names)
        rules.append(Rule(rule.name, rule.window_ns / 1e9, aggregates, rule.target_measurement))
    fields = {field.name: _TYPES.get(field.type, "") for field in info.fields}
    return MeasurementInfo(info.measurement, config, fields, info.series_count, tuple(rules))
