"""Many operations in one message: the fast path of the API.

The operations of a message are sorted by shard, in order, and what can go together does: writes of
one durability that follow each other are one proposal, reads that follow each other one read. A
plain put is most of what there is, so it has a way of its own (node/services/execute_puts.py), and
enqueues of single messages go together (node/services/execute_runs.py).

Measured (bench/service.py; a message of 1,000 puts, keys of 16 and values of 100 bytes): 3.6 µs of
CPU per put, of which 2.8 make the entry, 0.7 the answer, and 0.1 is protobuf's own work. In a
session it is the same.
"""

from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any

from node.calls import NOTHING_DONE, Call, gather
from node.durability import Durability, Received
from node.edge import (
    Edge,
    check_session,
    durability_of,
    invalid,
    namespace_of,
    read_options,
    session_of,
    write_options,
)
from node.forwarding import Elsewhere
from node.operations import Lacking, Read, Room, Write, make_drafts, put_answer, put_content
from node.queue_requests import message_drafts
from node.requests import Results
from node.services import kv_operations as kv
from node.services import queue_operations as queue
from node.services import timeseries_operations as series
from node.services.execute_puts import add_plain_puts
from node.services.execute_runs import Enqueues, Operation, Run
from node.status_mapping import error_of_exception, error_of_reason, put_error
from onelog.errors import InvalidArgument, NotFound, OnelogError
from onelog.status import error_of_result
from onelog.v1 import common_pb2, pipeline_pb2
from projections.payload import SessionRef
from projections.reasons import Reason
from projections.result import APPLIED, Result
from projections.table import Projections

OPERATIONS_MAX = 10_000

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
    **queue.OPERATIONS,
    "write_points": series.WRITE_POINTS,
    "query": series.QUERY,
}
ANSWERS: Mapping[str, str] = {
    "ack": "settle",
    "nack": "settle",
    "extend": "settle",
    "release": "settle",
}

EXECUTE_METHOD = "/onelog.v1.Pipeline/ExecuteOnce"


