"""Batches (``Transact``): operations of all models, all of them or nothing.

A batch is the entries of its operations behind one that counts them, all in one group. ``BATCHED``
says which operations can be in one; their entries are those of the operations' own calls. All of
them are in the batch's namespace and session.
"""

from collections.abc import Mapping
from typing import Any

from node.calls import Call
from node.edge import Edge, Written, invalid, namespace_of, session_of, write_options
from node.operations import Write, applied, make_drafts, put_answer, put_header
from node.services import kv_operations as kv
from node.services.execute_message import ANSWERS, OPERATIONS
from node.services.execute_puts import batched_puts
from node.status_mapping import error_of_reason
from onelog.v1 import pipeline_pb2
from projections.limits import BATCH_ENTRIES_MAX
from projections.reasons import Reason
from projections.system_commands import encode_batch
from projections.table import Projections
from ual.entry import Draft

# Which writes can be part of a batch, by their names in the proto.
BATCHED = frozenset(
    ("put", "delete", "touch", "count", "append", "set_json", "enqueue", "ack", "nack",
     "append_records", "ack_records", "commit_offsets", "write_points")
)  # fmt: skip

Part = tuple[str, Any, Write[Any, Any]]
"""An operation that is no plain put: its name in the proto, its request, what is done about it."""


async def transact(
    edge: Edge, request: pipeline_pb2.TransactRequest, call: Call
) -> pipeline_pb2.TransactResponse:
    """Carry out a batch, all of it or nothing."""
    options, namespace = write_options(request), namespace_of(request.namespace)
    operations = request.operations
    if not 0 < len(operations) <= BATCH_ENTRIES_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, len(operations))
    conditions = kv.conditions_of(request.conditions)
    names = {condition.key for condition in request.conditions}
    puts = batched_puts(operations, namespace, names)
    parts = {
        position: _part_of(position, operations[position])
        for position, draft in enumerate(puts)
        if draft is None
    }
    for _, part, write in parts.values():
        names.update(write.names(part))
    shard = edge.shard_of_all(list(names))

    def make(state: Projections | None, _is_certain: bool = True) -> list[Draft]:  # noqa: FBT001, FBT002
        def draft_of(position: int) -> Draft:
            _, part, write = parts[position]
            made = make_drafts(write, state, part, namespace, None)
            if len(made) != 1:
                raise invalid("BATCH_INVALID", f"operation {position} is {len(made)} entries")
            return made[0]

        return [draft or draft_of(position) for position, draft in enumerate(puts)]

    if any(write.needs_state for _, _, write in parts.values()):
        drafts = await edge.bind(shard, call, make)
    else:
        drafts = make(None)
    batch = encode_batch(drafts, conditions, namespace, session_of(options))
    written = await edge.write(shard, batch, options, call)
    return _answer_of(written, parts, edge.replica(shard).shard.projections)


def _part_of(position: int, operation: pipeline_pb2.TransactOperation) -> Part:
    kind = operation.WhichOneof("operation") or ""
    write = OPERATIONS.get(kind)
    if kind not in BATCHED or not isinstance(write, Write):
        raise invalid("OPERATION_MISSING", f"operation {position} cannot be in a batch")
    return kind, getattr(operation, kind), write


def _answer_of(
    written: Written, parts: Mapping[int, Part], state: Projections
) -> pipeline_pb2.TransactResponse:
    """Return the answer to a batch; raises why it was refused."""
    head, shard = written.results[0], written.shard
    results = applied(head).results
    answer = pipeline_pb2.TransactResponse()
    put_header(answer.header, shard, written.first_index, head)
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)
    index = answer.header.index
    add = answer.results.add
    for position, result in enumerate(results):
        index += 1
        if position in parts:
            kind, part, write = parts[position]
            target = getattr(add(), ANSWERS.get(kind, kind))
            put_answer(write, state, part, target, shard, index, (result,))
        else:
            header = add().put.header
            header.shard, header.index = shard, index
    return answer
