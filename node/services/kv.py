"""The KV service: operations on the keys of one shard, and calls over several shards.

``OPERATIONS`` lists what concerns one shard: which entries requests become, and what results and
reads mean for answers. Requests are checked here: the log never sees a key that is too long or a
lifetime of a thousand years.

Pages over several shards: keys are unique over all shards, so where a page ended is one key, and
that is the page token. Each shard is asked for a page; what lies beyond the point where the first
of them stopped is dropped, since another may still have keys before it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import repeat
from operator import attrgetter, methodcaller
from typing import Any

from onelog.errors import TooLarge
from onelog.node.edge.calls import Call
from onelog.node.edge.messages import fill_item, found
from onelog.node.edge.operation import (
    Look,
    Operations,
    Read,
    Write,
    answer_each,
    answer_number,
    applied,
    fill_header,
    one_entry_each,
)
from onelog.node.edge.shards import (
    Edge,
    View,
    invalid,
    one_shard_only,
    parse_namespace,
    parse_session,
    read_options,
    write_options,
)
from onelog.node.edge.shards import invalid as invalid_argument
from onelog.node.public_errors import (
    answer_too_large,
    error_of_bounds,
    error_of_reason,
    error_of_refusal,
    name_subject,
)
from onelog.projections import conditions
from onelog.projections.codec import SessionRef, encode_prefixes, read_prefix
from onelog.projections.kv import commands
from onelog.projections.kv.commands import (
    TOOK_THEN,
    TYPE_PUT,
    Command,
    Nested,
    decode_command,
    encode_command,
)
from onelog.projections.kv.documents import Path, Step, get_field
from onelog.projections.kv.reads import Page, Range
from onelog.projections.limits import (
    CONDITIONS_MAX,
    DELETE_RANGE_KEYS_MAX,
    JSON_PATH_MAX,
    JSON_SIZE_MAX,
    KEY_SIZE_MAX,
    KEYS_RESERVED,
    PUT_MANY_KEYS_MAX,
    SCAN_KEYS_MAX,
    SCAN_SIZE_MAX,
    TRANSACTION_OPERATIONS_MAX,
    TTL_NS_MAX,
    VALUE_SIZE_MAX,
)
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Refused
from onelog.ual.entry import Draft
from onelog.v1 import kv_pb2

MEMBER_SIZE_MAX = 65_535  # a name in a path has its size in two bytes


def checked(command: Command, namespace: str, session: SessionRef | None) -> Draft:
    """Return the entry of a command; refuse one that apply would find unsound."""
    draft = encode_command(command, namespace, session)
    _, reader = read_prefix(draft.payload)
    decode_command(draft.entry_type & 0xFF, reader)
    return draft


def check_key(key: bytes) -> bytes:
    """Return a key whose size is allowed."""
    check_keys((key,))
    return key


def check_keys(keys: Sequence[bytes]) -> None:
    """Refuse keys whose size is not allowed."""
    for size in set(map(len, keys)):
        if not 0 < size <= KEY_SIZE_MAX:
            raise error_of_reason(Reason.KEY_SIZE_INVALID, size)


def check_written(keys: Sequence[bytes]) -> None:
    """Refuse reserved keys."""
    check_keys(keys)
    joined = b"".join(keys)  # one search in place of one for each key
    for prefix in KEYS_RESERVED:
        if prefix in joined:
            _refuse_reserved(keys)


def _refuse_reserved(keys: Sequence[bytes]) -> None:
    name = next((key for key in keys if key.startswith(KEYS_RESERVED)), None)
    if name is not None:
        error = error_of_reason(Reason.KEY_RESERVED)
        name_subject(error, kv_pb2.KeyValue(key=name))
        raise error


def check_values(values: Sequence[bytes]) -> None:
    """Refuse values that no entry can hold."""
    size = max(map(len, values))
    if size > VALUE_SIZE_MAX:
        raise error_of_bounds(
            Reason.VALUE_TOO_LARGE, "the size of a value", size, VALUE_SIZE_MAX, 0
        )


def check_value(value: bytes) -> bytes:
    """Return a value that an entry can hold."""
    check_values((value,))
    return value


def parse_ttl_ns(ttl_ms: int) -> int:
    """Return a lifetime in nanoseconds; absurd ones are refused."""
    ttl_ns = ttl_ms * 1_000_000
    if ttl_ns > TTL_NS_MAX:
        most = TTL_NS_MAX // 1_000_000
        raise error_of_bounds(Reason.TTL_INVALID, "ttl_ms", ttl_ms, most)
    return ttl_ns


def parse_range(keys: kv_pb2.KeyRange) -> Range:
    """Return the range that a request means."""
    if keys.prefix and (keys.start or keys.end):
        raise invalid("RANGE_INVALID", "a range has a prefix, or start and end, not both")
    for bound in (keys.start, keys.end, keys.prefix):
        if len(bound) > KEY_SIZE_MAX:
            raise error_of_reason(Reason.KEY_SIZE_INVALID, len(bound))
    if keys.prefix:
        return Range.prefix(keys.prefix)
    if keys.end and keys.end <= keys.start:
        message = f"the range's end, {keys.end!r:.70}, is not above its start, {keys.start!r:.70}"
        raise error_of_reason(Reason.RANGE_INVALID, 0, message)
    return Range(keys.start, keys.end or None)


def parse_path(path: kv_pb2.JsonPath, *, is_set: bool) -> Path:
    """Return a path; -1 is the last element where one is read, the next where one is set."""
    if len(path.steps) > JSON_PATH_MAX:
        metadata = {"limit": str(JSON_PATH_MAX)}
        message = f"the path has {len(path.steps)} steps, limit {JSON_PATH_MAX}"
        raise TooLarge(message, reason="JSON_PATH_TOO_LARGE", metadata=metadata)
    steps: list[Step] = []
    for position, step in enumerate(path.steps):
        kind = step.WhichOneof("step")
        if kind == "member":
            if (size := len(step.member.encode())) > MEMBER_SIZE_MAX:
                message = f"the member of step {position} has {size} bytes, limit {MEMBER_SIZE_MAX}"
                raise TooLarge(message, reason="JSON_PATH_TOO_LARGE")
            steps.append(step.member)
        elif kind == "element" and step.element >= -1:
            steps.append(None if is_set and step.element == -1 else step.element)
        elif kind == "element":
            message = f"step {position} of the path is element {step.element}; the lowest is -1"
            raise invalid("JSON_PATH_INVALID", message)
        else:
            message = f"step {position} of the path has neither member nor element"
            raise invalid("JSON_PATH_INVALID", message)
    return tuple(steps)


# Commands


_key, _value, _ttl_ms, _lease_id, _expected_version = map(
    attrgetter, ("key", "value", "ttl_ms", "lease_id", "expected_version")
)
_has_expected_version = methodcaller("HasField", "expected_version")
_join = b"".join


def put_fields(
    requests: Sequence[kv_pb2.PutRequest],
) -> tuple[list[bytes], list[bytes], list[bytes]]:
    """Return head, key and value of the body of each put; refuse what apply would refuse.

    Columns instead of a loop: this is most of what a put costs before the log.
    """
    keys, values = list(map(_key, requests)), list(map(_value, requests))
    check_written(keys)
    check_values(values)
    lifetimes, leases = list(map(_ttl_ms, requests)), list(map(_lease_id, requests))
    are_expected = list(map(_has_expected_version, requests))
    if not (any(lifetimes) or any(leases) or any(are_expected)):
        return commands.encode_put_heads(keys), keys, values
    options: list[commands.PutOptions] = [
        (parse_ttl_ns(ttl_ms) or None, lease or None, request.expected_version if has else None)
        for request, ttl_ms, lease, has in zip(
            requests, lifetimes, leases, are_expected, strict=True
        )
    ]
    return commands.encode_put_heads(keys, options), keys, values


def _put(
    _state: Any,
    requests: Sequence[kv_pb2.PutRequest],
    namespace: str,
    session: SessionRef | None,
) -> list[Any]:
    prefixes = encode_prefixes(namespace, session)
    payloads = map(_join, zip(prefixes, *put_fields(requests), strict=False))
    return list(zip(repeat(TYPE_PUT), payloads, repeat(0), strict=False))


def parse_put(request: kv_pb2.PutRequest) -> commands.Put:
    """Return the command of a put inside a transaction."""
    check_written((request.key,))
    check_values((request.value,))
    expected = request.expected_version if request.HasField("expected_version") else None
    ttl_ns = parse_ttl_ns(request.ttl_ms) or None
    return commands.Put(request.key, request.value, ttl_ns, request.lease_id or None, expected)


def _batch_put(
    _state: Any, request: kv_pb2.BatchPutRequest, namespace: str, session: SessionRef | None
) -> Draft:
    """Return the entry of a request; refuse what apply would refuse."""
    keys, values = list(request.keys), list(request.values)
    if len(values) != len(keys):
        raise invalid("VALUES_INVALID", f"{len(values)} values for {len(keys)} keys")
    check_written(keys)
    check_values(values)
    bodies = commands.put_bodies(keys, values, parse_ttl_ns(request.ttl_ms) or None)
    return encode_command(commands.PutMany(bodies), namespace, session)


def _by_keys(requests: Sequence[kv_pb2.BatchPutRequest]) -> Sequence[Sequence[bytes]]:
    named = [list(request.keys) for request in requests]
    for keys in named:
        if not 0 < len(keys) <= PUT_MANY_KEYS_MAX:
            what = "the number of keys"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(keys), PUT_MANY_KEYS_MAX)
        check_keys(keys)
    return named


def parse_delete(request: kv_pb2.DeleteRequest) -> commands.Delete:
    """Return the command of a request."""
    expected = request.expected_version if request.HasField("expected_version") else None
    return commands.Delete(check_key(request.key), expected)


def parse_touch(request: kv_pb2.TouchRequest) -> commands.Touch:
    """Return the command of a request."""
    expected = request.expected_version if request.HasField("expected_version") else None
    return commands.Touch(check_key(request.key), parse_ttl_ns(request.ttl_ms), expected)


def parse_count(
    request: kv_pb2.CountRequest,
) -> commands.Increment | commands.Minimum | commands.Maximum:
    """Return the command of a request."""
    key = check_key(request.key)
    match request.WhichOneof("change"):
        case "add":
            return commands.Increment(key, request.add)
        case "lower_to":
            return commands.Minimum(key, request.lower_to)
        case "raise_to":
            return commands.Maximum(key, request.raise_to)
        case _:
            raise invalid("CHANGE_MISSING", "none of add, lower_to and raise_to is given")


def parse_append(request: kv_pb2.AppendRequest) -> commands.Append:
    """Return the command of a request."""
    return commands.Append(check_key(request.key), check_value(request.data))


def parse_set_json(request: kv_pb2.SetJsonRequest) -> commands.JsonSet | commands.JsonDelete:
    """Return the command of a request."""
    key, path = check_key(request.key), parse_path(request.path, is_set=True)
    if not request.HasField("json"):
        if not path:
            message = "neither path nor json is given; Delete deletes a whole document"
            raise invalid("JSON_PATH_INVALID", message)
        return commands.JsonDelete(key, path)
    text = request.json
    if len(text) > JSON_SIZE_MAX:
        raise error_of_reason(Reason.JSON_TOO_LARGE, len(text))
    get_field(text, ())  # whether it is JSON at all
    return commands.JsonSet(key, path, text, request.create_parents)


def parse_delete_range(request: kv_pb2.DeleteRangeRequest) -> commands.DeleteRange:
    """Return the command of a request."""
    limit = request.limit or DELETE_RANGE_KEYS_MAX
    if limit > DELETE_RANGE_KEYS_MAX:
        raise error_of_bounds(Reason.LIMIT_INVALID, "limit", limit, DELETE_RANGE_KEYS_MAX)
    keys = parse_range(request.range)
    return commands.DeleteRange(keys.start, keys.end, limit)


def parse_condition(condition: kv_pb2.Condition) -> conditions.Condition:
    """Return the condition of a transaction or a batch."""
    key = check_key(condition.key)
    match condition.WhichOneof("test"):
        case "exists":
            wanted = condition.exists
            target = conditions.Target.EXISTS if wanted else conditions.Target.MISSING
            return conditions.Condition(key, target)
        case "version":
            comparison = _parse_comparison(condition.version.comparison)
            version = condition.version.version
            return conditions.Condition(key, conditions.Target.VERSION, comparison, version=version)
        case "value":
            comparison = _parse_comparison(condition.value.comparison)
            value = check_value(condition.value.value)
            return conditions.Condition(key, conditions.Target.VALUE, comparison, value=value)
        case _:
            raise invalid("CONDITION_INVALID", "a condition has none of exists, version and value")


def parse_conditions(given: Sequence[kv_pb2.Condition]) -> tuple[conditions.Condition, ...]:
    """Return the conditions of a transaction or a batch."""
    if len(given) > CONDITIONS_MAX:
        what = "the number of conditions"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, len(given), CONDITIONS_MAX, 0)
    return tuple(map(parse_condition, given))


def _parse_comparison(number: int) -> conditions.Comparison:
    if not conditions.Comparison.EQUAL <= number <= conditions.Comparison.GREATER_OR_EQUAL:
        raise invalid("CONDITION_INVALID", f"there is no comparison {number}; they are 1 to 6")
    return conditions.Comparison(number)


_NESTED: dict[str, Any] = {
    "get": lambda request: commands.Get(check_key(request.key)),
    "put": parse_put,
    "delete": parse_delete,
    "delete_range": parse_delete_range,
    "touch": parse_touch,
    "count": parse_count,
    "append": parse_append,
    "set_json": parse_set_json,
}


def _parse_nested(operation: kv_pb2.TxnOperation) -> Nested:
    kind = operation.WhichOneof("operation")
    if kind is None:
        message = "an operation of the transaction is of no kind that is known here"
        raise invalid("OPERATION_MISSING", message)
    command: Nested = _NESTED[kind](getattr(operation, kind))
    return command


def parse_txn(request: kv_pb2.TxnRequest) -> commands.Transaction:
    """Return the command of a request."""
    for operations in (request.then, request.otherwise):
        if len(operations) > TRANSACTION_OPERATIONS_MAX:
            what, most = "the number of operations", TRANSACTION_OPERATIONS_MAX
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(operations), most, 0)
    return commands.Transaction(
        parse_conditions(request.conditions),
        tuple(map(_parse_nested, request.then)),
        tuple(map(_parse_nested, request.otherwise)),
    )


def _by_all_keys(requests: Sequence[kv_pb2.TxnRequest]) -> Sequence[Sequence[bytes]]:
    return list(map(_txn_names, requests))


def _txn_names(request: kv_pb2.TxnRequest) -> list[bytes]:
    names = [condition.key for condition in request.conditions]
    for operations in (request.then, request.otherwise):
        for operation in operations:
            kind = operation.WhichOneof("operation")
            if kind == "delete_range":
                if operation.delete_range.routing_key:
                    names.append(operation.delete_range.routing_key)
            elif kind is not None:
                names.append(getattr(operation, kind).key)
    if not names:
        raise invalid(
            "ROUTING_KEY_MISSING",
            "a transaction without keys needs a routing_key, which determines its shard",
        )
    return names


# Answers


def _answer_txn(request: kv_pb2.TxnRequest, answer: kv_pb2.TxnResponse, outcome: Applied) -> None:
    answer.succeeded = outcome.number == TOOK_THEN
    operations = request.then if answer.succeeded else request.otherwise
    for operation, result in zip(operations, outcome.results, strict=True):
        assert isinstance(result, Applied), result
        target = answer.results.add()
        if operation.WhichOneof("operation") != "get":
            target.number = result.number
        elif result.value is not None:
            target.item.key = operation.get.key
            target.item.value = result.value
            target.item.version = result.number


def _answer_delete(
    _request: kv_pb2.DeleteRequest, answer: kv_pb2.DeleteResponse, done: Applied
) -> None:
    answer.deleted = bool(done.number)


def _by_key(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    keys = list(map(_key, requests))
    check_keys(keys)
    return list(zip(keys, strict=True))


def _by_routing_key(requests: Sequence[Any]) -> Sequence[Sequence[bytes]]:
    return [(request.routing_key,) for request in requests]


def _write(response: Any, parse_command: Any, names: Any = _by_key, answer: Any = None) -> Any:
    """Return the write of one entry."""

    def make(_state: Any, request: Any, namespace: str, session: SessionRef | None) -> Draft:
        return checked(parse_command(request), namespace, session)

    return Write(response, names, one_entry_each(make), answer, nouns="keys")


def _parse_grant(request: kv_pb2.GrantLeaseRequest) -> commands.LeaseGrant:
    return commands.LeaseGrant(parse_ttl_ns(request.ttl_ms))


PUT: Write[kv_pb2.PutRequest, kv_pb2.PutResponse]
PUT = Write(kv_pb2.PutResponse, _by_key, _put)
BATCH_PUT: Write[kv_pb2.BatchPutRequest, kv_pb2.BatchPutResponse]
BATCH_PUT = Write(
    kv_pb2.BatchPutResponse,
    _by_keys,
    one_entry_each(_batch_put),
    nouns="keys",
    by_shard=lambda _: True,
)
DELETE: Write[kv_pb2.DeleteRequest, kv_pb2.DeleteResponse]
DELETE = _write(kv_pb2.DeleteResponse, parse_delete, answer=answer_each(_answer_delete))
TOUCH: Write[kv_pb2.TouchRequest, kv_pb2.TouchResponse]
TOUCH = _write(
    kv_pb2.TouchResponse,
    lambda request: replace(parse_touch(request), with_version=True),
    answer=answer_number("version"),
)
COUNT: Write[kv_pb2.CountRequest, kv_pb2.CountResponse]
COUNT = _write(kv_pb2.CountResponse, parse_count, answer=answer_number("number"))
APPEND: Write[kv_pb2.AppendRequest, kv_pb2.AppendResponse]
APPEND = _write(kv_pb2.AppendResponse, parse_append, answer=answer_number("size"))
SET_JSON: Write[kv_pb2.SetJsonRequest, kv_pb2.SetJsonResponse]
SET_JSON = _write(kv_pb2.SetJsonResponse, parse_set_json)
TXN: Write[kv_pb2.TxnRequest, kv_pb2.TxnResponse]
TXN = replace(
    _write(kv_pb2.TxnResponse, parse_txn, _by_all_keys, answer_each(_answer_txn)), returns_data=True
)
GRANT_LEASE: Write[kv_pb2.GrantLeaseRequest, kv_pb2.GrantLeaseResponse]
GRANT_LEASE = _write(
    kv_pb2.GrantLeaseResponse, _parse_grant, _by_routing_key, answer=answer_number("lease_id")
)
KEEP_LEASE: Write[kv_pb2.KeepLeaseRequest, kv_pb2.KeepLeaseResponse]
KEEP_LEASE = _write(
    kv_pb2.KeepLeaseResponse,
    lambda request: commands.LeaseKeepalive(request.lease_id),
    _by_routing_key,
)
REVOKE_LEASE: Write[kv_pb2.RevokeLeaseRequest, kv_pb2.RevokeLeaseResponse]
REVOKE_LEASE = _write(
    kv_pb2.RevokeLeaseResponse,
    lambda request: commands.LeaseRevoke(request.lease_id),
    _by_routing_key,
    answer=answer_number("deleted_count"),
)


# Reads


def _get(view: View, namespace: str) -> Look[kv_pb2.GetRequest, kv_pb2.GetResponse]:
    get, as_of = view.projections.kv.get, view.as_of

    def look(request: kv_pb2.GetRequest, answer: kv_pb2.GetResponse) -> None:
        item = get(namespace, request.key, as_of)
        if isinstance(item, Refused):
            raise error_of_refusal(item)
        if item is not None:
            fill_item(answer.item, item)

    return look


def _get_json(view: View, namespace: str) -> Look[kv_pb2.GetJsonRequest, kv_pb2.GetJsonResponse]:
    def look(request: kv_pb2.GetJsonRequest, answer: kv_pb2.GetJsonResponse) -> None:
        path = parse_path(request.path, is_set=False)
        item = found(view.projections.kv.get(namespace, request.key, view.as_of))
        if item is not None:
            answer.json = get_field(item.value, path)
            answer.version = item.version

    return look


def _get_history(
    view: View, namespace: str
) -> Look[kv_pb2.GetHistoryRequest, kv_pb2.GetHistoryResponse]:
    def look(request: kv_pb2.GetHistoryRequest, answer: kv_pb2.GetHistoryResponse) -> None:
        history = found(view.projections.kv.history(namespace, request.key))
        for version in history.versions:
            target = answer.versions.add(version=version.version, expired=version.expired)
            if version.value is not None:
                target.value = version.value
        answer.complete_from = history.complete_from

    return look


def _get_lease(view: View, namespace: str) -> Look[kv_pb2.GetLeaseRequest, kv_pb2.GetLeaseResponse]:
    def look(request: kv_pb2.GetLeaseRequest, answer: kv_pb2.GetLeaseResponse) -> None:
        store = view.projections.kv.stores.get(namespace)
        if store is None:
            raise error_of_reason(Reason.NAMESPACE_UNKNOWN)
        lease = store.leases.get(request.lease_id)
        if lease is None:
            raise error_of_reason(Reason.LEASE_LOST, request.lease_id)
        answer.ttl_ms = lease.ttl_ns // 1_000_000
        answer.expires_ns = lease.deadline_ns
        answer.keys.extend(sorted(lease.keys))

    return look


GET = Read(kv_pb2.GetResponse, _by_key, _get, tells_past=True)
GET_JSON = Read(kv_pb2.GetJsonResponse, _by_key, _get_json, tells_past=True)
GET_HISTORY = Read(kv_pb2.GetHistoryResponse, _by_key, _get_history)
GET_LEASE = Read(kv_pb2.GetLeaseResponse, _by_routing_key, _get_lease)

OPERATIONS: Operations = {
    "get": GET,
    "put": PUT,
    "batch_put": BATCH_PUT,
    "delete": DELETE,
    "touch": TOUCH,
    "count": COUNT,
    "append": APPEND,
    "get_json": GET_JSON,
    "set_json": SET_JSON,
    "get_history": GET_HISTORY,
    "txn": TXN,
    "grant_lease": GRANT_LEASE,
    "keep_lease": KEEP_LEASE,
    "revoke_lease": REVOKE_LEASE,
    "get_lease": GET_LEASE,
}


# Kv

LIST_LIMIT_DEFAULT = 1_000
SCAN_PAGE = 1_000  # keys in one message of a scan
SCAN_LIMIT_MAX = 2**32 - 1
TOKEN_VERSION = b"\x01"


class KvService:
    """The calls of ``kv.proto`` over several shards; all others are in ``OPERATIONS``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    # Over several shards

    async def batch_get(
        self, request: kv_pb2.BatchGetRequest, call: Call
    ) -> kv_pb2.BatchGetResponse:
        """Read several keys, each at the state of its shard."""
        edge, keys, options = self._edge, request.keys, read_options(request)
        namespace = parse_namespace(request.namespace)
        limit = edge.context.config.limits.message_bytes_max
        if len(keys) > SCAN_KEYS_MAX:
            what = "the number of keys"
            raise error_of_bounds(Reason.LIMIT_INVALID, what, len(keys), SCAN_KEYS_MAX, 0)
        by_shard: dict[int, list[bytes]] = {}
        for key in keys:
            by_shard.setdefault(edge.find_shard(check_key(key)), []).append(key)
        if len(by_shard) > 1 and call.only_shard is None:
            one_shard_only(options)

        def look(view: View) -> kv_pb2.BatchGetResponse:
            wanted = by_shard.get(view.shard, [])
            answer = kv_pb2.BatchGetResponse()
            view.header(answer.headers.add(), len(wanted))
            items = found(view.projections.kv.mget(namespace, wanted, view.as_of, limit))
            if len(items) < len(wanted):
                message = (
                    f"{len(items)} of {len(wanted)} keys are more than a message; ask for fewer"
                )
                raise answer_too_large(message, limit)
            for item in items:
                if item is not None:
                    fill_item(answer.items.add(), item)
            return answer

        async def part(shard: int) -> kv_pb2.BatchGetResponse:
            return await edge.look(shard, options, call, look)

        parts = await edge.parts(request, call, sorted(by_shard), part)
        if len(parts) == 1:
            one: kv_pb2.BatchGetResponse = parts[0]
            return one
        answer = kv_pb2.BatchGetResponse()
        items: dict[bytes, kv_pb2.KeyValue] = {}
        for each in parts:
            answer.headers.extend(each.headers)
            items.update((item.key, item) for item in each.items)
        answer.items.extend(items[key] for key in keys if key in items)
        return answer

    async def delete_range(
        self, request: kv_pb2.DeleteRangeRequest, call: Call
    ) -> kv_pb2.DeleteRangeResponse:
        """Delete the keys of a range, in one shard or in all."""
        edge, options = self._edge, write_options(request)
        namespace, session = parse_namespace(request.namespace), parse_session(options)
        left = parse_delete_range(request).limit
        shards = range(edge.shards)
        if request.routing_key:
            shard = edge.find_shard(request.routing_key)
            shards = range(shard, shard + 1)
        elif session is not None and call.only_shard is None:
            raise invalid_argument("SEVERAL_SHARDS", "a session is of one shard")

        async def part(shard: int) -> kv_pb2.DeleteRangeResponse:
            drafts = [checked(parse_delete_range(request), namespace, session)]
            written = await edge.write(shard, drafts, options, call)
            result = written.results[0]
            done = applied(result)
            answer = kv_pb2.DeleteRangeResponse(
                deleted_count=done.number, has_more=done.value is not None
            )
            fill_header(answer.headers.add(), shard, written.first_index, result)
            if written.cost is not None:
                answer.headers[0].cost.CopyFrom(written.cost)
            return answer

        answer = kv_pb2.DeleteRangeResponse()
        for shard in shards if call.only_shard is None else (call.only_shard,):
            if not left:
                answer.has_more = True
                break
            request.limit = left
            (each,) = await edge.parts(request, call, (shard,), part)
            answer.headers.extend(each.headers)
            answer.deleted_count += each.deleted_count
            answer.has_more |= each.has_more
            left -= each.deleted_count
        return answer

    async def list(self, request: kv_pb2.ListRequest, call: Call) -> kv_pb2.ListResponse:
        """List keys in order, a page of them."""
        if request.limit > SCAN_KEYS_MAX:
            raise error_of_bounds(Reason.LIMIT_INVALID, "limit", request.limit, SCAN_KEYS_MAX)
        limit = request.limit or LIST_LIMIT_DEFAULT
        return await self._page(request, call, limit, limit)

    async def scan(
        self, request: kv_pb2.ListRequest, call: Call
    ) -> AsyncIterator[kv_pb2.ListResponse]:
        """List keys in order until there are no more, each page when the last was taken."""
        clock = self._edge.context.clock
        left = request.limit or SCAN_LIMIT_MAX
        page_call = Call(LIST_METHOD, kv_pb2.ListResponse, call.client, call.arrived_s, 0.0)
        page_call.is_forwarded, page_call.metadata = call.is_forwarded, call.metadata
        page_request = kv_pb2.ListRequest()
        page_request.CopyFrom(request)
        # Of each shard a little more than its part of a page: what is beyond the first that stops
        # is read again.
        share = SCAN_PAGE * 5 // (4 * self._edge.shards) + 1
        while True:
            limit = min(left, SCAN_PAGE)
            page_request.limit = limit if request.routing_key else min(limit, share)
            page_call.deadline_s = clock.now_s() + PAGE_DEADLINE_S
            page = await self._page(page_request, page_call, page_request.limit, limit)
            left -= len(page.items)
            if not left:
                page.next_page_token = b""
            yield page
            if not page.next_page_token:
                return
            page_request.page_token = page.next_page_token

    async def _page(
        self, request: kv_pb2.ListRequest, call: Call, limit: int, page_limit: int
    ) -> kv_pb2.ListResponse:
        """Return a page of up to ``page_limit`` keys, of which each shard has up to ``limit``."""
        edge, options = self._edge, read_options(request)
        namespace, keys = parse_namespace(request.namespace), parse_range(request.range)
        token = _parse_token(request.page_token)
        shards = range(edge.shards)
        if request.routing_key:
            shard = edge.find_shard(request.routing_key)
            shards = range(shard, shard + 1)
        elif call.only_shard is None and edge.shards > 1:
            one_shard_only(options)

        def look(view: View) -> kv_pb2.ListResponse:
            page: Page = found(
                view.projections.kv.scan(
                    namespace,
                    keys,
                    limit=limit,
                    reverse=request.reverse,
                    token=token,
                    as_of=view.as_of,
                )
            )
            answer = kv_pb2.ListResponse()
            view.header(answer.headers.add(), len(page.items))
            for item in page.items:
                fill_item(answer.items.add(), item, with_value=not request.keys_only)
            if page.next_key is not None:
                answer.next_page_token = TOKEN_VERSION + page.next_key
            return answer

        async def part(shard: int) -> kv_pb2.ListResponse:
            return await edge.look(shard, options, call, look)

        parts = await edge.parts(request, call, shards, part)
        return parts[0] if len(parts) == 1 else merge(parts, page_limit, reverse=request.reverse)


