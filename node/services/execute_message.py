"""One message of many operations: sorted by shard into runs, and its answer as it fills.

How runs are carried out is in node/services/executor.py. What can be in one is in
node/services/operation_table.py.
"""

from collections.abc import Awaitable, Iterable, Sequence
from typing import Any

from onelog.errors import InvalidArgument, NotFound, OnelogError, OutcomeUnknown
from onelog.node.edge.operation import Lacking, Read, Room, Write, make_drafts, put_answer
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
from onelog.node.public_errors import error_of_cluster, error_of_exception, put_error
from onelog.node.replica.durability import Durability, refusal_of
from onelog.node.services import queue_operations as queue
from onelog.node.services.execute_appends import answer_appends, take_appends
from onelog.node.services.execute_gets import Wanted, take_gets
from onelog.node.services.execute_puts import add_plain_puts
from onelog.node.services.operation_table import ANSWERS, OPERATIONS
from onelog.node.services.plain import Operation, Run, Singles, of_one_message
from onelog.node.tracing import Span
from onelog.projections.codec import SessionRef
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Result
from onelog.projections.shard_state import Projections
from onelog.v1 import common_pb2, pipeline_pb2

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