class Executor:
    """Carries out messages of operations."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def execute(
        self, request: pipeline_pb2.ExecuteRequest, call: Call
    ) -> pipeline_pb2.ExecuteResponse:
        """Return the answer to a message, with a result or an error for each operation."""
        if len(request.operations) > OPERATIONS_MAX:
            raise error_of_reason(Reason.LIMIT_INVALID, len(request.operations))
        message = _Message(self._edge, request)
        message.room = Room(self._edge)
        message.size = request.ByteSize()
        message.sort()
        shards = message.shards
        if len(shards) == 1:
            ((shard, runs),) = shards.items()
            await self._run_shard(message, shard, runs, call)
        elif shards:
            await gather(
                *(self._run_shard(message, shard, runs, call) for shard, runs in shards.items())
            )
        return message.answer

    async def _run_shard(
        self, message: "_Message", shard: int, runs: list[Run], call: Call
    ) -> None:
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
            await self._edge.calls.somewhere(call, attempt, forward)
        except Exception as error:  # noqa: BLE001 - concerns this shard, not the others
            for run in left:
                message.refuse(run, error_of_exception(error))

    async def _write(self, message: "_Message", shard: int, run: Run, call: Call) -> None:
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
        outcome = await driver.propose(run.drafts, call.deadline_s, run.durability)
        lacking: Sequence[Lacking] = ()
        state = driver.shard.projections
        if isinstance(outcome, Results):
            lacking = message.fill(shard, run, state, outcome, outcome.first_index)
        elif isinstance(outcome, Received):
            results = [APPLIED] * len(run.drafts)
            message.fill(shard, run, state, results, outcome.first_index)
        else:
            raise self._edge.failure(shard, outcome)
        if lacking:
            await put_content(self._edge, shard, lacking, call, message.room)

    async def _read(self, message: "_Message", shard: int, run: Run, call: Call) -> None:
        """One read for all: as fresh as the most demanding one needs it."""
        wanted = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE)
        for operation in run.operations:
            options = read_options(operation.request)
            wanted.min_index = max(wanted.min_index, options.min_index)
            if options.level != common_pb2.READ_LEVEL_STALE:
                wanted.level = common_pb2.READ_LEVEL_LINEARIZABLE
            elif options.max_staleness_ms:
                least = wanted.max_staleness_ms or options.max_staleness_ms
                wanted.max_staleness_ms = min(least, options.max_staleness_ms)
        if wanted.level == common_pb2.READ_LEVEL_LINEARIZABLE:
            wanted.max_staleness_ms = 0
        view = await self._edge.read(shard, wanted, call)
        for target, pending in message.look(view, run):
            try:
                await pending
            except Exception as error:  # noqa: BLE001 - concerns this operation
                put_error(target.error, error_of_exception(error))

    async def _forward(
        self, message: "_Message", runs: Iterable[Run], elsewhere: Elsewhere, call: Call
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
        data = await self._edge.calls.forward(forwarded, elsewhere, part)
        results = pipeline_pb2.ExecuteResponse.FromString(data).results
        if all(result.error.reason in NOTHING_DONE for result in results):
            raise error_of_result(results[0].error)  # it was the leader and is not any more
        for position, result in zip(positions, results, strict=True):
            message.results[position].CopyFrom(result)


class _Message:
    """A message on its way: its operations by shard, and the answer as it fills."""

    def __init__(self, edge: Edge, request: pipeline_pb2.ExecuteRequest) -> None:
        self._edge = edge
        self._request = request
        self.answer = pipeline_pb2.ExecuteResponse(request_id=request.request_id)
        add = self.answer.results.add
        self.results = [add() for _ in request.operations]
        self.shards: dict[int, list[Run]] = {}
        self.size = 0
        self.room: Room | None = None
        self._enqueues: Enqueues | None = None  # that the next one may join
        self._session: SessionRef | None = None

    def sort(self) -> None:
        """Make entries of the writes and sort everything by shard."""
        if self._request.HasField("session"):
            self._session = check_session(self._request.session)
        left = add_plain_puts(self._edge, self._request, self._session, self.shards)
        if left is not None:
            self._sort_slowly(left)
        if self._session is not None:
            self._refuse_several_shards()

    def _sort_slowly(self, positions: range) -> None:
        """Sort operations of any kind."""
        operations = self._request.operations
        # Everything before the first of these is a put, and so is a write.
        sequence = 0 if self._session is None else self._session.sequence + positions.start
        for position in positions:
            operation = operations[position]
            kind = operation.WhichOneof("operation")
            entry = OPERATIONS.get(kind or "")
            session = None
            if self._session is not None and isinstance(entry, Write):
                session = self._session._replace(sequence=sequence)
                sequence += entry.width(getattr(operation, str(kind)))
            if kind == "enqueue" and self._add_enqueue(position, operation.enqueue, session):
                continue
            try:
                self._add(position, str(kind), entry, operation, session)
            except Exception as error:  # noqa: BLE001 - concerns this operation, not the others
                put_error(self.results[position].error, error_of_exception(error))

    def _add_enqueue(self, position: int, request: Any, session: SessionRef | None) -> bool:
        """Add an enqueue of one message to those before it, if that is all there is to it.

        Nothing is in between, so in a session their numbers follow each other.
        """
        if request.HasField("options") or len(request.messages) != 1:
            return False
        namespace, name = request.namespace, request.queue
        last = self._enqueues
        if last is None or name != last.queue or namespace != last.namespace:
            try:
                shard = self._edge.shard_of_all(queue.ENQUEUE.names(request))
            except OnelogError:
                return False
            run = self._run(shard, Durability.SYNC, is_plain=True)
            last = self._enqueues = Enqueues(namespace, name, session)
            run.enqueues.append(last)
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
        self._enqueues = None
        if entry is None:
            raise invalid("OPERATION_MISSING", f"nothing is done about {kind!r} here")
        request = getattr(operation, kind)
        shard = self._edge.shard_of_all(entry.names(request))
        namespace = namespace_of(request.namespace)
        if isinstance(entry, Read):
            run = self._run(shard, None)
            run.operations.append(Operation(position, kind, request))
            return
        options = write_options(request)
        durability, session = durability_of(options), session or session_of(options)
        drafts: Sequence[Any] = ()
        if not entry.needs_state:
            drafts = make_drafts(entry, None, request, namespace, session)
        run = self._run(shard, durability)
        run.needs_state |= entry.needs_state
        run.operations.append(
            Operation(position, kind, request, session, len(run.drafts), len(drafts))
        )
        run.drafts += drafts

    def bind(self, run: Run, state: Projections, is_certain: bool) -> None:  # noqa: FBT001
        """Make the entries of a run anew, now that the state is there that they need."""
        drafts: list[Any] = []
        try:
            for each in run.enqueues:
                each.at = len(drafts)
                drafts += message_drafts(
                    state, each.queue, each.messages, namespace_of(each.namespace), each.session
                )
        except OnelogError:
            # Of one of them; one by one the others are not concerned.
            run.operations = [
                one for each in run.enqueues for one in each.operations(self._request)
            ]
            run.enqueues, drafts = [], []
        bound: list[Operation] = []
        for operation in run.operations:
            entry, request = OPERATIONS[operation.kind], operation.request
            assert isinstance(entry, Write), operation.kind
            try:
                made = make_drafts(
                    entry,
                    state,
                    request,
                    namespace_of(request.namespace),
                    operation.session,
                    is_first=not drafts,
                )
            except Exception as error:
                if isinstance(error, NotFound) and not is_certain:
                    raise
                put_error(self.results[operation.position].error, error_of_exception(error))
                continue
            operation.at, operation.count = len(drafts), len(made)
            bound.append(operation)
            drafts += made
        run.operations, run.drafts = bound, drafts

    def _run(self, shard: int, durability: Durability | None, *, is_plain: bool = False) -> Run:
        """Return the run that the next operation of a shard belongs to."""
        runs = self.shards.setdefault(shard, [])
        last = runs[-1] if runs else None
        if (
            last is None
            or last.durability is not durability
            or last.puts
            or (last.operations if is_plain else last.enqueues)
        ):
            last = Run(durability)
            runs.append(last)
        return last

    def _refuse_several_shards(self) -> None:
        if len(self.shards) > 1:
            raise InvalidArgument(
                "a session is of one shard; send the operations of each shard apart",
                reason="SEVERAL_SHARDS",
            )

    # Answers

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
        if run.puts:
            index = first_index
            for position, result in zip(run.puts, outcome, strict=True):
                target = results[position]
                if result is APPLIED:
                    header = target.put.header
                    header.index = index
                    if shard:
                        header.shard = shard
                else:
                    self._answer("put", state, None, target, shard, index, (result,), lacking)
                index += 1
            return lacking
        for enqueues in run.enqueues:
            part = outcome[enqueues.at : enqueues.at + len(enqueues.positions)]
            index = first_index + enqueues.at
            for position, refused in enqueues.put_applied(results, shard, index, part):
                at, target = index + refused, results[position]
                self._answer("enqueue", state, None, target, shard, at, (part[refused],), lacking)
        for each in run.operations:
            part, index = outcome[each.at : each.at + each.count], first_index + each.at
            target = results[each.position]
            self._answer(each.kind, state, each.request, target, shard, index, part, lacking)
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
        except Exception as error:  # noqa: BLE001 - concerns this operation, not the others
            put_error(target.error, error_of_exception(error))

    def look(self, view: Any, run: Run) -> list[tuple[Any, Awaitable[None]]]:
        """Put what the reads of a run find into the answer; return those that take longer."""
        longer = []
        for each in run.operations:
            kind, request = each.kind, each.request
            entry, target = OPERATIONS[kind], self.results[each.position]
            assert isinstance(entry, Read), kind
            try:
                options = read_options(request)
                mine = view.for_read(options.as_of_index or None, with_cost=options.with_cost)
                answer = getattr(target, ANSWERS.get(kind, kind))
                mine.header(answer.header)
                pending = entry.look(mine, namespace_of(request.namespace), request, answer)
                if isinstance(pending, Awaitable):
                    longer.append((target, pending))
            except Exception as error:  # noqa: BLE001 - concerns this operation
                put_error(target.error, error_of_exception(error))
        return longer

    def refuse(self, run: Run, error: OnelogError) -> None:
        """Answer all operations of a run with the same error."""
        for position in run.positions:
            put_error(self.results[position].error, error)

    def part(self, runs: Iterable[Run]) -> tuple[Sequence[int], pipeline_pb2.ExecuteRequest]:
        """Return a message of what is left to do, and which operations of this one these are.

        In a session everything belongs to one shard, and numbers count on from the first: then it
        is all that follows, whatever was found wrong in between.
        """
        positions: Sequence[int] = sorted(position for run in runs for position in run.positions)
        part = pipeline_pb2.ExecuteRequest(request_id=self._request.request_id)
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
