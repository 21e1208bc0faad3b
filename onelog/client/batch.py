"""The coalescer: calls made together travel as one message, and consecutive ones as one operation.

A batch is a list of calls. It is built when it is sent: ``build`` makes operations of those calls
that somebody still waits for. An operation costs a server much (an entry with its header, checksum
and session, and an answer), so consecutive calls of one kind share one if this table allows it.
``Kind`` is a row of it.

| kind | shares an operation if | at most | each caller gets |
|---|---|---|---|
| PUT | the message has only puts of one namespace; keys differ | 1,000 keys | the version of all |
| ACK | they are for one queue | 1,000 messages | nothing, or why it is not settled |
| ENQUEUE | they are for one queue | 1,000 messages | the id of its message |
| APPEND | they are for one stream | 1,000 records | the place of its record |
| POINTS | the message has only points of one measurement | 1,000 calls | the count of its values |
| PUT_WITH, GET, SINGLE | never | 1 | the result |

PUT_WITH is a put with more than a key and a value. SINGLE is anything else: the call brings the
functions that fill its operation and read its result. A call that is traced or whose cost is asked
for shares nothing, whatever its kind. The lane limits the calls and bytes of a message
(onelog/client/lanes.py).

Puts that share an operation are written all or none, and so are points. If that is refused (one
value is too large for the namespace, say) they are resent, each by itself (``is_split``), before
any later call. This is why nothing else may be in their message: operations after them there would
take effect first.

Sharing saves CPU for puts: docs/performance/2026-11-18.md ("What did not help") has the figures.

Invariants: the i-th operation of ``request`` is that of the i-th list in ``operations``, and these
hold calls in the order in which they were made. ``earliest_s`` is not above the deadline of any
unanswered call.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import itemgetter
from typing import Any

from onelog.client.calls import Backoff
from onelog.client.observing import (
    COLLECTING,
    PARENT,
    add_parents,
    collect_cost,
    collecting_cost,
)
from onelog.client.sessions import Session
from onelog.client.tables import Rows
from onelog.client.validation import UNSENDABLE, refuse
from onelog.client.values import (
    ASYNC,
    MESSAGES_MAX,
    fill_put,
    to_appended,
    to_enqueued,
    to_item,
    to_settle_error,
    to_settled,
)
from onelog.errors import Internal, OnelogError
from onelog.v1 import pipeline_pb2, queue_pb2

# Keys that the server accepts in one operation.
KEYS_MAX = 1_000
# Keys and values that the server always refuses share no operation, so that others do not fail.
KEY_SIZE_MAX = 4_096
VALUE_SIZE_MAX = 64 << 10
# Calls, series and values in one write of points; the server accepts more.
CALLS_MAX = 1_000
SERIES_MAX = 2_500
VALUES_MAX = 50_000
KEYS_RESERVED = (b"cg:", b"_ts:")
_RESERVED_FIRST = frozenset(prefix[0] for prefix in KEYS_RESERVED)
_first_byte = itemgetter(0)

# The namespace that an empty name in a request means.
DEFAULT = "default"


class Call:
    """One call, and the future that its caller awaits."""

    __slots__ = ("deadline_s", "future", "kind", "payload", "target")

    def __init__(
        self, kind: "Kind", target: Any, payload: Any, future: Future[Any], deadline_s: float
    ) -> None:
        self.kind = kind
        self.target = target  # only calls with the same target share an operation
        self.payload = payload
        self.future = future
        self.deadline_s = deadline_s


@dataclass(slots=True)
class Single:
    """The payload of a call that is an operation of its own."""

    # Called when the batch is sent: what it reads must not change until then.
    fill: Callable[[pipeline_pb2.Operation], None]
    read: Callable[[pipeline_pb2.OperationResult], Any]
    keys: Collection[bytes] | None = None  # that it writes, if it is unconditional


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """How calls of one kind become an operation, and its result becomes their answers."""

    fill: Callable[[pipeline_pb2.Operation, Sequence[Call]], None]
    answer: Callable[[pipeline_pb2.OperationResult, Sequence[Call]], None]

    # The most consecutive calls that share an operation.
    calls_max: int = 1

    # Whether calls that share an operation take effect all or none.
    is_all_or_none: bool = False

    # Whether each call takes a sequence of the session, or the operation one for all.
    takes_sequence_each: bool = False

    # The keys that a call writes if it is unconditional; None: its order among all other writes
    # matters.
    keys: Callable[[Call], Collection[bytes] | None] = lambda _call: None

    # Whether it is sent although others are under way: a consumer may wait for what follows it.
    is_urgent: bool = False

    # Is also called with a refusal, if set.
    refused: Callable[[OnelogError], None] | None = None


class Batch:
    """Calls that are collected, then sent as one message."""

    __slots__ = (
        "_keys", "backoff", "calls", "count", "earliest_s", "endpoint", "error", "is_counted",
        "is_refused", "is_split", "is_uncertain", "is_written", "operations", "request", "sent_s",
        "sequence", "session", "size",
    )  # fmt: skip

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.size = 0
        self.count = 0  # keys and operations of the calls
        self.is_counted = False  # among what the whole client has under way
        self.earliest_s = float("inf")
        self.request = pipeline_pb2.ExecuteRequest()
        self.operations: list[Sequence[Call]] = []
        self.is_split = False  # its calls were refused together
        self._keys: dict[Any, set[bytes]] | None = None
        self.session: Session | None = None
        self.sequence = 0
        # The current attempt, and what is known about earlier ones.
        self.endpoint = ""
        self.sent_s = float("inf")
        self.is_written = False
        self.is_uncertain = False
        self.is_refused = False  # all that is left was refused by the database itself
        self.backoff: Backoff | None = None
        self.error: OnelogError | None = None

    def observe(self, kind: Kind) -> Kind:
        """Return the kind of a call that is traced or whose cost is asked for."""
        spent, parent = COLLECTING.get(), PARENT.get()
        if parent is not None:
            add_parents(self.request, (parent,))
        answer, refused = kind.answer, None
        if spent is not None:
            self.request.with_cost = True
            answer, refused = collecting_cost(spent, answer), partial(collect_cost, spent)
        return replace(kind, calls_max=1, answer=answer, refused=refused)

    def build(self) -> None:
        """Make the operations of the calls that somebody still waits for."""
        self.calls = [call for call in self.calls if not call.future.done()]
        self.operations = []
        self._keys = None
        del self.request.operations[:]
        operations, append = self.request.operations, self.operations.append
        waiting = coalesce(self.calls, is_split=self.is_split)
        waiting.reverse()
        while waiting:
            calls = waiting.pop()
            try:
                calls[0].kind.fill(operations.add(), calls)
            except (OnelogError, *UNSENDABLE) as error:
                del operations[-1]
                if len(calls) == 1:
                    fail(calls, _to_unsendable(error))
                else:  # one operation cannot hold them
                    waiting += [(call,) for call in reversed(calls)]
            else:
                append(calls)

    @property
    def is_shared(self) -> bool:
        """Whether it is one operation of several calls that take effect all or none."""
        calls = self.operations[0]
        return len(calls) > 1 and calls[0].kind.is_all_or_none

    @property
    def sequences(self) -> int:
        """The number of session sequences it takes."""
        return sum(
            len(calls) if calls[0].kind.takes_sequence_each else 1 for calls in self.operations
        )

    @property
    def is_urgent(self) -> bool:
        """Whether it is sent while others are under way."""
        return all(call.kind.is_urgent for call in self.calls)

    def commutes_with(self, other: "Batch") -> bool:
        """Return whether the order of the two batches does not matter."""
        mine, theirs = self._find_keys(), other._find_keys()
        return (
            mine is not None
            and theirs is not None
            and all(keys.isdisjoint(theirs.get(target, ())) for target, keys in mine.items())
        )

    def _find_keys(self) -> dict[Any, set[bytes]] | None:
        """Return the keys that it writes, by namespace; None if its order matters."""
        if self._keys is None:
            found: dict[Any, set[bytes]] = {}
            for call in self.calls:
                keys = call.kind.keys(call)
                if keys is None:
                    return None
                found.setdefault(call.target or DEFAULT, set()).update(keys)
            self._keys = found
        return self._keys

    @property
    def is_answered(self) -> bool:
        """Whether all of its calls have ended."""
        return all(call.future.done() for call in self.calls)

    def expire(self, now_s: float, late: Callable[[], OnelogError]) -> None:
        """Fail calls whose deadline has passed, with the error that ``late`` returns."""
        earliest_s = float("inf")
        for call in self.calls:
            if call.future.done():
                continue
            if call.deadline_s <= now_s:
                call.future.set_exception(late())
            elif call.deadline_s < earliest_s:
                earliest_s = call.deadline_s
        self.earliest_s = earliest_s


def fail(calls: Iterable[Call], error: Exception) -> None:
    """Fail the calls that are not answered yet."""
    for call in calls:
        if not call.future.done():
            call.future.set_exception(error)


def coalesce(calls: Iterable[Call], *, is_split: bool) -> list[Sequence[Call]]:
    """Split calls into operations; return the calls of each."""
    groups: list[Sequence[Call]] = []
    group: list[Call] = []
    kind: Kind | None = None
    target: Any = None
    room, is_all_or_none = 0, False
    for call in calls:
        if room and call.kind is kind and call.target == target:
            group.append(call)
            room -= 1
            continue
        kind = call.kind
        room = kind.calls_max - 1
        if room:
            group, target = [call], call.target
            groups.append(group)
            is_all_or_none = is_all_or_none or kind.is_all_or_none
        else:
            groups.append((call,))
    if is_all_or_none and (is_split or len(groups) > 1):
        return [
            part
            for group in groups
            for part in ([(call,) for call in group] if group[0].kind.is_all_or_none else [group])
        ]
    return groups


def _is_reserved_among(keys: Sequence[bytes]) -> bool:
    """Return whether one of these keys is reserved; the first byte rules out most."""
    if _RESERVED_FIRST.isdisjoint(map(_first_byte, keys)):
        return False
    return any(key.startswith(KEYS_RESERVED) for key in keys)


def _to_unsendable(error: Exception) -> Exception:
    """Return the API's error for one that was raised while building a request."""
    try:
        refuse(error)
    except OnelogError as refused:
        return refused
    return error


