"""Many operations in one message: the fast path of the API.

The operations of a message are sorted by shard, in order, and what can go together does: writes of
one durability that follow each other are one proposal, reads that follow each other and want the
same are one read. A plain put is most of what there is, so it has a way of its own
(node/services/execute_puts.py), and enqueues of single messages go together
(node/services/plain.py).

A message is answered when all of it is done: a read that may take long, because it waits for an
index or asks for the past, is better off in a call of its own.

Measured (bench/service.py; a message of 1,000 puts, keys of 16 and values of 100 bytes): 3.6 µs of
CPU per put, of which 2.8 make the entry, 0.7 the answer, and 0.1 is protobuf's own work. In a
session it is the same.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from onelog.node.edge.calls import NOTHING_DONE, Call, gather
from onelog.node.edge.forwarding import Elsewhere
from onelog.node.edge.operation import Lacking, Room, put_content
from onelog.node.edge.shards import (
    Edge,
    invalid,
    read_options,
)
from onelog.node.public_errors import error_of_exception, error_of_reason, put_error
from onelog.node.replica.durability import Received
from onelog.node.replica.requests import Results
from onelog.node.services.execute_gets import answer_gets
from onelog.node.services.execute_message import Message
from onelog.node.services.plain import Operation, Run
from onelog.node.tracing import COMMIT, with_parent
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED
from onelog.status import error_of_result
from onelog.v1 import common_pb2, pipeline_pb2

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
            await self._edge.calls.somewhere(call, attempt, forward)
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
