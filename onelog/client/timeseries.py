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

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.validation import refuse_unsendable
from onelog.client.values import ASYNC, Key, Read, milliseconds, to_bytes
from onelog.errors import InvalidArgument
from onelog.packed import TIMES, VALUES, sized, unsized
from onelog.v1 import pipeline_pb2, timeseries_pb2

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"
ArrayLike: TypeAlias = "npt.ArrayLike"


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


def fill_points(
    points: timeseries_pb2.SeriesPoints,
    times_ns: ArrayLike,
    fields: Mapping[str, ArrayLike],
    tags: Mapping[str, str] | None,
) -> int:
    """Fill in points and return the number of values.

    Times are int64 nanoseconds or datetime64; a single number is one point. The type of a field
    follows from its array: floats, integers, bools.
    """
    import numpy as np

    times = np.atleast_1d(np.asarray(times_ns))
    if times.dtype.kind == "M":
        times = times.astype("datetime64[ns]")
    elif times.dtype.kind not in "iu":
        raise InvalidArgument(
            f"times are integers or datetime64, not {times.dtype}", reason="TIMES_INVALID"
        )
    if times.ndim != 1:
        raise InvalidArgument("times have one dimension", reason="TIMES_INVALID")
    if not fields:
        raise InvalidArgument("points have at least one field", reason="FIELDS_INVALID")
    if tags:
        points.tags.update(tags)
    points.MergeFromString(sized(TIMES, times.astype("<i8").tobytes()))
    for name, values in fields.items():
        column = np.atleast_1d(np.asarray(values))
        if column.shape != times.shape:
            raise InvalidArgument(
                f"field {name} has {column.shape} values for {times.shape} times",
                reason="FIELDS_INVALID",
            )
        _fill_column(points.columns.add(field=name), column)
    return len(times) * len(fields)


def _fill_column(column: timeseries_pb2.Column, values: Array) -> None:
    match values.dtype.kind:
        case "f":
            column.doubles.MergeFromString(sized(VALUES, values.astype("<f8").tobytes()))
        case "i" | "u":
            column.integers.MergeFromString(sized(VALUES, values.astype("<i8").tobytes()))
        case "b":
            column.bools.MergeFromString(sized(VALUES, values.astype("u1").tobytes()))
        case _:
            raise InvalidArgument(
                f"field {column.field}: floats, integers or bools, not {values.dtype}",
                reason="FIELDS_INVALID",
            )


def to_series_data(points: timeseries_pb2.SeriesPoints) -> SeriesData:
    """Return points as arrays."""
    import numpy as np

    only_times = timeseries_pb2.SeriesPoints()
    only_times.times_ns.MergeFrom(points.times_ns)
    times = np.frombuffer(unsized(only_times.SerializeToString()), "<i8")
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
    return SeriesData(dict(points.tags), times, fields)


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

    def put(self, config: timeseries_pb2.MeasurementConfig) -> None:
        """Fill in the protobuf message."""
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