# The rows of the table


def _is_one_key(calls: Sequence[Call]) -> bool:
    return len(calls) == 1 and len(calls[0].payload[0]) == 1


def _fill_put(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    if _is_one_key(calls):
        put = operation.put
        put.namespace = calls[0].target
        (put.key,), (put.value,) = calls[0].payload
        return
    keys = [key for call in calls for key in call.payload[0]]
    values = [value for call in calls for value in call.payload[1]]
    if len(calls) > 1 and not _can_share(keys, values):
        raise ValueError("puts that one operation cannot hold")
    puts = operation.batch_put
    puts.namespace = calls[0].target
    puts.keys.extend(keys)
    puts.values.extend(values)


def _can_share(keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Return whether keys of several calls can be written with one operation."""
    distinct = set(keys)
    return (
        len(distinct) == len(keys)
        and b"" not in distinct
        and max(map(len, keys)) <= KEY_SIZE_MAX
        and max(map(len, values)) <= VALUE_SIZE_MAX
        and not _is_reserved_among(keys)
    )


def _answer_put(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    version = (result.put if _is_one_key(calls) else result.batch_put).header.index
    for call in calls:
        if not call.future.done():
            call.future.set_result(version)


def _fill_put_with(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    put = operation.put
    put.namespace, is_early = calls[0].target
    if is_early:
        put.options.durability = ASYNC
    fill_put(put, *calls[0].payload)


def _answer_put_with(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    if not calls[0].future.done():
        calls[0].future.set_result(result.put.header.index)


def _fill_ack(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    request = operation.ack
    request.namespace, request.queue, _ = calls[0].target
    add = request.messages.add
    for call in calls:
        item, message = add(), call.payload
        item.message_id, item.token = message.message_id, message.token


def _answer_ack(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    _answer_each(result.settle.results, calls, _check_settled)


def _check_settled(result: queue_pb2.SettleResult) -> None:
    if result.reason:
        raise to_settle_error(to_settled(result))


def _fill_enqueue(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    request = operation.enqueue
    request.namespace, request.queue, is_early = calls[0].target
    if is_early:
        request.options.durability = ASYNC
    add = request.messages.add
    for call in calls:
        add().body = call.payload


def _answer_enqueue(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    _answer_each(result.enqueue.results, calls, to_enqueued)


def _fill_append(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    request = operation.append_records
    request.namespace, request.stream, is_early = calls[0].target
    if is_early:
        request.options.durability = ASYNC
    add = request.records.add
    for call in calls:
        add().value = call.payload


def _answer_append(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    _answer_each(result.append_records.results, calls, to_appended)


def _fill_points(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    if len(calls) > 1 and (
        sum(len(call.payload[0]) for call in calls) > SERIES_MAX
        or sum(call.payload[1] for call in calls) > VALUES_MAX
    ):
        raise ValueError("points that one operation cannot hold")
    request = operation.write_points
    request.namespace, request.measurement, is_early = calls[0].target
    if is_early:
        request.options.durability = ASYNC
    for call in calls:
        request.series.extend(call.payload[0])


def _answer_points(_result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    for call in calls:
        if not call.future.done():
            call.future.set_result(call.payload[1])


def _answer_each(results: Sequence[Any], calls: Sequence[Call], read: Callable[[Any], Any]) -> None:
    """Answer each call with what ``read`` returns or raises for its result."""
    if len(results) != len(calls):
        fail(calls, Internal(f"{len(results)} results for {len(calls)} calls"))
        return
    for result, call in zip(results, calls, strict=True):
        if call.future.done():
            continue
        try:
            call.future.set_result(read(result))
        except OnelogError as error:
            call.future.set_exception(error)


def _fill_get(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    get = operation.get
    namespace, get.key, read = calls[0].payload
    if namespace:
        get.namespace = namespace
    if read is not None:
        read.fill(get.options)


def _answer_get(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    future, get = calls[0].future, result.get
    if not future.done():
        future.set_result(to_item(get.item) if get.HasField("item") else None)


def _fill_single(operation: pipeline_pb2.Operation, calls: Sequence[Call]) -> None:
    calls[0].payload.fill(operation)


def _answer_single(result: pipeline_pb2.OperationResult, calls: Sequence[Call]) -> None:
    future = calls[0].future
    if future.done():
        return
    try:
        future.set_result(calls[0].payload.read(result))
    except OnelogError as error:
        future.set_exception(error)


# The target and the payload of each kind ("early": answered before it is applied):
# PUT: namespace; keys and values.
# PUT_WITH: namespace, whether it is early; the arguments of fill_put.
# ACK, ENQUEUE, APPEND: namespace, name, whether it is early; message, body or value.
# POINTS: namespace, measurement, whether it is early; points of series, the number of their values.
# GET: shard; namespace, key, Read or None.
# SINGLE: namespace of its keys, or None; a Single.
PUT = Kind(_fill_put, _answer_put, KEYS_MAX, is_all_or_none=True, keys=lambda call: call.payload[0])
PUT_WITH = Kind(_fill_put_with, _answer_put_with)
ACK = Kind(_fill_ack, _answer_ack, MESSAGES_MAX, keys=lambda _call: (), is_urgent=True)
ENQUEUE = Kind(_fill_enqueue, _answer_enqueue, MESSAGES_MAX, takes_sequence_each=True)
APPEND = Kind(_fill_append, _answer_append, MESSAGES_MAX, takes_sequence_each=True)
POINTS = Kind(_fill_points, _answer_points, CALLS_MAX, is_all_or_none=True)
GET = Kind(_fill_get, _answer_get)
SINGLE = Kind(_fill_single, _answer_single, keys=lambda call: call.payload.keys)


async def gather_results(answers: Iterable[Future[Any]], given: str = "") -> Rows[Any]:
    """Wait for all results and return them in order; then raise the first error, if any.

    ``given`` is the argument whose elements these are, which the error names then.

    It awaits one future after the other. All results of a message arrive together, so this wakes up
    once for each message and not for each operation.
    """
    results: Rows[Any] = Rows()
    errors: dict[int, Exception] = {}
    waiting = list(answers)
    try:
        for at, future in enumerate(waiting):
            try:
                results.append(await future)
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - raised below
                errors[at] = error
    except asyncio.CancelledError:
        for future in waiting:
            future.cancel()
        raise
    for at, first in errors.items():
        if len(waiting) > 1:
            first.add_note(f"{len(errors)} of {len(waiting)} operations failed")
            if given:
                first.add_note(f"this one is {given}[{at}]")
        raise first
    return results
