"""Batches (``Transact``): operations of all models, all of them or nothing.

A batch is the entries of its operations behind one that counts them, all in one group. ``BATCHED``
says which operations can be in one; their entries are those of the operations' own calls, except
that plain puts that follow each other are one entry. An operation of many records or messages is
an entry for each. All are in the batch's namespace and session, of which it takes one sequence.

A batch is a call of its own or an operation of a message, where several of them are one proposal.
What it comes to is found out once (``prepare``), since that is most of its work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onelog.node.edge.operation import Write, applied, make_drafts, put_answer
from onelog.node.edge.shards import invalid, namespace_of
from onelog.node.public_errors import error_of_reason
from onelog.node.services import kv
from onelog.node.services import queue_operations as queue
from onelog.node.services import stream_operations as stream
from onelog.node.services import timeseries as series
from onelog.node.services.plain import Batched, batched_puts
from onelog.projections.codec import SessionRef
from onelog.projections.conditions import Condition
from onelog.projections.limits import BATCH_ENTRIES_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Result
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import encode_batch
from onelog.ual.entry import Draft
from onelog.ual.routing import routing_keys
from onelog.v1 import pipeline_pb2

# Which writes can be part of a batch, by their names in the proto.
BATCHED: Mapping[str, Write[Any, Any]] = {
    "put": kv.PUT,
    "delete": kv.DELETE,
    "touch": kv.TOUCH,
    "count": kv.COUNT,
    "append": kv.APPEND,
    "set_json": kv.SET_JSON,
    "enqueue": queue.ENQUEUE,
    "ack": queue.ACK,
    "nack": queue.NACK,
    "append_records": stream.APPEND_RECORDS,
    "ack_records": stream.ACK_RECORDS,
    "commit_offsets": stream.COMMIT_OFFSETS,
    "write_points": series.WRITE_POINTS,
}

Part = tuple[str, Any, Write[Any, Any], int]
"""An operation that is no plain put: its name in the proto, its request, what is done about it, and
how many entries it is."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a request comes to, whatever the state."""

    namespace: str
    conditions: Sequence[Condition]
    entries: Sequence[Batched]
    parts: Mapping[int, Part]  # by their positions among the operations
    names: Sequence[bytes]


def prepare(request: pipeline_pb2.TransactRequest) -> Batch:
    """Look through a request; refuses what cannot be a batch."""
    namespace, operations = namespace_of(request.namespace), request.operations
    if not 0 < len(operations) <= BATCH_ENTRIES_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, len(operations))
    conditions = kv.conditions_of(request.conditions)
    names = [condition.key for condition in request.conditions]
    entries = batched_puts(operations, namespace, names)
    parts: dict[int, Part] = {}
    position = 0
    for draft, count in entries:
        if draft is None:
            parts[position] = _part_of(position, operations[position])
        position += count
    width = position - len(parts)  # of puts
    for _, part, write, part_width in parts.values():
        names.extend(write.names(part))
        width += part_width
    if width > BATCH_ENTRIES_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, width)
    return Batch(namespace, conditions, entries, parts, names)


def _part_of(position: int, operation: pipeline_pb2.TransactOperation) -> Part:
    kind = operation.WhichOneof("operation") or ""
    write = BATCHED.get(kind)
    if write is None:
        raise invalid("OPERATION_MISSING", f"operation {position} cannot be in a batch")
    part = getattr(operation, kind)
    return kind, part, write, write.width(part)


def _drafts(
    state: Projections, batch: Batch, namespace: str, session: SessionRef | None
) -> Sequence[Draft]:
    drafts: list[Draft] = []
    parts = iter(batch.parts.items())
    for puts, _ in batch.entries:
        if puts is not None:
            drafts.append(puts)
            continue
        position, (_, part, write, width) = next(parts)
        made = make_drafts(write, state, part, namespace, None)
        if len(made) != width:
            raise invalid("BATCH_INVALID", f"operation {position} is {len(made)} entries")
        drafts += made
    return encode_batch(drafts, batch.conditions, namespace, session)


def _answer(
    state: Projections,
    batch: Batch,
    answer: pipeline_pb2.TransactResponse,
    outcome: Sequence[Result],
    _index: int,
) -> None:
    """Put a result for each operation into the answer; raises why the batch was refused."""
    results = applied(outcome[0]).results
    # For puts that go together, and for each other operation: how many it is, and its entries.
    spans = [(count, 1) for _, count in batch.entries]
    if any(part[3] != 1 for part in batch.parts.values()):
        spans = _with_widths(batch)
    if len(results) != sum(width for _, width in spans):
        # A repetition, whose session has results from when each put was an entry of its own.
        spans = [(1, 1)] * len(results)
    shard, index, position, at = answer.header.shard, answer.header.index + 1, 0, 0
    for count, width in spans:
        if position in batch.parts:
            kind, part, write, _ = batch.parts[position]
            target = getattr(answer.results.add(), queue.ANSWERS.get(kind, kind))
            put_answer(write, state, part, target, shard, index, results[at : at + width])
        else:
            # All alike, and to read them takes a tenth of the time that it takes to make them.
            one = pipeline_pb2.TransactResponse()
            header = one.results.add().put.header
            header.shard, header.index = shard, index
            answer.MergeFromString(one.SerializeToString() * count)
        position += count
        at += width
        index += width


def _with_widths(batch: Batch) -> list[tuple[int, int]]:
    widths = iter(part[3] for part in batch.parts.values())
    return [(count, 1 if puts is not None else next(widths)) for puts, count in batch.entries]


# Some of its parts may need the state, so that all is made where the shard is led.
TRANSACT = Write(
    pipeline_pb2.TransactResponse,
    lambda batch: list(routing_keys(batch.names)),
    _drafts,
    _answer,
    needs_state=True,
    prepare=prepare,
)
