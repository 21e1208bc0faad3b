"""Many operations in one message: the pipeline of the API.

The operations of a message are sorted by shard, in order. Operations of one kind, shard and
namespace that follow each other are a ``Span``, and an operation's own loops work on all of it
(node/edge/operation.py). Spans that follow each other and are carried out together are a ``Step``:
writes of one durability are one proposal, reads are one read of each freshness.

* What is wrong with an operation concerns this operation alone. A span that cannot be made as a
  whole is made operation by operation.
* A message is answered when all of it is done: a read that may take long, because it waits for an
  index or asks for the past, is better off in a call of its own.
* In a session every write takes the sequences that its place in the message gives it, whether it
  is valid or not: so a message that is sent again means the same.

Measurements: docs/performance.md, bench/service.py.
"""

from collections import Counter, deque
from collections.abc import Awaitable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter, methodcaller
from typing import Any

from onelog.errors import InvalidArgument, NotFound, OnelogError, OutcomeUnknown, TooLarge
from onelog.node.edge.calls import NOTHING_DONE, Call, Elsewhere, complete_cost, gather
from onelog.node.edge.operation import (
    AnswerBudget,
    Lacking,
    Operations,
    Read,
    Write,
    fill_answers,
    fill_content,
    result_field,
)
from onelog.node.edge.shards import (
    Edge,
    View,
    check_read,
    check_session,
    invalid,
    parse_durability,
    parse_namespace,
    parse_session,
    read_options,
    write_options,
)
from onelog.node.metrics import PipelineOperations
from onelog.node.public_errors import (
    error_of_bounds,
    error_of_cluster,
    error_of_exception,
    fill_error,
    name_subject,
)
from onelog.node.replica.requests import Durability, Received, Results, find_refusal
from onelog.node.services import kv
from onelog.node.services import queue_operations as queue
from onelog.node.services import stream_operations as stream
from onelog.node.services import timeseries as series
from onelog.node.services.transact import TRANSACT
from onelog.node.tracing import COMMIT, with_parent
from onelog.node.tracing import Span as Trace
from onelog.projections.codec import SessionRef
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Result
from onelog.projections.shard_state import Projections
from onelog.status import error_of_result
from onelog.ual.entry import Draft
from onelog.v1 import common_pb2, pipeline_pb2

OPERATIONS_MAX = 10_000
# Answers whose size follows from that of their requests are smaller than this many times as much.
ANSWER_GROWTH_MAX = 16

EXECUTE_METHOD = "/onelog.v1.Pipeline/ExecuteOnce"
_EMPTY_RESULT = pipeline_pb2.ExecuteResponse(
    results=[pipeline_pb2.OperationResult()]
).SerializeToString()


def _pipelined() -> Operations:
    """Return the operations that a message can hold, by their names in the proto."""
    known: dict[str, Write[Any, Any] | Read[Any, Any]] = {"transact": TRANSACT}
    for model in (kv, queue, stream, series):
        known.update(model.OPERATIONS)
    oneof = pipeline_pb2.Operation.DESCRIPTOR.oneofs_by_name["operation"]
    return {field.name: known[field.name] for field in oneof.fields}


OPERATIONS = _pipelined()
_MODELS = {
    name: model
    for model, known in (
        ("kv", kv.OPERATIONS),
        ("queue", queue.OPERATIONS),
        ("stream", stream.OPERATIONS),
        ("timeseries", series.OPERATIONS),
    )
    for name in known
}
_kind = methodcaller("WhichOneof", "operation")
_namespace = attrgetter("namespace")
_has_options = methodcaller("HasField", "options")


