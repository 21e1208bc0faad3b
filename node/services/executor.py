"""Many operations in one message: the fast path of the API.

The operations of a message are sorted by shard, in order, and what can go together does: writes of
one durability that follow each other are one proposal, reads that follow each other and want the
same are one read. A plain put is most of what there is, so it has a way of its own
(node/services/plain.py), and enqueues of single messages go together
(node/services/plain.py).

A message is answered when all of it is done: a read that may take long, because it waits for an
index or asks for the past, is better off in a call of its own.

Measured (bench/service.py; a message of 1,000 puts, keys of 16 and values of 100 bytes): 3.6 µs of
CPU per put, of which 2.8 make the entry, 0.7 the answer, and 0.1 is protobuf's own work. In a
session it is the same.

Execute message
---------------
One message of many operations: sorted by shard into runs, and its answer as it fills.

Operation table
---------------
Which operations a message can hold, and what is done about each.
"""

from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from onelog.errors import InvalidArgument, NotFound, OnelogError, OutcomeUnknown
from onelog.node.edge.calls import NOTHING_DONE, Call, Elsewhere, gather
from onelog.node.edge.operation import (
    Lacking,
    Read,
    Room,
    Write,
    make_drafts,
    put_answer,
    put_content,
)
from onelog.node.edge.shards import (
    Edge,
    View,
    check_read,
    check_session,
    durability_of,
    invalid,
    namespace_of,
    read_options,
    session_of,
)
from onelog.node.public_errors import (
    error_of_cluster,
    error_of_exception,
    error_of_reason,
    put_error,
)
from onelog.node.replica.requests import Durability, Received, Results, refusal_of
from onelog.node.services import kv
from onelog.node.services import queue_operations as queue
from onelog.node.services import stream_operations as stream
from onelog.node.services import timeseries as series
from onelog.node.services.plain import (
    Operation,
    Run,
    Singles,
    Wanted,
    add_plain_puts,
    answer_appends,
    answer_gets,
    of_one_message,
    take_appends,
    take_gets,
)
from onelog.node.services.transact import TRANSACT
from onelog.node.tracing import COMMIT, Span, with_parent
from onelog.projections.codec import SessionRef
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Result
from onelog.projections.shard_state import Projections
from onelog.status import error_of_result
from onelog.v1 import common_pb2, pipeline_pb2

# By the name of the operation in the proto. A new model adds its lines here; the answer has the
# same name unless ANSWERS says another.
OPERATIONS: dict[str, Write[Any, Any] | Read[Any, Any]] = {
    "get": kv.GET,
    "put": kv.PUT,
    "delete": kv.DELETE,
    "touch": kv.TOUCH,
    "count": kv.COUNT,
    "append": kv.APPEND,
    "set_json": kv.SET_JSON,
    "txn": kv.TXN,
    "batch_put": kv.BATCH_PUT,
    "transact": TRANSACT,
    **queue.OPERATIONS,
    "append_records": stream.APPEND_RECORDS,
    "ack_records": stream.ACK_RECORDS,
    "commit_offsets": stream.COMMIT_OFFSETS,
    "write_points": series.WRITE_POINTS,
    "query": series.QUERY,
}
ANSWERS = queue.ANSWERS


# Execute message

# Plain puts and appends are proposed together with what follows, unless the message is larger: to
# wait for one proposal less matters little then, and no group could hold all of it.
JOINED_SIZE_MAX = 1 << 20