PAGE_DEADLINE_S = 10.0  # for each page of a scan
LIST_METHOD = f"/{kv_pb2.DESCRIPTOR.services_by_name['KV'].full_name}/List"


def merge(parts: list[Any], limit: int, *, reverse: bool) -> kv_pb2.ListResponse:
    """Return one page of the pages of several shards."""
    answer = kv_pb2.ListResponse()
    items = []
    stops = []
    for each in parts:
        answer.headers.extend(each.headers)
        items += each.items
        if each.next_page_token:
            stops.append(each.next_page_token[1:])
    items.sort(key=lambda item: item.key, reverse=reverse)
    stop = None if not stops else (max(stops) if reverse else min(stops))
    if stop is not None:
        items = [each for each in items if (each.key > stop if reverse else each.key < stop)]
    limit = min(limit, _fitting(items))
    answer.items.extend(items[:limit])
    if len(items) > limit:
        answer.next_page_token = TOKEN_VERSION + items[limit].key
    elif stop is not None:
        answer.next_page_token = TOKEN_VERSION + stop
    return answer


def _fitting(items: list[Any]) -> int:
    """Return how many are one page: as of one shard, it ends behind ``SCAN_SIZE_MAX`` bytes."""
    size = 0
    for count, item in enumerate(items, start=1):
        size += len(item.key) + len(item.value)
        if size >= SCAN_SIZE_MAX:
            return count
    return len(items)


def _parse_token(token: bytes) -> bytes | None:
    if not token:
        return None
    if token[:1] != TOKEN_VERSION or not 1 < len(token) <= KEY_SIZE_MAX + 1:
        raise invalid_argument("PAGE_TOKEN_INVALID", "not a token of a page before this one")
    return token[1:]