@dataclass(slots=True)
class Span:
    """Operations of one kind, shard, namespace and options that follow each other.

    In a session their sequences follow each other too.
    """

    operation: Write[Any, Any] | Read[Any, Any]
    key: Hashable  # what the requests have in common: namespace and options
    namespace: str
    options: Any  # of the first
    session: SessionRef | None = None  # of the first
    positions: list[int] = field(default_factory=list)
    requests: list[Any] = field(default_factory=list)
    # Where the entries of a write are among those of its step.
    start: int = 0
    entry_count: int = 0

    def cut(self, begin: int, end: int) -> "Span":
        """Return some of its operations."""
        session = self.session
        if session is not None:
            assert isinstance(self.operation, Write), self.operation
            before = sum(self.operation.widths(self.requests[:begin]))
            session = session._replace(sequence=session.sequence + before)
        positions, requests = self.positions[begin:end], self.requests[begin:end]
        return replace(self, session=session, positions=positions, requests=requests)


@dataclass(slots=True)
class Step:
    """Spans of one shard that are carried out together: one proposal, or reads."""

    durability: Durability | None  # None: reads
    spans: list[Span] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)

    @property
    def positions(self) -> list[int]:
        """Which operations of the message these are."""
        return [position for span in self.spans for position in span.positions]