class Message:
    """A message on its way: its operations by shard, and the answer as it fills."""

    def __init__(
        self, edge: Edge, request: pipeline_pb2.ExecuteRequest, room: Room | None = None
    ) -> None:
        """``room``: of the answer; one that is not carried out needs none."""
        self._edge = edge
        self._request = request
        self.with_cost = request.with_cost
        self._room = room
        self.answer = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
        add = self.answer.results.add
        self.results = [add() for _ in request.operations]
        self.shards: dict[int, list[Run]] = {}
        self.size = 0
        self._singles: Singles | None = None  # that the next one may join
        self._session: SessionRef | None = None

    def sort(self) -> None:
        """Make entries of the writes and sort everything by shard."""
        if self._request.HasField("session"):
            self._session = check_session(self._request.session)
        left = add_plain_puts(self._edge, self._request, self._session, self.shards)
        if left is not None:
            left = take_appends(
                self._request.operations,
                left,
                self._session,
                self._edge.shard_of,
                self._append_target,
            )
        if left is not None and self._session is None and not self.with_cost:
            left = take_gets(self._request.operations, left, self._edge.shard_of, self._get_target)
        if left is not None:
            self._sort_slowly(left)
        if self._session is not None:
            self._refuse_several_shards()

    def _append_target(self, shard: int) -> tuple[Any, Any]:
        """Return who takes the plain appends of a shard, and who notes their positions."""
        runs = self.shards.setdefault(shard, [])
        if not runs or not runs[-1].appends:
            runs.append(Run(Durability.SYNC))
        return runs[-1].drafts.append, runs[-1].appends.append

    def _get_target(self, shard: int, namespace: str, wanted: Wanted) -> Any:
        """Return who takes the plain gets of a shard and a namespace that are to be as fresh."""
        run = Run(None, namespace=namespace, wanted=wanted)
        self.shards.setdefault(shard, []).append(run)
        return run.gets.append

    def _sort_slowly(self, positions: range) -> None:
        """Sort operations of any kind."""
        operations = self._request.operations
        # Everything before the first of these is a put or an append, and so is a write.
        sequence = first = 0
        if self._session is not None:
            _, sequence, first = self._session
            sequence += positions.start
        for position in positions:
            operation = operations[position]
            kind = operation.WhichOneof("operation")
            if (kind == "enqueue" or kind == "ack") and self._add_single(
                position, kind, getattr(operation, kind), sequence, first
            ):
                sequence += 1  # of a session, if there is one
                continue
            entry = OPERATIONS.get(kind or "")
            session = None
            if self._session is not None and isinstance(entry, Write):
                session = SessionRef(self._session.session, sequence, first)
                sequence += entry.width(getattr(operation, str(kind)))
            try:
                self._add(position, str(kind), entry, operation, session)
            except Exception as error:  # noqa: BLE001 - concerns this operation, not the others
                put_error(self.results[position].error, error_of_exception(error))

    def _add_single(
        self, position: int, kind: str, request: Any, sequence: int, first: int
    ) -> bool:
        """Add an operation on one message to those before it, if that is all there is to it.

        Nothing is in between, so in a session their numbers follow each other.
        """
        if not of_one_message(kind, request):
            return False
        namespace, name = request.namespace, request.queue
        last = self._singles
        if last is None or name != last.queue or kind != last.kind or namespace != last.namespace:
            try:
                shard = self._edge.shard_of_all(queue.ENQUEUE.names(request))
            except OnelogError:
                return False
            session = self._session
            if session is not None:
                session = SessionRef(session.session, sequence, first)
            run = self._run(shard, Durability.SYNC, is_plain=True)
            last = self._singles = Singles(kind, namespace, name, session)
            run.parts.append(last)
            run.needs_state = True
        last.positions.append(position)
        last.messages.append(request.messages[0])
        return True

    def _add(
        self,
        position: int,
        kind: str,
        entry: Write[Any, Any] | Read[Any, Any] | None,
        operation: pipeline_pb2.Operation,
        session: SessionRef | None,
    ) -> None:
        self._singles = None
        if entry is None:
            raise invalid("OPERATION_MISSING", f"nothing is done about {kind!r} here")
        request = getattr(operation, kind)
        namespace = namespace_of(request.namespace)
        if isinstance(entry, Read):
            shard = self._edge.shard_of_all(entry.names(request))
            check_read(read_options(request))  # of all together only what is right is made
            run = self._run(shard, None)
            run.operations.append(Operation(position, kind, request))
            return
        prepared = entry.prepare(request)
        shard = self._edge.shard_of_all(entry.names(prepared))
        durability = Durability.SYNC
        if request.HasField("options"):
            options = request.options
            durability, session = durability_of(options), session or session_of(options)
        drafts: Sequence[Any] = ()
        if not entry.needs_state:
            drafts = make_drafts(entry, None, prepared, namespace, session)
            self._check(drafts, durability)
        run = self._run(shard, durability)
        if request.HasField("options") and request.options.with_cost:
            run.costed.append(position)
        run.needs_state |= entry.needs_state
        run.parts.append(Operation(position, kind, prepared, session, len(run.drafts), len(drafts)))
        run.drafts += drafts

    def _check(self, drafts: Sequence[Any], durability: Durability | None) -> None:
        """Refuse entries of an operation that would make its whole proposal be refused."""
        self._edge.check_size(drafts, self.size)
        if durability is Durability.ASYNC and (refusal := refusal_of(drafts)) is not None:
            raise error_of_cluster(refusal)

    def bind(self, run: Run, state: Projections, is_certain: bool) -> None:  # noqa: FBT001
        """Make the entries of a run anew, now that the state is there that they need."""
        drafts: list[Any] = run.drafts[: run.plain_count]
        bound: list[Operation | Singles] = []
        for part in run.parts:
            operations: Sequence[Operation]
            if isinstance(part, Singles):
                try:
                    made = part.drafts(state)
                except OnelogError:
                    # Of one of them; one by one the others are not concerned.
                    operations = part.operations(self._request)
                else:
                    part.at = len(drafts)
                    drafts += made
                    bound.append(part)
                    continue
            else:
                operations = (part,)
            bound += [
                operation
                for operation in operations
                if self._bind_one(operation, run, state, drafts, is_certain=is_certain)
            ]
        run.parts, run.drafts = bound, drafts

    def _bind_one(
        self,
        operation: Operation,
        run: Run,
        state: Projections,
        drafts: list[Any],
        *,
        is_certain: bool,
    ) -> bool:
        """Add the entries of an operation, or refuse it; tell whether they were added."""
        entry, request = OPERATIONS[operation.kind], operation.request
        assert isinstance(entry, Write), operation.kind
        try:
            made = make_drafts(
                entry,
                state,
                request,
                namespace_of(request.namespace),
                operation.session,
                # No plain put or append changes what an idle operation looks at: its queue.
                is_first=len(drafts) == run.plain_count,
            )
            self._check(made, run.durability)
        except Exception as error:
            if isinstance(error, NotFound) and not is_certain:
                raise
            put_error(self.results[operation.position].error, error_of_exception(error))
            return False
        operation.at, operation.count = len(drafts), len(made)
        drafts += made
        return True

    def _run(self, shard: int, durability: Durability | None, *, is_plain: bool = False) -> Run:
        """Return the run that the next operation of a shard belongs to."""
        runs = self.shards.setdefault(shard, [])
        last = runs[-1] if runs else None
        if (
            last is None
            or last.durability is not durability
            or (last.plain_count and self.size > JOINED_SIZE_MAX)
            or last.gets
            or (last.is_plain and not is_plain)
        ):
            last = Run(durability, is_plain=is_plain)
            runs.append(last)
        return last

    def _refuse_several_shards(self) -> None:
        if len(self.shards) > 1:
            raise InvalidArgument(
                "a session is of one shard; send the operations of each shard apart",
                reason="SEVERAL_SHARDS",
            )

    # Answers

    @property
    def room(self) -> Room:
        """How much more fits the answer."""
        assert self._room is not None, "not to be carried out"
        return self._room

    def fill(
        self,
        shard: int,
        run: Run,
        state: Projections,
        outcome: Sequence[Result],
        first_index: int,
    ) -> list[Lacking]:
        """Put the results of a run's entries into the answer; return what it still lacks."""
        results = self.results
        lacking: list[Lacking] = []
        plain = outcome[: run.plain_count] if run.parts else outcome
        if run.puts:
            index = first_index
            for position, result in zip(run.puts, plain, strict=True):
                target = results[position]
                if result is APPLIED:
                    header = target.put.header
                    header.index = index
                    if shard:
                        header.shard = shard
                else:
                    self._answer("put", state, None, target, shard, index, (result,), lacking)
                index += 1
        if run.appends:
            operations = self._request.operations
            others = answer_appends(
                operations, results, run.appends, plain, first_index, shard, state
            )
            for position, (result, index) in others.items():
                request, target = operations[position].append_records, results[position]
                self._answer(
                    "append_records", state, request, target, shard, index, (result,), lacking
                )
        for each in run.parts:
            kind, index = each.kind, first_index + each.at
            if isinstance(each, Operation):
                part, target = outcome[each.at : each.at + each.count], results[each.position]
                self._answer(kind, state, each.request, target, shard, index, part, lacking)
                continue
            part = outcome[each.at : each.at + len(each.positions)]
            for position, number in each.put_applied(results, shard, index, part):
                at, target = index + number, results[position]
                request = getattr(self._request.operations[position], kind)
                self._answer(kind, state, request, target, shard, at, (part[number],), lacking)
        return lacking

    def _answer(
        self,
        kind: str,
        state: Projections,
        request: Any,
        target: pipeline_pb2.OperationResult,
        shard: int,
        index: int,
        results: Sequence[Result],
        lacking: list[Lacking],
    ) -> None:
        entry = OPERATIONS[kind]
        assert isinstance(entry, Write), kind
        try:
            answer = getattr(target, ANSWERS.get(kind, kind))
            indexes = put_answer(entry, state, request, answer, shard, index, results)
            if indexes:
                lacking.append((entry.content, request, answer, indexes))
            self._fit(entry, target)
        except Exception as error:  # noqa: BLE001 - concerns this operation, not the others
            put_error(target.error, error_of_exception(error))

    def put_cost(self, run: Run, cost: common_pb2.Cost) -> None:
        """Tell those who ask what their run has cost."""
        for position in run.positions if self.with_cost else run.costed:
            result = self.results[position]
            kind = result.WhichOneof("result")
            if kind is not None and kind != "error":
                getattr(result, kind).header.cost.CopyFrom(cost)

    def look(
        self, view: View, run: Run
    ) -> tuple[list[tuple[int, Awaitable[None]]], list[tuple[int, str, Any]]]:
        """Put what the reads of a run find into the answer.

        Returns those that take longer, and those that ask for the past.
        """
        longer: list[tuple[int, Awaitable[None]]] = []
        of_past: list[tuple[int, str, Any]] = []
        for each in run.operations:
            position, kind, request = each.position, each.kind, each.request
            entry, as_of = OPERATIONS[kind], read_options(request).as_of_index or None
            assert isinstance(entry, Read), kind
            if as_of is not None and not entry.tells_past:
                of_past.append((position, kind, request))
                continue
            if self.room.is_full:
                put_error(self.results[position].error, self.room.refusal())
                continue
            try:
                pending = self.look_one(view, position, kind, request, as_of)
                if pending is not None:
                    longer.append((position, pending))
            except Exception as error:  # noqa: BLE001 - concerns this operation
                # No name for the public error here: it would keep this frame, and with it the view.
                if as_of is not None and _is_compacted(error):
                    of_past.append((position, kind, request))
                else:
                    put_error(self.results[position].error, error_of_exception(error))
        return longer, of_past

    def look_one(
        self, view: View, position: int, kind: str, request: Any, as_of: int | None = None
    ) -> Awaitable[None] | None:
        """Put what one read finds into the answer; return what to wait for, if it takes longer."""
        entry, target = OPERATIONS[kind], self.results[position]
        assert isinstance(entry, Read), kind
        with_cost = self.with_cost or read_options(request).with_cost
        mine = view.for_read(as_of, with_cost=with_cost)
        answer = getattr(target, ANSWERS.get(kind, kind))
        mine.header(answer.header)
        pending = entry.look(mine, namespace_of(request.namespace), request, answer)
        assert pending is None or isinstance(pending, Awaitable), "no read with content is here"
        if pending is None:
            self._fit(entry, target)
        return pending

    def fit(self, position: int) -> None:
        """Count the result of an operation, or replace it if the answer has no room for it."""
        kind = self._request.operations[position].WhichOneof("operation") or ""
        self._fit(OPERATIONS.get(kind), self.results[position])

    def _fit(
        self, entry: Write[Any, Any] | Read[Any, Any] | None, target: pipeline_pb2.OperationResult
    ) -> None:
        """Replace a result by a refusal if the answer has no room for it.

        A read can be asked again; of a write nobody may say that nothing was done.
        """
        size = target.ByteSize()
        if self.room.take_result(size) or target.HasField("error"):
            return
        error = self.room.refusal(size)
        if isinstance(entry, Write):
            error = OutcomeUnknown(f"it was done, but its answer of {size} bytes has no room")
        target.Clear()
        put_error(target.error, error)

    def refuse(self, run: Run, error: OnelogError) -> None:
        """Answer all operations of a run with the same error."""
        for position in run.positions:
            put_error(self.results[position].error, error)

    @property
    def traceparent(self) -> str:
        """The trace of the first of those who called, if there is one."""
        return next(iter(self._request.traceparent), "")

    def describe(self, span: Span) -> None:
        """Say in a span what the answer says: how many operations, and what is wrong with one."""
        span.attributes["onelog.operations"] = len(self.results)
        for result in self.results:
            if result.HasField("error"):
                span.fail(result.error.reason, result.error.code)
                break

    def part(self, runs: Iterable[Run]) -> tuple[Sequence[int], pipeline_pb2.ExecuteRequest]:
        """Return a message of what is left to do, and which operations of this one these are.

        In a session everything belongs to one shard, and numbers count on from the first: then it
        is all that follows, whatever was found wrong in between.
        """
        positions: Sequence[int] = sorted(position for run in runs for position in run.positions)
        part = pipeline_pb2.ExecuteRequest(
            request_id=self._request.request_id, with_cost=self.with_cost
        )
        if self._session is not None:
            positions = range(positions[0], len(self.results))
            part.session.CopyFrom(self._request.session)
            part.session.sequence += sum(
                _width(each) for each in self._request.operations[: positions[0]]
            )
        operations = self._request.operations
        part.operations.extend(operations[position] for position in positions)
        return positions, part


