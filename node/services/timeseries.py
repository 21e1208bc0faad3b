"""The TimeSeries service, and the commands and answers of its calls.

Deleting many series takes several entries, since an entry does a bounded amount of work and says
where to continue. The first of them carries the session, and what is left follows outside of it: a
repeated call finds the result of the first and continues from there. What follows names the index
of the first, so neither call deletes a measurement or series that was created later.

Requests become commands here. Names, tags, types, times, windows, patterns and counts are checked
here too, before anything is written. What depends on the state (the type of a field, a full
measurement, retention) is decided when the entry is applied.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from heapq import nsmallest
from typing import Any

from onelog.errors import NotFound, OnelogError
from onelog.node.edge.calls import Call
from onelog.node.edge.messages import count_values, found, parse_runs
from onelog.node.edge.operation import (
    Look,
    Operations,
    Read,
    Write,
    answer_each,
    applied,
    fill_header,
    one_entry_each,
)
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    invalid,
    parse_namespace,
    parse_session,
    write_options,
)
from onelog.node.public_errors import (
    error_of_bounds,
    error_of_reason,
    error_of_refusal,
    error_of_setting,
)
from onelog.packed import GROUPS, PointsPacker
from onelog.projections.codec import U64, SessionRef, read_prefix
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
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
    RULE_WINDOW_NS_MAX,
    RULE_WINDOW_NS_MIN,
    SERIES_DEFAULT,
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


def checked(draft: Draft) -> Draft:
    """Return an entry; refuse one that apply would find unsound."""
    _, reader = read_prefix(draft.payload)
    decode_command(draft.entry_type & 0xFF, reader)
    return draft


def by_measurement(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    """Return the names that say in which shards measurements are."""
    return [(check_name(request.measurement).encode(),) for request in requests]


# Commands


def parse_config(config: timeseries_pb2.MeasurementConfig) -> Config:
    """Return the settings of a request; refuse invalid ones."""
    if not 0 <= config.duplicates <= len(Policy):
        reason = Reason.MEASUREMENT_CONFIG_INVALID
        raise error_of_bounds(reason, "duplicates", config.duplicates, len(Policy), 0)
    policy = Policy(config.duplicates) if config.duplicates else Policy.LAST
    found = Config(policy, config.retention_ms * _NS_PER_MS, config.series_max or SERIES_DEFAULT)
    wrong = found.invalid()
    if wrong is not None:
        raise error_of_setting(Reason.MEASUREMENT_CONFIG_INVALID, wrong)
    return found


def parse_matchers(matchers: Sequence[timeseries_pb2.Matcher]) -> tuple[Matcher, ...]:
    """Return the matchers of a request; whether patterns are understood is found out later."""
    if len(matchers) > MATCHERS_MAX:
        what = "the number of matchers"
        raise error_of_bounds(Reason.MATCHER_INVALID, what, len(matchers), MATCHERS_MAX, 0)
    found = []
    for each in matchers:
        if not 1 <= each.operator <= len(Operator):
            what = f"the operator of the matcher of {each.tag!r:.66}"
            raise error_of_bounds(Reason.MATCHER_INVALID, what, each.operator, len(Operator))
        if (size := len(each.value.encode())) > PATTERN_SIZE_MAX:
            what = f"the size of the value that {each.tag!r:.66} is matched with"
            raise error_of_bounds(Reason.MATCHER_INVALID, what, size, PATTERN_SIZE_MAX, 0)
        found.append(Matcher(check_name(each.tag), Operator(each.operator), each.value))
    return tuple(found)


def parse_delete(
    request: timeseries_pb2.DeletePointsRequest, after: int = 0, before_index: int = 0
) -> Delete:
    """Return the command of a request, for series above an id that are older than an entry."""
    return Delete(
        request.measurement,
        parse_matchers(request.matchers),
        request.first_ns if request.HasField("first_ns") else TIME_NS_MIN,
        request.last_ns if request.HasField("last_ns") else TIME_NS_MAX,
        after,
        merges=request.HasField("first_ns") or request.HasField("last_ns"),
        before_index=before_index,
    )


def parse_rule(request: timeseries_pb2.SetRuleRequest) -> Rule:
    """Return the rule of a request; refuse an invalid one."""
    rule = request.rule
    kinds = set()
    for each in rule.aggregates:
        kind = _AGGREGATES.get(each, "")
        if kind not in Aggregate.__members__:
            known = ", ".join(Aggregate.__members__)
            message = f"{kind or each} is no aggregate of a rule; they are {known}"
            raise error_of_reason(Reason.RULE_INVALID, each, message)
        kinds.add(Aggregate[kind])
    if not kinds:
        raise error_of_reason(Reason.RULE_INVALID, 0, "the rule has no aggregates")
    if not RULE_WINDOW_NS_MIN <= rule.window_ns <= RULE_WINDOW_NS_MAX:
        least, most = RULE_WINDOW_NS_MIN, RULE_WINDOW_NS_MAX
        raise error_of_bounds(Reason.RULE_INVALID, "window_ns", rule.window_ns, most, least)
    name, target = check_name(rule.name), check_name(rule.target_measurement)
    if target == request.measurement:
        message = f"{target!r} cannot be its own target; name another measurement"
        raise error_of_reason(Reason.RULE_INVALID, 1, message)
    return Rule(name, target, rule.window_ns, 0, tuple(sorted(kinds)))


def _by_both_measurements(
    requests: Sequence[timeseries_pb2.SetRuleRequest],
) -> Sequence[Sequence[bytes]]:
    """A rule writes where it reads: both measurements must be in one shard."""
    return [
        (
            check_name(request.measurement).encode(),
            check_name(request.rule.target_measurement).encode(),
        )
        for request in requests
    ]


def _write(
    response: Any,
    parse_command: Any,
    names: Any = by_measurement,
    error_of: Callable[[Refused], OnelogError] = error_of_refusal,
) -> Any:
    """Return the write of one entry."""

    def make(_state: Any, request: Any, namespace: str, session: SessionRef | None) -> Draft:
        command: Command = parse_command(request)
        return checked(encode_command(command, namespace, session))

    return Write(
        response,
        names,
        one_entry_each(make),
        error_of=lambda _, refused: error_of(refused),
        nouns="measurements",
    )


# What apply can find wrong with a rule that was checked: what the measurements are to others.
_RULE_WORDS = {
    1: "the target has rules of its own; what a rule writes is not downsampled again",
    2: "the measurement is the target of a rule; what a rule writes is not downsampled again",
}


def _error_of_rule(refused: Refused) -> OnelogError:
    error = error_of_refusal(refused)
    if refused.reason is Reason.RULE_INVALID:
        error.message = _RULE_WORDS.get(refused.detail, error.message)
    return error


def _write_points(
    _state: Any,
    request: timeseries_pb2.WritePointsRequest,
    namespace: str,
    session: SessionRef | None,
) -> Draft:
    runs = parse_runs(request.measurement, request.series)
    return checked(encode_write_batch(encode_batch(runs), namespace, session))


def _answer_points(
    request: timeseries_pb2.WritePointsRequest,
    answer: timeseries_pb2.WritePointsResponse,
    _done: Applied,
) -> None:
    # A write is taken whole or not at all; an early answer has no result that would say it.
    answer.written_count = count_values(request.series)


CREATE: Write[Any, Any] = _write(
    timeseries_pb2.CreateMeasurementResponse,
    lambda request: CreateMeasurement(request.measurement, parse_config(request.config)),
)
CONFIGURE: Write[Any, Any] = _write(
    timeseries_pb2.ConfigureMeasurementResponse,
    lambda request: ConfigureMeasurement(request.measurement, parse_config(request.config)),
)
SET_RULE: Write[Any, Any] = _write(
    timeseries_pb2.SetRuleResponse,
    lambda request: SetRule(request.measurement, parse_rule(request)),
    _by_both_measurements,
    _error_of_rule,
)
DELETE_RULE: Write[Any, Any] = _write(
    timeseries_pb2.DeleteRuleResponse,
    lambda request: DropRule(request.measurement, check_name(request.rule)),
)
WRITE_POINTS: Write[timeseries_pb2.WritePointsRequest, timeseries_pb2.WritePointsResponse]
WRITE_POINTS = Write(
    timeseries_pb2.WritePointsResponse,
    by_measurement,
    one_entry_each(_write_points),
    answer_each(_answer_points),
)


# Reads


def parse_query(request: timeseries_pb2.QueryRequest) -> Query:
    """Return the query that a request means."""
    function = None
    if request.aggregate:
        if request.aggregate not in _AGGREGATES:
            raise invalid(
                "QUERY_INVALID",
                f"there is no aggregate {request.aggregate}; they are 1 to {max(_AGGREGATES)}",
            )
        function = Function[_AGGREGATES[request.aggregate]]
    elif request.window_ns or request.group_by or request.top:
        raise invalid("QUERY_INVALID", "window_ns, group_by and top need an aggregate")
    if request.by_series and request.group_by:
        raise invalid(
            "QUERY_INVALID", "both by_series and group_by are given; groups are one or the other"
        )
    if len(request.group_by) > TAGS_MAX:
        what = "the number of group_by"
        raise error_of_bounds(Reason.QUERY_INVALID, what, len(request.group_by), TAGS_MAX, 0)
    is_apart = function is None or request.by_series
    query = Query(
        request.measurement,
        check_name(request.field),
        request.from_ns,
        request.to_ns,
        parse_matchers(request.matchers),
        function,
        request.window_ns,
        percent=request.parameter if function is Function.PERCENTILE else 0.0,
        group_by=None if is_apart else tuple(map(check_name, request.group_by)),
        topk=request.top,
        limit=request.limit,
    )
    wrong = query.invalid()
    if wrong is not None:
        raise invalid("QUERY_INVALID", wrong)
    return query


def _query(
    view: View, namespace: str
) -> Look[timeseries_pb2.QueryRequest, timeseries_pb2.QueryResponse]:
    async def run(query: Query, answer: timeseries_pb2.QueryResponse) -> None:
        def encode(found: Found) -> bytes:
            head = timeseries_pb2.QueryResponse(scanned_count=found.scanned_count)
            pack, field = PointsPacker(GROUPS).pack, query.field
            groups = [pack(row.tags, row.times, [(field, row.values)]) for row in found.rows]
            return b"".join([head.SerializeToString(), *groups])

        data, tier, index = await view.edge.series_reads.query(view, namespace, query, encode)
        answer.MergeFromString(data)
        answer.header.applied_index = index
        if view.with_cost:
            answer.header.cost.scanned = answer.scanned_count
            answer.header.cost.tier = tier

    return lambda request, answer: run(parse_query(request), answer)


def _list_series(
    view: View, namespace: str
) -> Look[timeseries_pb2.ListSeriesRequest, timeseries_pb2.ListSeriesResponse]:
    def pack(names: Iterable[bytes]) -> bytes:
        message = timeseries_pb2.ListSeriesResponse()
        for name in names:
            message.series.add(tags=dict(parse_series(name).tags))
        return bytes(message.SerializeToString())

    def look(
        request: timeseries_pb2.ListSeriesRequest, answer: timeseries_pb2.ListSeriesResponse
    ) -> Awaitable[None]:
        limit = request.page_size or LIST_SERIES_DEFAULT
        if limit > LIST_SERIES_MAX:
            raise error_of_bounds(Reason.LIMIT_INVALID, "page_size", limit, LIST_SERIES_MAX)
        after, matchers = _after(request.page_token), parse_matchers(request.matchers)

        async def run() -> None:
            data, last, index = await view.edge.series_reads.series(
                view, namespace, request.measurement, matchers, after, limit, pack
            )
            answer.MergeFromString(data)
            answer.header.applied_index = index
            if last is not None:
                answer.next_page_token = TOKEN_VERSION + U64.pack(last)

        return run()

    return look


def _after(token: bytes) -> int:
    if not token:
        return 0
    if token[:1] != TOKEN_VERSION or len(token) != 1 + U64.size:
        raise invalid("PAGE_TOKEN_INVALID", "not a token of a page before this one")
    return int(U64.unpack(token[1:])[0])


def _get_measurement(
    view: View, namespace: str
) -> Look[timeseries_pb2.GetMeasurementRequest, timeseries_pb2.GetMeasurementResponse]:
    def look(
        request: timeseries_pb2.GetMeasurementRequest,
        answer: timeseries_pb2.GetMeasurementResponse,
    ) -> None:
        measurement = found(
            find_measurement(view.projections.series, namespace, request.measurement)
        )
        fill_measurement(answer.measurement, namespace, describe_measurement(measurement))

    return look


def fill_measurement(
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

OPERATIONS: Operations = {
    "create_measurement": CREATE,
    "configure_measurement": CONFIGURE,
    "get_measurement": GET_MEASUREMENT,
    "write_points": WRITE_POINTS,
    "list_series": LIST_SERIES,
    "query": QUERY,
    "set_rule": SET_RULE,
    "delete_rule": DELETE_RULE,
}


# Timeseries


class TimeSeriesService:
    """What ``OPERATIONS`` lacks of ``timeseries.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    # In several entries

    async def delete_points(
        self, request: timeseries_pb2.DeletePointsRequest, call: Call
    ) -> timeseries_pb2.DeletePointsResponse:
        """Delete points, or series, that match."""
        answer = timeseries_pb2.DeletePointsResponse()
        answer.series_count = await self._until_done(
            request, call, answer, lambda after, before: parse_delete(request, after, before)
        )
        return answer

    async def delete_measurement(
        self, request: timeseries_pb2.DeleteMeasurementRequest, call: Call
    ) -> timeseries_pb2.DeleteMeasurementResponse:
        """Delete a measurement with all of its series."""
        answer = timeseries_pb2.DeleteMeasurementResponse()
        await self._until_done(
            request, call, answer, lambda _, before: DropMeasurement(request.measurement, before)
        )
        return answer

    async def _until_done(
        self, request: Any, call: Call, answer: Any, parse_command: Callable[[int, int], Command]
    ) -> int:
        """Propose commands until one says that nothing is left; return the number of series.

        ``parse_command`` is given where the last one stopped, and the index of the first.
        """
        edge, options = self._edge, write_options(request)
        shard = edge.find_shard(check_name(request.measurement).encode())
        namespace, session = parse_namespace(request.namespace), parse_session(options)
        count = after = before_index = 0
        while True:
            draft = encode_command(parse_command(after, before_index), namespace, session)
            written = await edge.write(shard, [checked(draft)], options, call)
            result = written.results[0]
            try:
                done = applied(result)
            except NotFound:
                if not count and not after:
                    raise
                return count  # somebody else has deleted what was left of the measurement
            fill_header(answer.header, shard, written.first_index, result)
            if written.cost is not None:
                answer.header.cost.CopyFrom(written.cost)
            count += done.number
            if done.value is None:
                return count
            (after,) = U64.unpack(done.value)
            before_index = before_index or answer.header.index
            session = None

    # Over all shards

    async def list_measurements(
        self, request: timeseries_pb2.ListMeasurementsRequest, call: Call
    ) -> timeseries_pb2.ListMeasurementsResponse:
        """List measurements by name, a page of them."""

        def look(view: View, namespace: str, after: str, limit: int, answer: Any) -> bool:
            space = view.projections.series.spaces.get(namespace)
            if space is None:
                raise error_of_reason(Reason.NAMESPACE_UNKNOWN)
            prefix = request.prefix
            names = nsmallest(
                limit + 1,
                (each for each in space.measurements if each > after and each.startswith(prefix)),
            )
            for name in names[:limit]:
                info = describe_measurement(space.measurements[name])
                fill_measurement(answer.measurements.add(), namespace, info)
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