class Message:
    """A message in progress: its operations by shard, and the answer as it fills."""

    def __init__(
        self, edge: Edge, request: pipeline_pb2.ExecuteRequest, budget: AnswerBudget, size: int
    ) -> None:
        """``size``: of the request, which takes as long to find out as some of what is done."""
        self._edge = edge
        self._request = request
        self.with_cost = request.with_cost
        self.budget = budget
        self.size = size
        self.answer = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
        # Made from bytes, they take a quarter of the time of an ``add`` for each.
        self.answer.MergeFromString(_EMPTY_RESULT * len(request.operations))
        self.results = list(self.answer.results)
        self.kinds: list[tuple[str, range]] = []  # of the operations, in order
        self.reasons: dict[int, str] = {}  # why operations failed, by position
        self.shards: dict[int, list[Step]] = {}
        self._has_options = False
        self._session: SessionRef | None = None
        if request.HasField("session"):
            self._session = check_session(request.session)

    # Sort

    def sort(self) -> None:
        """Sort the operations into the steps of their shards."""
        position, session = 0, self._session
        for kind, group in groupby(self._request.operations, _kind):
            operation = OPERATIONS.get(kind)
            found = list(group)
            requests = list(map(attrgetter(kind), found)) if kind else found
            positions = range(position, position + len(requests))
            position = positions.stop
            self.kinds.append((kind or "", positions))
            if operation is None:
                error = invalid("OPERATION_MISSING", f"nothing is done about {kind!r} here")
                self.refuse(positions, error)
                continue
            self._add(operation, positions, requests, session)
            if session is not None and isinstance(operation, Write):
                session = _advance(session, operation, requests)
        if self._session is not None and len(self.shards) > 1:
            raise InvalidArgument(
                "a session is of one shard; send the operations of each shard apart",
                reason="SEVERAL_SHARDS",
            )

    def _add(
        self,
        operation: Write[Any, Any] | Read[Any, Any],
        positions: Sequence[int],
        requests: Sequence[Any],
        session: SessionRef | None,
    ) -> None:
        """Add operations of one kind; if not all of them are valid, one by one."""
        try:
            spans = list(self._make_spans(operation, positions, requests, session))
        except Exception as error:  # noqa: BLE001 - concerns these operations, not the others
            if len(positions) == 1:
                self.refuse(positions, error)
                return
            for position, request in zip(positions, requests, strict=True):
                self._add(operation, (position,), (request,), session)
                if session is not None and isinstance(operation, Write):
                    session = _advance(session, operation, (request,))
            return
        for shard, span in spans:
            durability = None
            if isinstance(operation, Write):
                durability = parse_durability(span.options)
            steps = self.shards.setdefault(shard, [])
            if not steps or steps[-1].durability is not durability:
                steps.append(Step(durability))
            steps[-1].spans.append(span)

    def _make_spans(
        self,
        operation: Write[Any, Any] | Read[Any, Any],
        positions: Sequence[int],
        requests: Sequence[Any],
        session: SessionRef | None,
    ) -> Iterator[tuple[int, Span]]:
        """Return the spans of operations of one kind, each with its shard, in order."""
        keys: list[Hashable] = list(map(_namespace, requests))
        if any(map(_has_options, requests)):
            self._has_options = True
            options = [request.options.SerializeToString() for request in requests]
            keys = list(zip(keys, options, strict=True))
        given = requests
        if isinstance(operation, Write) and operation.prepare is not None:
            requests = list(map(operation.prepare, requests))
        shards = operation.find_shards(self._edge, requests)
        if len(set(keys)) == len(set(shards)) == 1:
            span = _begin_span(operation, keys[0], given[0], session)
            span.positions += positions
            span.requests += requests
            yield shards[0], span
            return
        latest: dict[int, Span] = {}
        for shard, key, position, request in zip(shards, keys, positions, requests, strict=True):
            found = latest.get(shard)
            if found is None or found.key != key:
                number = position - positions[0]
                first = session
                if session is not None and isinstance(operation, Write):
                    first = _advance(session, operation, given[:number])
                found = latest[shard] = _begin_span(operation, key, given[number], first)
                yield shard, found
            found.positions.append(position)
            found.requests.append(request)

    # Write

    def make_drafts(self, step: Step, state: Projections | None, *, is_certain: bool) -> Step:
        """Make the entries of a step; return what does not fit the same proposal.

        Operations that are refused leave the step. Where the state may be old (see ``Edge.bind``)
        it raises NotFound, and nothing has changed.
        """
        drafts: list[Draft] = []
        spans: list[Span] = []
        size = 0
        left = deque(step.spans)
        while left:
            span = left.popleft()
            try:
                idle_count = self._count_idle(span, state, spans)
                if 0 < idle_count < len(span.requests):
                    left.appendleft(span.cut(idle_count, len(span.requests)))
                    span = span.cut(0, idle_count)
                made = [] if idle_count else self._make_span(span, state, step.durability)
                made_size = self._edge.check_size(made, self.size)
            except Exception as error:
                if isinstance(error, NotFound) and not is_certain:
                    raise
                if len(span.requests) == 1:
                    self.refuse(span.positions, error)
                else:
                    left.extendleft(reversed(list(_cut_apart(span, error))))
                continue
            if drafts and size + made_size > self._edge.request_bytes_max:
                left.appendleft(span)
                break
            span.start, span.entry_count = len(drafts), len(made)
            drafts += made
            size += made_size
            spans.append(span)
        step.drafts, step.spans = drafts, spans
        return Step(step.durability, list(left))

    def _count_idle(self, span: Span, state: Projections | None, before: Sequence[Span]) -> int:
        """Return how many operations at the start of the span change nothing in this state.

        Known only if nothing before them in the step changes what they depend on; else 0.
        """
        write = span.operation
        assert isinstance(write, Write), write
        if write.is_idle is None or any(_needs_state(each) and each.entry_count for each in before):
            return 0
        assert state is not None
        for number in range(len(span.requests)):
            one = span.cut(number, number + 1)
            if not write.is_idle(state, one.requests[0], one.namespace, one.session):
                return number
        return len(span.requests)

    def _make_span(
        self, span: Span, state: Projections | None, durability: Durability | None
    ) -> list[Draft]:
        """Return the entries of a span; raise if one of them would make the step be refused."""
        write = span.operation
        assert isinstance(write, Write), write
        drafts = write.drafts(state, span.requests, span.namespace, span.session)
        if durability is Durability.ASYNC and (refusal := find_refusal(drafts)) is not None:
            raise error_of_cluster(refusal)
        return drafts

    def fill(
        self,
        shard: int,
        step: Step,
        state: Projections,
        outcome: Sequence[Result],
        first_index: int,
    ) -> list[Lacking]:
        """Put the results of a step's entries into the answer; return what it still lacks."""
        lacking: list[Lacking] = []
        for span in step.spans:
            write, requests = span.operation, span.requests
            assert isinstance(write, Write), write
            targets = [self.results[position] for position in span.positions]
            answers = list(map(attrgetter(result_field(write.response)), targets))
            if not span.entry_count:
                for answer in answers:
                    answer.header.shard = shard
                continue
            results = outcome[span.start : span.start + span.entry_count]
            index = first_index + span.start
            refused, wanted = fill_answers(write, state, requests, answers, shard, index, results)
            for number, error in refused.items():
                self._fail_named(span.positions[number], error, requests[number])
            if wanted is not None:
                kept = [number for number in range(len(requests)) if number not in refused]
                lacking += [
                    (write.content, requests[number], answers[number], indexes)
                    for number, indexes in zip(kept, wanted, strict=True)
                    if indexes
                ]
            if write.returns_data or self.size * ANSWER_GROWTH_MAX > self.budget.size_max:
                for position in span.positions:
                    self._fit(write, position)
        return lacking

    def fill_cost(self, step: Step, cost: common_pb2.Cost) -> None:
        """Add what a step has cost to the answers of those who ask."""
        for span in step.spans:
            if not self.with_cost and not span.options.with_cost:
                continue
            for position in span.positions:
                result = self.results[position]
                kind = result.WhichOneof("result")
                if kind is not None:
                    answer = getattr(result, kind)
                    (answer if kind == "error" else answer.header).cost.CopyFrom(cost)

    def complete_costs(self, elapsed_s: float) -> None:
        """Add costs where nothing else has: of what wrote nothing, and what was refused before."""
        if not (self.with_cost or self._has_options):
            return
        for operation, result in zip(self._request.operations, self.results, strict=True):
            kind, found = _kind(operation), result.WhichOneof("result")
            asks = self.with_cost or (kind and getattr(operation, kind).options.with_cost)
            if asks and found is not None:
                answer = getattr(result, found)
                complete_cost((answer if found == "error" else answer.header).cost, elapsed_s)

    def is_costed(self, step: Step) -> bool:
        """Whether somebody asks what a step has cost."""
        return self.with_cost or any(span.options.with_cost for span in step.spans)

    # Read

    def look(self, view: View, span: Span) -> tuple[list[tuple[int, Awaitable[None]]], list[int]]:
        """Put what the reads of a span find into the answer.

        Returns those that take longer, by their positions, and the numbers of those that must look
        at a state of the past.
        """
        read, as_of = span.operation, span.options.as_of_index or None
        assert isinstance(read, Read), read
        if as_of is not None and not read.tells_past and view.held is None:
            return [], list(range(len(span.requests)))
        longer: list[tuple[int, Awaitable[None]]] = []
        of_past: list[int] = []
        with_cost = self.with_cost or span.options.with_cost
        mine = view.for_read(None if view.held else as_of, with_cost=with_cost)
        look_up, header = read.look(mine, span.namespace), mine.header
        get_answer, results, budget = (
            attrgetter(result_field(read.response)),
            self.results,
            self.budget,
        )
        for number, (position, request) in enumerate(
            zip(span.positions, span.requests, strict=True)
        ):
            target = results[position]
            if budget.is_full:
                self._fail(position, budget.refusal())
                continue
            try:
                answer = get_answer(target)
                header(answer.header)
                pending = look_up(request, answer)
                if pending is None:
                    self._fit(read, position)
                else:
                    assert isinstance(pending, Awaitable), "no read with content is here"
                    longer.append((position, pending))
            except Exception as error:  # noqa: BLE001 - concerns this operation
                # No name for the public error here: it would keep this frame, and with it the view.
                if mine.as_of is not None and _is_compacted(error):
                    of_past.append(number)
                else:
                    self._fail_named(position, error, request)
        return longer, of_past

    # Answers

    def fit(self, position: int) -> None:
        """Count the result of an operation, or replace it if the answer has no room for it."""
        operation = OPERATIONS.get(_kind(self._request.operations[position]) or "")
        self._fit(operation, position)

    def _fit(self, operation: Write[Any, Any] | Read[Any, Any] | None, position: int) -> None:
        """Replace a result by a refusal if the answer has no room for it.

        A read can be repeated; a write may not be reported as refused, since it was done.
        """
        target = self.results[position]
        size = target.ByteSize()
        if self.budget.take_result(size) or target.HasField("error"):
            return
        error = self.budget.refusal(size)
        if isinstance(operation, Write):
            error = OutcomeUnknown(f"it was done, but its answer of {size} bytes has no room")
        target.Clear()
        self._fail(position, error)

    def _fail(self, position: int, error: OnelogError) -> None:
        self.reasons[position] = error.reason
        fill_error(self.results[position].error, error)

    def _fail_named(self, position: int, error: Exception, request: Any) -> None:
        """Say in the error of an operation what of its request it is about."""
        refusal = error_of_exception(error)
        name_subject(refusal, request)
        self._fail(position, refusal)

    def refuse(self, positions: Iterable[int], error: Exception) -> None:
        """Answer operations with the same error."""
        refusal, positions = error_of_exception(error), list(positions)
        if len(positions) == 1:  # what several have in common is not the name of one
            operation = self._request.operations[positions[0]]
            name_subject(refusal, getattr(operation, _kind(operation) or "", None))
        for position in positions:
            self._fail(position, refusal)

    def take_result(self, position: int, result: pipeline_pb2.OperationResult) -> None:
        """Take over the result of an operation that was forwarded."""
        self.results[position].CopyFrom(result)
        if result.HasField("error"):
            self.reasons[position] = result.error.reason
        self.fit(position)

    def count(self, operations: PipelineOperations, seconds: float) -> None:
        """Count its operations, those of one kind together."""
        counts: Counter[tuple[str, str]] = Counter()
        sizes: Counter[str] = Counter()
        if len(self.kinds) == 1:
            ((kind, positions),) = self.kinds
            counts[kind, ""], sizes[kind] = len(positions), self.size
        else:
            requests = self._request.operations
            for kind, positions in self.kinds:
                counts[kind, ""] += len(positions)
                sizes[kind] += sum(requests[each].ByteSize() for each in positions)
        for position, reason in self.reasons.items():
            kind = _kind(self._request.operations[position]) or ""
            counts[kind, ""] -= 1
            counts[kind, reason] += 1
        for (kind, reason), count in counts.items():
            if count:
                labels = _MODELS.get(kind, ""), kind, reason
                operations.durations.observe(labels, seconds, count)
        for kind, size in sizes.items():
            operations.request_bytes[_MODELS.get(kind, ""), kind] += size

    @property
    def traceparent(self) -> str:
        """The trace of the first of those who called, if there is one."""
        return next(iter(self._request.traceparent), "")

    def describe(self, trace: Trace) -> None:
        """Say in a trace what the answer says: how many operations, and what is wrong with one."""
        trace.attributes["onelog.operations"] = len(self.results)
        for result in self.results:
            if result.HasField("error"):
                trace.fail(result.error.reason, result.error.code)
                break

    def part(self, steps: Iterable[Step]) -> tuple[Sequence[int], pipeline_pb2.ExecuteRequest]:
        """Return a message of the operations that are left, and their positions in this one.

        In a session all operations are of one shard, and have consecutive numbers: then these are
        all after the first that is left, including refused ones in between.
        """
        positions: Sequence[int] = sorted(position for step in steps for position in step.positions)
        part = pipeline_pb2.ExecuteRequest(
            request_id=self._request.request_id, with_cost=self.with_cost
        )
        operations = self._request.operations
        if self._session is not None:
            positions = range(positions[0], len(self.results))
            part.session.CopyFrom(self._request.session)
            for kind, group in groupby(operations[: positions[0]], _kind):
                operation = OPERATIONS.get(kind)
                if isinstance(operation, Write):
                    widths = operation.widths(list(map(attrgetter(kind), group)))
                    part.session.sequence += sum(widths)
        part.operations.extend(operations[position] for position in positions)
        return positions, part