def _width(operation: pipeline_pb2.Operation) -> int:
    """Return how many sequences of a session an operation takes."""
    kind = operation.WhichOneof("operation") or ""
    entry = OPERATIONS.get(kind)
    return entry.width(getattr(operation, kind)) if isinstance(entry, Write) else 0


def _is_compacted(error: Exception) -> bool:
    return isinstance(error, OnelogError) and error.reason == Reason.COMPACTED.name


# Execute

OPERATIONS_MAX = 10_000

EXECUTE_METHOD = "/onelog.v1.Pipeline/ExecuteOnce"


class Executor:
    """Carries out messages of operations."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def execute(
        self, request: pipeline_pb2.ExecuteRequest, call: Call, size: int
    ) -> pipeline_pb2.ExecuteResponse:
        """Return the answer to a message, with a result or an error for each operation.

        ``size``: of the message, which takes as long to find out as some of what is done with it.
        """
        if len(request.operations) > OPERATIONS_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, len(request.operations))
        if request.more:
            raise invalid("MORE_INVALID", "messages travel along in a stream, one level deep")
        message = Message(self._edge, request, Room(self._edge, len(request.operations)))
        message.size = size
        message.sort()
        shards = message.shards
        if len(shards) == 1:
            ((shard, runs),) = shards.items()
            await self._run_shard(message, shard, runs, call)
        elif shards:
            await gather(
                *(self._run_shard(message, shard, runs, call) for shard, runs in shards.items())
            )
        if call.span is not None:
            message.describe(call.span)
        return message.answer

    async def _run_shard(self, message: Message, shard: int, runs: list[Run], call: Call) -> None:
        """Carry out the runs of a shard, one after the other; the leader those that are left."""
        left = deque(runs)

        async def attempt() -> None:
            while left:
                run = left[0]
                try:
                    if run.durability is None:
                        await self._read(message, shard, run, call)
                    else:
                        await self._write(message, shard, run, call)
                except Elsewhere:
                    raise
                except Exception as error:  # noqa: BLE001 - concerns these operations alone
                    message.refuse(run, error_of_exception(error))
                left.popleft()

        async def forward(elsewhere: Elsewhere) -> None:
            await self._forward(message, left, elsewhere, call)

        try:
            await self._edge.calls.run_on_leader(call, attempt, forward)
        except Exception as error:  # noqa: BLE001 - concerns this shard, not the others
            for run in left:
                message.refuse(run, error_of_exception(error))

    async def _write(self, message: Message, shard: int, run: Run, call: Call) -> None:
        driver = self._edge.leading(shard)
        assert run.durability is not None
        if run.needs_state:
            await self._edge.bind(
                shard, call, lambda state, is_certain: message.bind(run, state, is_certain)
            )
        state = driver.shard.projections
        if not run.drafts:
            message.fill(shard, run, state, (), 0)
            return
        self._edge.check_size(run.drafts, message.size)
        future = driver.propose(run.drafts, call.deadline_s, run.durability)
        span = call.span
        outcome = await (future if span is None else span.wait(COMMIT, shard, future))
        lacking: Sequence[Lacking] = ()
        state = driver.shard.projections
        if isinstance(outcome, Results):
            lacking = message.fill(shard, run, state, outcome, outcome.first_index)
            if message.with_cost or run.costed:
                message.put_cost(run, self._edge.cost_of(driver, outcome, call))
        elif isinstance(outcome, Received):
            results = [APPLIED] * len(run.drafts)
            message.fill(shard, run, state, results, outcome.first_index)
        else:
            raise self._edge.failure(shard, outcome)
        if lacking:
            await put_content(self._edge, shard, lacking, call, message.room)

    async def _read(self, message: Message, shard: int, run: Run, call: Call) -> None:
        """One read for all that want the same: what some wait for, or miss, concerns them alone."""
        if run.gets:
            level, staleness_ms = run.wanted
            options = common_pb2.ReadOptions(level=level, max_staleness_ms=staleness_ms)  # type: ignore[arg-type]
            view = await self._edge.read(shard, options, call)
            answer_gets(view, run.namespace, run.gets, message.results, message.room)
            return
        alike: dict[tuple[int, int, int], list[Operation]] = {}
        for operation in run.operations:
            options = read_options(operation.request)
            wanted = options.level, options.max_staleness_ms, options.min_index
            alike.setdefault(wanted, []).append(operation)
        if len(alike) == 1:
            await self._read_alike(message, shard, run, call)
            return

        async def read_some(operations: list[Operation]) -> None:
            some = Run(None, operations=operations)
            try:
                await self._read_alike(message, shard, some, call)
            except Elsewhere:
                raise
            except Exception as error:  # noqa: BLE001 - concerns these operations alone
                message.refuse(some, error_of_exception(error))

        try:
            await gather(*map(read_some, alike.values()))
        except Elsewhere:
            for position in run.positions:  # all of it is done again
                message.results[position].Clear()
            raise

    async def _read_alike(self, message: Message, shard: int, run: Run, call: Call) -> None:
        """One read for all, which want it equally fresh; an index of the past is each one's own."""
        options = read_options(run.operations[0].request)
        wanted = common_pb2.ReadOptions(
            level=options.level,
            max_staleness_ms=options.max_staleness_ms,
            min_index=options.min_index,
        )
        view = await self._edge.read(shard, wanted, call)
        longer, of_past = message.look(view, run)
        for position, pending in longer:
            try:
                await pending
                message.fit(position)
            except Exception as error:  # noqa: BLE001 - concerns this operation
                put_error(message.results[position].error, error_of_exception(error))
        for position, kind, request in of_past:
            try:
                past = await self._edge.past(view, read_options(request).as_of_index, call)
                then = message.look_one(past, position, kind, request)
                if then is not None:
                    await then
                    message.fit(position)
            except Exception as error:  # noqa: BLE001 - concerns this operation
                put_error(message.results[position].error, error_of_exception(error))

    async def _forward(
        self, message: Message, runs: Iterable[Run], elsewhere: Elsewhere, call: Call
    ) -> None:
        """Let the leader carry out what is left of a shard."""
        positions, part = message.part(runs)
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
            message.results[position].CopyFrom(result)
            message.fit(position)