@dataclass(frozen=True, slots=True)
class MeasurementInfo:
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

        Times may be in any order, int64 nanoseconds or datetime64. Each field has one value for
        each time.
        """
        request = timeseries_pb2.WritePointsRequest(measurement=measurement)
        fill_points(request.series.add(), times_ns, fields, tags)
        return await self._write(request)

    async def write_many(self, measurement: str, series: Iterable[SeriesData]) -> int:
        """Write points of several series at once; return how many values were written."""
        request = timeseries_pb2.WritePointsRequest(measurement=measurement)
        for each in series:
            fill_points(request.series.add(), each.times_ns, each.fields, each.tags)
        return await self._write(request)

    async def query(
        self,
        measurement: str,
        field: str,
        from_ns: int,
        to_ns: int,
        *,
        where: Matchers | None = None,
        aggregate: Aggregate = "",
        percentile: float = 0.0,
        window_s: float = 0.0,
        group_by: Sequence[str] = (),
        by_series: bool = False,
        top: int = 0,
        limit: int = 0,
        read: Read | None = None,
    ) -> list[SeriesData]:
        """Return points of a field, or aggregates of windows, from ``from_ns`` to before ``to_ns``.

        Without ``aggregate`` the result is the points of each series. Aggregates have one result
        for each combination of the tags in ``group_by``, with ``by_series`` one for each series,
        else one for all. Without ``window_s`` everything is one window. ``where`` selects series by
        their tags, ``top`` the groups with the largest results, ``limit`` the first points or
        windows of each group; ``percentile`` (0 to 100) is for the aggregate of that name.
        """
        request = timeseries_pb2.QueryRequest(
            namespace=self._scope.namespace,
            measurement=measurement,
            field=field,
            from_ns=from_ns,
            to_ns=to_ns,
            aggregate=aggregate_number(aggregate),
            parameter=percentile,
            window_ns=round(window_s * 1e9),
            group_by=group_by,
            by_series=by_series,
            top=top,
            limit=limit,
        )
        _fill_matchers(request.matchers, where)
        answer = await self._look("TimeSeries/Query", request, measurement, read)
        return [to_series_data(group) for group in answer.groups]

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
        first_ns: int | None = None,
        last_ns: int | None = None,
    ) -> int:
        """Delete points of matching series, or whole series without a time; return how many."""
        request = timeseries_pb2.DeletePointsRequest(measurement=measurement)
        _fill_matchers(request.matchers, where)
        if first_ns is not None:
            request.first_ns = first_ns
        if last_ns is not None:
            request.last_ns = last_ns
        answer = await self._change("TimeSeries/DeletePoints", request)
        count: int = answer.series_count
        return count

    # Measurements

    async def create(self, measurement: str, config: MeasurementConfig | None = None) -> None:
        """Create a measurement with these settings; a first write would create it with defaults."""
        request = timeseries_pb2.CreateMeasurementRequest(measurement=measurement)
        (config or MeasurementConfig()).put(request.config)
        await self._change("TimeSeries/CreateMeasurement", request)

    async def configure(self, measurement: str, config: MeasurementConfig) -> None:
        """Replace the settings of a measurement."""
        request = timeseries_pb2.ConfigureMeasurementRequest(measurement=measurement)
        config.put(request.config)
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
        request.rule.window_ns = round(rule.window_s * 1e9)
        request.rule.aggregates.extend(aggregate_number(each) for each in rule.aggregates)
        request.rule.target_measurement = rule.target_measurement
        await self._change("TimeSeries/SetRule", request)

    async def delete_rule(self, measurement: str, name: str) -> None:
        """Delete a downsampling rule; the points that it wrote stay."""
        request = timeseries_pb2.DeleteRuleRequest(measurement=measurement, rule=name)
        await self._change("TimeSeries/DeleteRule", request)

    # Parts

    async def _write(self, request: timeseries_pb2.WritePointsRequest) -> int:
        if self._scope.namespace:
            request.namespace = self._scope.namespace
        is_early = self._scope.durability == "async"
        if is_early:
            request.options.durability = ASYNC

        def build(operation: pipeline_pb2.Operation) -> None:
            operation.write_points.CopyFrom(request)

        count: int = await self._connection.write(
            request.measurement.encode(),
            request.ByteSize(),
            self._scope.timeout_s,
            build,
            lambda result: result.write_points.written_count,
            is_early=is_early,
        )
        return count

    async def _change(self, path: str, request: Any) -> Any:
        request.namespace = self._scope.namespace
        name = request.measurement.encode()
        return await self._connection.call_write(path, request, self._scope.timeout_s, name=name)

    async def _look(self, path: str, request: Any, measurement: str, read: Read | None) -> Any:
        if read is not None:
            read.put(request.options)
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
        raise InvalidArgument(
            f"there is no aggregate {aggregate!r}", reason="AGGREGATE_INVALID"
        ) from None


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