def _begin_span(
    operation: Write[Any, Any] | Read[Any, Any],
    key: Hashable,
    request: Any,
    session: SessionRef | None,
) -> Span:
    """Return an empty span that begins with this request; refuse invalid options."""
    namespace = parse_namespace(request.namespace)
    if isinstance(operation, Read):
        options = read_options(request)
        check_read(options)
        return Span(operation, key, namespace, options)
    options = write_options(request)
    parse_durability(options)
    return Span(operation, key, namespace, options, session or parse_session(options))


def _advance(session: SessionRef, write: Write[Any, Any], requests: Sequence[Any]) -> SessionRef:
    """Return the session as it is behind these requests."""
    return session._replace(sequence=session.sequence + sum(write.widths(requests)))


def _cut_apart(span: Span, error: Exception) -> Iterator[Span]:
    """Return the parts of a span that cannot be one: halves if it is too large, else one by one."""
    count = len(span.requests)
    width = (count + 1) // 2 if isinstance(error, TooLarge) else 1
    return (span.cut(begin, begin + width) for begin in range(0, count, width))


def _needs_state(span: Span) -> bool:
    return isinstance(span.operation, Write) and span.operation.needs_state


def _is_compacted(error: Exception) -> bool:
    return isinstance(error, OnelogError) and error.reason == Reason.COMPACTED.name


