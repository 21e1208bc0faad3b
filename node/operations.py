"""Operations of the data models, each described once: for its own call, for pipelines, for batches.

A ``Write`` says which names it concerns, which entries it becomes, and what its results mean for
the answer. A ``Read`` says which names it concerns and what to look up. Everything else (where,
deadlines, sessions, headers, refusals, forwarding) is the same for all and is here or in the edge.

``drafts`` refuses what is wrong whatever the state, by raising; nothing was written then. To find
the same things wrong as apply would, it reads back what it has encoded (``checked``).
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from node.calls import Call
from node.edge import (
    Edge,
    View,
    Written,
    namespace_of,
    read_options,
    session_of,
    write_options,
)
from node.status_mapping import error_of_refusal
from onelog.v1 import common_pb2
from projections.payload import SessionRef
from projections.result import Applied, Duplicate, Refused, Result
from ual.entry import Draft

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True, slots=True)
class Write(Generic[RequestT, ResponseT]):
    """An operation that is entries in the log of one shard."""

    response: type[ResponseT]
    # The keys or names that say in which shard it is; all must say the same.
    names: Callable[[RequestT], Sequence[bytes]]
    # Its entries. With a session there is exactly one, which carries it.
    drafts: Callable[[RequestT, str, SessionRef | None], Sequence[Draft]]
    # Puts what its entries returned into the answer; the header is there already.
    answer: Callable[[RequestT, ResponseT, Sequence[Result], int], None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class Read(Generic[RequestT, ResponseT]):
    """An operation that looks at the state of one shard."""

    response: type[ResponseT]
    names: Callable[[RequestT], Sequence[bytes]]
    # Looks up what is asked for and puts it into the answer; the header is there already. A read
    # that takes long returns what to wait for, and says in the header which index it has read.
    look: Callable[[View, str, RequestT, ResponseT], Awaitable[None] | None]


def applied(result: Result) -> Applied:
    """Return what an entry returned; raise why it was refused."""
    first: Any = result.first if isinstance(result, Duplicate) else result
    if isinstance(first, Refused):
        raise error_of_refusal(first)
    assert isinstance(first, Applied), first
    return first


def put_header(header: common_pb2.WriteHeader, shard: int, index: int, result: Result) -> None:
    """Say where a write stands: a repeated one stands where it stood the first time."""
    header.shard = shard
    if isinstance(result, Duplicate):
        header.index = result.index
        header.duplicate = True
    else:
        header.index = index


def put_answer(
    write: Write[Any, Any],
    request: Any,
    answer: Any,
    shard: int,
    index: int,
    results: Sequence[Result],
) -> None:
    """Fill in the answer to a write whose first entry has this index; raise if it was refused."""
    if len(results) == 1:
        applied(results[0])
    put_header(answer.header, shard, index, results[0])
    write.answer(request, answer, results, index)


async def run_write(
    edge: Edge, write: Write[RequestT, ResponseT], request: RequestT, call: Call
) -> ResponseT:
    """Carry out a write that came as a call of its own."""
    message: Any = request
    options = write_options(message)
    shard = edge.shard_of_all(write.names(request))
    drafts = write.drafts(request, namespace_of(message.namespace), session_of(options))
    written = await edge.write(shard, drafts, options, call)
    return answer_of(write, request, written)


def answer_of(write: Write[RequestT, ResponseT], request: RequestT, written: Written) -> ResponseT:
    """Return the answer to a write that was done."""
    answer: Any = write.response()
    put_answer(write, request, answer, written.shard, written.first_index, written.results)
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)
    found: ResponseT = answer
    return found


async def run_read(
    edge: Edge, read: Read[RequestT, ResponseT], request: RequestT, call: Call
) -> ResponseT:
    """Carry out a read that came as a call of its own."""
    message: Any = request
    namespace = namespace_of(message.namespace)
    shard = edge.shard_of_all(read.names(request))
    view = await edge.read(shard, read_options(message), call)
    answer: Any = read.response()
    view.header(answer.header)
    pending = read.look(view, namespace, request, answer)
    if pending is not None:
        await pending
    found: ResponseT = answer
    return found
