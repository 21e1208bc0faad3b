"""The time series service: one line for what is one entry or one look, and what is more.

Deleting many series takes several entries, since an entry does a bounded amount of work and says
where to go on. The first of them carries the session, and what is left follows outside of it: a
repeated call finds the result of the first, goes on from there, and what it finds deleted already
it deletes again. The call ends when everything is gone that was there when it began.

Timeseries operations
---------------------
The operations on time series: which entries they become, and what their results and reads mean.

Requests are turned into commands here, and found wrong here if they are: names, tags, types, times,
windows, patterns and counts. What depends on the state (the type of a field, a full measurement,
retention) is decided when the entry is applied.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import nsmallest
from typing import Any

from onelog.errors import NotFound
from onelog.node.edge.calls import Call
from onelog.node.edge.messages import count_values, pack_points, runs_of
from onelog.node.edge.operation import Read, Write, applied, put_header, run_read, run_write
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    invalid,
    namespace_of,
    session_of,
    write_options,
)
from onelog.node.public_errors import error_of_reason, error_of_refusal
from onelog.projections.codec import U64, SessionRef, read_prefix
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.timeseries.aggregate import Function
from onelog.projections.timeseries.commands import (
    Command,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    SetRule,
    decode_command,
    encode_command,
    encode_write_batch,
)
from onelog.projections.timeseries.limits import (
    LIST_SERIES_MAX,
    MATCHERS_MAX,
    NAME_SIZE_MAX,
    PATTERN_SIZE_MAX,
    SERIES_DEFAULT,
    SERIES_MAX,
    TAGS_MAX,
    TIME_NS_MAX,
    TIME_NS_MIN,
)
from onelog.projections.timeseries.names import Matcher, Operator, check_name, parse_series
from onelog.projections.timeseries.point_batch import encode_batch
from onelog.projections.timeseries.projection import MeasurementInfo, describe_measurement
from onelog.projections.timeseries.query import Found, Query, find_measurement
from onelog.projections.timeseries.types import Aggregate, Config, Policy, Rule
from onelog.ual.entry import Draft
from onelog.v1 import timeseries_pb2

LIST_SERIES_DEFAULT = 1_000
TOKEN_VERSION = b"\x01"
_NS_PER_MS = 1_000_000
_FIELD_TYPES: dict[str, timeseries_pb2.FieldType] = {
    "f64": timeseries_pb2.FIELD_TYPE_F64,
    "i64": timeseries_pb2.FIELD_TYPE_I64,
    "bool": timeseries_pb2.FIELD_TYPE_BOOL,
}


def checked(draft: Draft) -> list[Draft]:
    """Return an entry; refuse one that apply would find unsound."""
    _, reader = read_prefix(draft.payload)
    decode_command(draft.entry_type & 0xFF, reader)
    return [draft]


def by_measurement(request: Any) -> tuple[bytes]:
    """Return the name that says in which shard a measurement is."""
    return (check_name(request.measurement).encode(),)


# Commands


def config_of(config: timeseries_pb2.MeasurementConfig) -> Config:
    """Return settings that a measurement can have."""
    if not 0 <= config.duplicates <= len(Policy):
        raise error_of_reason(Reason.MEASUREMENT_CONFIG_INVALID, config.duplicates)
    retention_ns = config.retention_ms * _NS_PER_MS
    if retention_ns > TTL_NS_MAX:
        raise error_of_reason(Reason.MEASUREMENT_CONFIG_INVALID, retention_ns)
    if config.series_max > SERIES_MAX:
        raise error_of_reason(Reason.MEASUREMENT_CONFIG_INVALID, config.series_max)
    policy = Policy(config.duplicates) if config.duplicates else Policy.LAST
    return Config(policy, retention_ns, config.series_max or SERIES_DEFAULT)


def matchers_of(matchers: Sequence[timeseries_pb2.Matcher]) -> tuple[Matcher, ...]:
    """Return the matchers of a request; whether patterns are understood is found out later."""
    if len(matchers) > MATCHERS_MAX:
        raise error_of_reason(Reason.MATCHER_INVALID, len(matchers))
    found = []
    for each in matchers:
        if not 1 <= each.operator <= len(Operator) or len(each.value.encode()) > PATTERN_SIZE_MAX:
            raise error_of_reason(Reason.MATCHER_INVALID, len(each.value))
        found.append(Matcher(check_name(each.tag), Operator(each.operator), each.value))
    return tuple(found)


def delete_of(request: timeseries_pb2.DeletePointsRequest, after: int = 0) -> Delete:
    """Return the command of a request, for the series with ids above ``after``."""
    return Delete(
        request.measurement,
        matchers_of(request.matchers),
        request.first_ns if request.HasField("first_ns") else TIME_NS_MIN,
        request.last_ns if request.HasField("last_ns") else TIME_NS_MAX,
        after,
    )


def rule_of(rule: timeseries_pb2.Rule) -> Rule:
    """Return a rule that can be."""
    kinds = set()
    for each in rule.aggregates:
        kind = _AGGREGATES.get(each, "")
        if kind not in Aggregate.__members__:
            raise error_of_reason(Reason.RULE_INVALID, each)
        kinds.add(Aggregate[kind])
    name, target = check_name(rule.name), check_name(rule.target_measurement)
    return Rule(name, target, rule.window_ns, 0, tuple(sorted(kinds)))


def _rule_names(request: timeseries_pb2.SetRuleRequest) -> list[bytes]:
    """A rule writes where it reads: both measurements are in one shard, or it cannot be."""
    return [
        check_name(each).encode() for each in (request.measurement, request.rule.target_measurement)
    ]


def _write(response: Any, command_of: Any, names: Any = by_measurement) -> Any:
    """Return the write of one entry."""

    def drafts(request: Any, namespace: str, session: SessionRef | None) -> list[Draft]:
        command: Command = command_of(request)
        return checked(encode_command(command, namespace, session))

    return Write(response, names, drafts)


def _write_points(
    request: timeseries_pb2.WritePointsRequest, namespace: str, session: SessionRef | None
) -> list[Draft]:
    runs = runs_of(request.measurement, request.series)
    return checked(encode_write_batch(encode_batch(runs), namespace, session))


def _answer_points(
    _state: Projections,
    request: timeseries_pb2.WritePointsRequest,
    answer: timeseries_pb2.WritePointsResponse,
    _results: Sequence[Result],
    _index: int,
) -> None:
    # A write is taken whole or not at all; an early answer has no result that would say it.
    answer.written_count = count_values(request.series)


CREATE: Write[Any, Any] = _write(
    timeseries_pb2.CreateMeasurementResponse,
    lambda request: CreateMeasurement(request.measurement, config_of(request.config)),
)
CONFIGURE: Write[Any, Any] = _write(
    timeseries_pb2.ConfigureMeasurementResponse,
    lambda request: ConfigureMeasurement(request.measurement, config_of(request.config)),
)
SET_RULE: Write[Any, Any] = _write(
    timeseries_pb2.SetRuleResponse,
    lambda request: SetRule(request.measurement, rule_of(request.rule)),
    _rule_names,
)
DELETE_RULE: Write[Any, Any] = _write(
    timeseries_pb2.DeleteRuleResponse,
    lambda request: DropRule(request.measurement, check_name(request.rule)),
)
WRITE_POINTS: Write[timeseries_pb2.WritePointsRequest, timeseries_pb2.WritePointsResponse]
WRITE_POINTS = Write(
    timeseries_pb2.WritePointsResponse, by_measurement, _write_points, _answer_points
)


# Reads


def query_of(request: timeseries_pb2.QueryRequest) -> Query:
    """Return the query that a request means."""
    function = None
    if request.aggregate:
        if request.aggregate not in _AGGREGATES:
            raise invalid("QUERY_INVALID", f"there is no aggregate {request.aggregate}")
        function = Function[_AGGREGATES[request.aggregate]]
    elif request.window_ns or request.group_by or request.top:
        raise invalid("QUERY_INVALID", "windows, groups and top are for aggregates")
    if request.by_series and request.group_by:
        raise invalid("QUERY_INVALID", "by_series or group_by, not both")
    if len(request.group_by) > TAGS_MAX:
        raise error_of_reason(Reason.QUERY_INVALID, len(request.group_by))
    is_apart = function is None or request.by_series
    query = Query(
        request.measurement,
        check_name(request.field),
        request.from_ns,
        request.to_ns,
        matchers_of(request.matchers),
        function,
        request.window_ns,
        percent=request.parameter if function is Function.PERCENTILE else 0.0,
        group_by=None if is_apart else tuple(map(check_name, request.group_by)),
        topk=request.top,
        limit=request.limit,
    )
    wrong = query.invalid()
    if wrong is not None:
        raise error_of_reason(Reason.QUERY_INVALID, wrong)
    return query


def _query(
    view: View,
    namespace: str,
    request: timeseries_pb2.QueryRequest,
    answer: timeseries_pb2.QueryResponse,
) -> Awaitable[None]:
    query = query_of(request)

    def pack(found: Found) -> bytes:
        message = timeseries_pb2.QueryResponse(scanned_count=found.scanned_count)
        for row in found.rows:
            columns = ((query.field, row.values),)
            message.groups.append(pack_points(dict(row.tags), row.times, columns))
        return bytes(message.SerializeToString())

    async def run() -> None:
        data, tier, index = await view.edge.series_reads.query(view, namespace, query, pack)
        answer.MergeFromString(data)
        answer.header.applied_index = index
        if view.with_cost:
            answer.header.cost.scanned = answer.scanned_count
            answer.header.cost.tier = tier

    return run()


def _list_series(
    view: View,
    namespace: str,
    request: timeseries_pb2.ListSeriesRequest,
    answer: timeseries_pb2.ListSeriesResponse,
) -> Awaitable[None]:
    limit = request.page_size or LIST_SERIES_DEFAULT
    if limit > LIST_SERIES_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, limit)
    after, matchers = _after(request.page_token), matchers_of(request.matchers)

    def pack(names: Iterable[bytes]) -> bytes:
        message = timeseries_pb2.ListSeriesResponse()
        for name in names:
            message.series.add(tags=dict(parse_series(name).tags))
        return bytes(message.SerializeToString())

    async def run() -> None:
        data, last, index = await view.edge.series_reads.series(
            view, namespace, request.measurement, matchers, after, limit, pack
        )
        answer.MergeFromString(data)
        answer.header.applied_index = index
        if last is not None:
            answer.next_page_token = TOKEN_VERSION + U64.pack(last)

    return run()


def _after(token: bytes) -> int:
    if not token:
        return 0
    if token[:1] != TOKEN_VERSION or len(token) != 1 + U64.size:
        raise invalid("PAGE_TOKEN_INVALID", "not a token of a page before this one")
    return int(U64.unpack(token[1:])[0])


def _get_measurement(
    view: View,
    namespace: str,
    request: timeseries_pb2.GetMeasurementRequest,
    answer: timeseries_pb2.GetMeasurementResponse,
) -> None:
    found = find_measurement(view.projections.series, namespace, request.measurement)
    if isinstance(found, Refused):
        raise error_of_refusal(found)
    put_measurement(answer.measurement, namespace, describe_measurement(found))


def put_measurement(
    target: timeseries_pb2.MeasurementInfo, namespace: str, info: MeasurementInfo
) -> None:
    """Show a measurement."""
    target.namespace = namespace
    target.measurement = info.name
    config = info.config
    target.config.duplicates = int(config.policy)  # type: ignore[assignment]
    target.config.retention_ms = config.retention_ns // _NS_PER_MS
    target.config.series_max = config.series_max
    for name, kind in info.fields:
        target.fields.add(name=name, type=_FIELD_TYPES[kind])
    target.series_count = info.series_count
    for rule, _ in info.rules:
        aggregates: Any = [_NUMBERS[each.name] for each in rule.aggregates]
        target.rules.add(
            name=rule.name,
            window_ns=rule.window_ns,
            aggregates=aggregates,
            target_measurement=rule.target,
        )


# Names of aggregates by their numbers in the proto, without the one that is none.
_AGGREGATES: dict[int, str] = {
    number: name.removeprefix("AGGREGATE_")
    for name, number in timeseries_pb2.Aggregate.items()
    if number
}
_NUMBERS = {name: number for number, name in _AGGREGATES.items()}

GET_MEASUREMENT = Read(timeseries_pb2.GetMeasurementResponse, by_measurement, _get_measurement)
LIST_SERIES = Read(timeseries_pb2.ListSeriesResponse, by_measurement, _list_series)
QUERY = Read(timeseries_pb2.QueryResponse, by_measurement, _query)


# Timeseries


class TimeSeriesService:
    """See ``timeseries.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def create_measurement(
        self, request: timeseries_pb2.CreateMeasurementRequest, call: Call
    ) -> timeseries_pb2.CreateMeasurementResponse:
        """Create a measurement."""
        return await run_write(self._edge, CREATE, request, call)

    async def configure_measurement(
        self, request: timeseries_pb2.ConfigureMeasurementRequest, call: Call
    ) -> timeseries_pb2.ConfigureMeasurementResponse:
        """Replace the settings of a measurement."""
        return await run_write(self._edge, CONFIGURE, request, call)

    async def get_measurement(
        self, request: timeseries_pb2.GetMeasurementRequest, call: Call
    ) -> timeseries_pb2.GetMeasurementResponse:
        """Show a measurement."""
        return await run_read(self._edge, GET_MEASUREMENT, request, call)

    async def write_points(
        self, request: timeseries_pb2.WritePointsRequest, call: Call
    ) -> timeseries_pb2.WritePointsResponse:
        """Write points."""
        return await run_write(self._edge, WRITE_POINTS, request, call)

    async def list_series(
        self, request: timeseries_pb2.ListSeriesRequest, call: Call
    ) -> timeseries_pb2.ListSeriesResponse:
        """List series that match, a page of them."""
        return await run_read(self._edge, LIST_SERIES, request, call)

    async def query(
        self, request: timeseries_pb2.QueryRequest, call: Call
    ) -> timeseries_pb2.QueryResponse:
        """Ask for points or aggregates."""
        return await run_read(self._edge, QUERY, request, call)

    async def set_rule(
        self, request: timeseries_pb2.SetRuleRequest, call: Call
    ) -> timeseries_pb2.SetRuleResponse:
        """Set a downsampling rule."""
        return await run_write(self._edge, SET_RULE, request, call)

    async def delete_rule(
        self, request: timeseries_pb2.DeleteRuleRequest, call: Call
    ) -> timeseries_pb2.DeleteRuleResponse:
        """Delete a downsampling rule."""
        return await run_write(self._edge, DELETE_RULE, request, call)

    # In several entries

    async def delete_points(
        self, request: timeseries_pb2.DeletePointsRequest, call: Call
    ) -> timeseries_pb2.DeletePointsResponse:
        """Delete points, or series, that match."""
        answer = timeseries_pb2.DeletePointsResponse()
        answer.series_count = await self._until_done(
            request, call, answer, lambda after: delete_of(request, after)
        )
        return answer

    async def delete_measurement(
        self, request: timeseries_pb2.DeleteMeasurementRequest, call: Call
    ) -> timeseries_pb2.DeleteMeasurementResponse:
        """Delete a measurement with all of its series."""
        answer = timeseries_pb2.DeleteMeasurementResponse()
        await self._until_done(
            request, call, answer, lambda _: DropMeasurement(request.measurement)
        )
        return answer

    async def _until_done(
        self, request: Any, call: Call, answer: Any, command_of: Callable[[int], Command]
    ) -> int:
        """Propose commands until one says that nothing is left; return how many series it were.

        ``command_of`` gets what the one before said about where to go on.
        """
        edge, options = self._edge, write_options(request)
        shard = edge.shard_of_all(by_measurement(request))
        namespace, session = namespace_of(request.namespace), session_of(options)
        count = after = 0
        while True:
            draft = encode_command(command_of(after), namespace, session)
            written = await edge.write(shard, checked(draft), options, call)
            result = written.results[0]
            try:
                done = applied(result)
            except NotFound:
                if not count and not after:
                    raise
                return count  # somebody else has deleted what was left of the measurement
            put_header(answer.header, shard, written.first_index, result)
            if written.cost is not None:
                answer.header.cost.CopyFrom(written.cost)
            count += done.number
            if done.value is None:
                return count
            (after,) = U64.unpack(done.value)
            session = None

    # Over all shards

    async def list_measurements(
        self, request: timeseries_pb2.ListMeasurementsRequest, call: Call
    ) -> timeseries_pb2.ListMeasurementsResponse:
        """List measurements by name, a page of them."""

        def look(view: View, namespace: str, after: str, limit: int, answer: Any) -> bool:
            room = view.projections.series.rooms.get(namespace)
            if room is None:
                raise error_of_reason(Reason.NAMESPACE_UNKNOWN)
            prefix = request.prefix
            names = nsmallest(
                limit + 1,
                (each for each in room.measurements if each > after and each.startswith(prefix)),
            )
            for name in names[:limit]:
                info = describe_measurement(room.measurements[name])
                put_measurement(answer.measurements.add(), namespace, info)
            return len(names) > limit

        listed: timeseries_pb2.ListMeasurementsResponse = await list_by_name(
            self._edge,
            request,
            call,
            look,
            items="measurements",
            name="measurement",
            name_size_max=NAME_SIZE_MAX,
            name_invalid=Reason.SERIES_NAME_INVALID,
        )
        return listed