class Executor:
    """Carries out messages of operations."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def execute(
        self, request: pipeline_pb2.ExecuteRequest, call: Call, size: int
    ) -> pipeline_pb2.ExecuteResponse:
        """Return the answer to a message, with a result or an error for each operation."""
        if len(request.operations) > OPERATIONS_MAX:
            what, count = "the number of operations", len(request.operations)
            raise error_of_bounds(Reason.LIMIT_INVALID, what, count, OPERATIONS_MAX, 0)
        if request.more:
            raise invalid("MORE_INVALID", "more is for messages of Execute, and may not be in more")
        budget = AnswerBudget(self._edge, len(request.operations))
        message = Message(self._edge, request, budget, size)
        message.sort()
        shards = message.shards
        if len(shards) == 1:
            ((shard, steps),) = shards.items()
            await self._run_shard(message, shard, steps, call)
        elif shards:
            await gather(
                *(self._run_shard(message, shard, steps, call) for shard, steps in shards.items())
            )
        message.complete_costs(self._edge.context.clock.now_s() - call.arrived_s)
        if call.span is not None:
            message.describe(call.span)
        if not call.is_forwarded:  # or two nodes would count them
            context = self._edge.context
            seconds = context.clock.now_s() - call.arrived_s
            message.count(context.metrics.operations, seconds)
        return message.answer

    async def _run_shard(self, message: Message, shard: int, steps: list[Step], call: Call) -> None:
        """Carry out the steps of a shard, one after the other; the leader those that are left."""
        left = deque(steps)

        async def attempt() -> None:
            while left:
                step = left[0]
                try:
                    if step.durability is None:
                        await self._read(message, shard, step, call)
                    else:
                        rest = await self._make_drafts(message, shard, step, call)
                        if rest.spans:
                            left.insert(1, rest)
                        await self._propose(message, shard, step, call)
                except Elsewhere:
                    raise
                except Exception as error:  # noqa: BLE001 - concerns these operations alone
                    message.refuse(step.positions, error)
                left.popleft()

        async def forward(elsewhere: Elsewhere) -> None:
            await self._forward(message, left, elsewhere, call)

        try:
            await self._edge.calls.run_on_leader(call, attempt, forward)
        except Exception as error:  # noqa: BLE001 - concerns this shard, not the others
            for step in left:
                message.refuse(step.positions, error)

    async def _make_drafts(self, message: Message, shard: int, step: Step, call: Call) -> Step:
        """Make the entries of a step that is led here; return what does not fit its proposal."""
        if not any(map(_needs_state, step.spans)):
            self._edge.leading(shard)
            return message.make_drafts(step, None, is_certain=True)
        return await self._edge.bind(
            shard,
            call,
            lambda state, is_certain: message.make_drafts(step, state, is_certain=is_certain),
        )

    async def _propose(self, message: Message, shard: int, step: Step, call: Call) -> None:
        """Propose the entries of a step, and fill in their results."""
        driver = self._edge.leading(shard)
        assert step.durability is not None
        if not step.drafts:
            message.fill(shard, step, driver.shard.projections, (), 0)
            return
        future = driver.propose(step.drafts, call.deadline_s, step.durability)
        trace = call.span
        outcome = await (future if trace is None else trace.wait(COMMIT, shard, future))
        results: Sequence[Result]
        if isinstance(outcome, Results):
            results = outcome
        elif isinstance(outcome, Received):
            results = [APPLIED] * len(step.drafts)
        else:
            raise self._edge.failure(shard, outcome)
        state = driver.shard.projections
        lacking = message.fill(shard, step, state, results, outcome.first_index)
        if isinstance(outcome, Results) and message.is_costed(step):
            message.fill_cost(step, self._edge.measure_cost(driver, outcome, call))
        if lacking:
            await fill_content(self._edge, shard, lacking, call, message.budget)

    async def _read(self, message: Message, shard: int, step: Step, call: Call) -> None:
        """Make one read for all that ask for the same freshness and index."""
        alike: dict[tuple[int, int, int], list[Span]] = {}
        for span in step.spans:
            options = span.options
            wanted = options.level, options.max_staleness_ms, options.min_index
            alike.setdefault(wanted, []).append(span)
        if len(alike) == 1:
            await self._read_alike(message, shard, step.spans, call)
            return

        async def read_some(spans: list[Span]) -> None:
            try:
                await self._read_alike(message, shard, spans, call)
            except Elsewhere:
                raise
            except Exception as error:  # noqa: BLE001 - concerns these operations alone
                message.refuse(Step(None, spans).positions, error)

        try:
            await gather(*map(read_some, alike.values()))
        except Elsewhere:
            for position in step.positions:  # all of it is done again
                message.results[position].Clear()
                message.reasons.pop(position, None)
            raise

    async def _read_alike(
        self, message: Message, shard: int, spans: Sequence[Span], call: Call
    ) -> None:
        """One read for spans that want it equally fresh; an index of the past is each one's own."""
        options = spans[0].options
        wanted = common_pb2.ReadOptions(
            level=options.level,
            max_staleness_ms=options.max_staleness_ms,
            min_index=options.min_index,
            with_cost=message.with_cost or any(span.options.with_cost for span in spans),
        )
        view = await self._edge.read(shard, wanted, call)
        # All reads of the live state come first: it changes with each wait.
        looks = [(span, *message.look(view, span)) for span in spans]
        for _, longer, _ in looks:
            await self._finish(message, longer)
        for span, _, numbers in looks:
            for number in numbers:
                one = span.cut(number, number + 1)
                try:
                    past = await self._edge.past(view, one.options.as_of_index, call)
                    longer, _ = message.look(past, one)
                    await self._finish(message, longer)
                except Exception as error:  # noqa: BLE001 - concerns this operation
                    message.refuse(one.positions, error)

    async def _finish(
        self, message: Message, longer: Sequence[tuple[int, Awaitable[None]]]
    ) -> None:
        """Wait for reads that take longer."""
        for position, pending in longer:
            try:
                await pending
                message.fit(position)
            except Exception as error:  # noqa: BLE001 - concerns this operation
                message.refuse((position,), error)

    async def _forward(
        self, message: Message, steps: Iterable[Step], elsewhere: Elsewhere, call: Call
    ) -> None:
        """Forward what is left of a shard to its leader."""
        positions, part = message.part(steps)
        forwarded = Call(
            EXECUTE_METHOD,
            pipeline_pb2.ExecuteResponse,
            call.client,
            call.arrived_s,
            call.deadline_s,
        )
        forwarded.metadata = call.metadata
        if call.span is None and message.traceparent:
            forwarded.metadata = with_parent(call.metadata, message.traceparent)
        data = await self._edge.calls.forward(forwarded, elsewhere, part)
        message.answer.forwarded = True
        results = pipeline_pb2.ExecuteResponse.FromString(data).results
        if all(result.error.reason in NOTHING_DONE for result in results):
            raise error_of_result(results[0].error)  # it was the leader and is not any more
        for position, result in zip(positions, results, strict=True):
            message.take_result(position, result)
