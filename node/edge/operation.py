"""Operations of the data models, each described once: for its own call, for pipelines, for batches.

A ``Write`` says which names it concerns, which entries it becomes, and what its results mean for
the answer. A ``Read`` says which names it concerns and what to look up. Everything else (where,
deadlines, sessions, headers, refusals, forwarding) is the same for all and is here or in the edge.

``drafts`` refuses what is wrong whatever the state, by raising; nothing was written then. To find
the same things wrong as apply would, it reads back what it has encoded (``checked``).

Some entries name things by ids that only the state knows (``needs_state``): their drafts are made
where the shard is led, right before they are proposed. Some answers hold what other entries of the
log brought (``Content``): those are read when the results are there, from memory if they are new.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from onelog.errors import OnelogError, ResourceExhausted
from onelog.node.edge.calls import Call
from onelog.node.edge.shards import (
    Edge,
    View,
    Written,
    namespace_of,
    put_log_read,
    read_options,
    session_of,
    write_options,
)
from onelog.node.public_errors import RETRY_BUSY_S, answer_too_large, error_of_refusal
from onelog.node.snapshots.past import Past
from onelog.projections.codec import SessionRef
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft, Entry
from onelog.v1 import common_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


# What a result takes in an answer at least, that of an operation that was refused included.
RESULT_SIZE_MIN = 256


class Room:
    """How much more fits an answer, to one call or to one message of a pipeline.

    Content of other entries fills it up to half of what a message may be; the first that is put in
    always fits, if nothing else is there. Results of a pipeline fill it up to the whole, less what
    the refusals of all its operations would take.
    """

    __slots__ = ("_is_used", "_size_max", "_whole", "is_full", "left")

    def __init__(self, edge: Edge, results: int = 1) -> None:
        limit = edge.context.config.limits.message_bytes_max
        self.left = limit // 2
        self._whole = self._size_max = limit - min(limit // 2, results * RESULT_SIZE_MIN)
        self._is_used = False
        # Something did not fit: what follows need not be looked up to be refused.
        self.is_full = False

    def take(self, size: int) -> bool:
        """Tell whether content of so many bytes fits, and count it if it does."""
        if size > min(self.left, self._whole) and self._is_used:
            return False
        self._use(size)
        return True

    def take_result(self, size: int) -> bool:
        """Tell whether a result of so many bytes fits, and count it if it does."""
        if size > self._whole:
            self.is_full = True
            return False
        self._use(size)
        return True

    def _use(self, size: int) -> None:
        self._is_used = True
        self.left -= size
        self._whole -= size

    def refusal(self, size: int = 0) -> OnelogError:
        """Return what the caller of a read is told whose result of so many bytes does not fit."""
        limit = self._size_max
        if size > limit:
            return answer_too_large(f"an answer of {size} bytes, limit {limit}", limit, size=size)
        return ResourceExhausted(
            "the answer to the message is full; ask again, with less in one message",
            reason="ANSWER_FULL",
            metadata={"limit": str(limit)},
            retry_after_s=RETRY_BUSY_S,
        )


@dataclass(frozen=True, slots=True)
class Content(Generic[RequestT, ResponseT]):
    """What an answer holds of other entries of the log.

    ``put`` is given as many of the entries that the answer lacks as there is room for, in order; it
    cuts the answer behind them and returns the entries that make good for what was cut.
    """

    put: Callable[[Projections, RequestT, ResponseT, Sequence[Entry], Room], Sequence[Draft]]


@dataclass(frozen=True, slots=True)
class Write(Generic[RequestT, ResponseT]):
    """An operation that is entries in the log of one shard."""

    response: type[ResponseT]
    # The keys or names that say in which shard it is; all must say the same.
    names: Callable[[RequestT], Sequence[bytes]]
    # Its entries; the state is given first if it needs it. With a session there are exactly
    # ``width`` of them, which carry its sequences, one after the other.
    drafts: Callable[..., Sequence[Draft]]
    # Puts what its entries returned into the answer; the header is there already. Returns the
    # indexes of the entries that ``content`` puts in.
    answer: Callable[
        [Projections, RequestT, ResponseT, Sequence[Result], int], Sequence[int] | None
    ] = lambda *_: None
    needs_state: bool = False
    # How many sequences of a session it takes; this one alone is asked about the request itself.
    width: Callable[[Any], int] = lambda _: 1
    # Finds out about a request, once, what the others need to know: that is given to them instead.
    prepare: Callable[[Any], RequestT] = lambda request: request
    content: Content[RequestT, ResponseT] | None = None
    # Whether the state tells that nothing would happen: then nothing is written.
    is_idle: Callable[[Projections, RequestT, str, SessionRef | None], bool] | None = None


@dataclass(frozen=True, slots=True)
class Read(Generic[RequestT, ResponseT]):
    """An operation that looks at the state of one shard."""

    response: type[ResponseT]
    names: Callable[[RequestT], Sequence[bytes]]
    # Looks up what is asked for and puts it into the answer; the header is there already. A read
    # that takes long returns what to wait for, and says in the header which index it has read; one
    # whose answer lacks entries returns their indexes, and ``content`` puts them in.
    look: Callable[[View, str, RequestT, ResponseT], Awaitable[None] | Sequence[int] | None]
    content: Content[RequestT, ResponseT] | None = None
    # Whether the live state may still tell what was (``View.as_of``); it is asked first then.
    tells_past: bool = False


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


def make_drafts(
    write: Write[Any, Any],
    state: Projections | None,
    request: Any,
    namespace: str,
    session: SessionRef | None,
    *,
    is_first: bool = True,
) -> Sequence[Draft]:
    """Return the entries of a write; none if nothing would happen.

    That is for the state to tell only of what ``is_first``: what goes before it may change it.
    """
    if not write.needs_state:
        return write.drafts(request, namespace, session)
    assert state is not None
    if is_first and write.is_idle is not None and write.is_idle(state, request, namespace, session):
        return ()
    return write.drafts(state, request, namespace, session)


def put_answer(
    write: Write[Any, Any],
    state: Projections,
    request: Any,
    answer: Any,
    shard: int,
    index: int,
    results: Sequence[Result],
) -> Sequence[int]:
    """Fill in the answer to a write whose first entry has this index; raise if it was refused.

    Returns the indexes of the entries that the answer lacks.
    """
    if not results:
        answer.header.shard = shard
        return ()
    if len(results) == 1:
        applied(results[0])
    put_header(answer.header, shard, index, results[0])
    return write.answer(state, request, answer, results, index) or ()


async def run_write(
    edge: Edge, write: Write[RequestT, ResponseT], request: Any, call: Call
) -> ResponseT:
    """Carry out a write that came as a call of its own."""
    options, namespace = write_options(request), namespace_of(request.namespace)
    session, prepared = session_of(options), write.prepare(request)
    shard = edge.shard_of_all(write.names(prepared))
    if write.needs_state:
        drafts = await edge.bind(
            shard, call, lambda state, _: make_drafts(write, state, prepared, namespace, session)
        )
    else:
        drafts = make_drafts(write, None, prepared, namespace, session)
    written = await edge.write(shard, drafts, options, call)
    return await answer_of(edge, write, prepared, written, call)


async def answer_of(
    edge: Edge,
    write: Write[RequestT, ResponseT],
    request: RequestT,
    written: Written,
    call: Call,
) -> ResponseT:
    """Return the answer to a write that was done."""
    answer: Any = write.response()
    shard = written.shard
    state = edge.replica(shard).shard.projections
    lacking = put_answer(write, state, request, answer, shard, written.first_index, written.results)
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)
    if lacking:
        await put_content(edge, shard, ((write.content, request, answer, lacking),), call)
    found: ResponseT = answer
    return found


async def run_read(
    edge: Edge, read: Read[RequestT, ResponseT], request: RequestT, call: Call
) -> ResponseT:
    """Carry out a read that came as a call of its own."""
    message: Any = request
    namespace = namespace_of(message.namespace)
    shard = edge.shard_of_all(read.names(request))
    options = read_options(message)

    def look(view: View) -> tuple[View, Any, Awaitable[None] | Sequence[int] | None]:
        answer: Any = read.response()
        view.header(answer.header)
        return view, answer, read.look(view, namespace, request, answer)

    if read.tells_past:
        view, answer, rest = await edge.look(shard, options, call, look)
    else:
        view, answer, rest = look(await edge.read(shard, options, call))
    if isinstance(rest, Awaitable):
        await rest
    elif rest:
        lacking = (read.content, request, answer, rest)
        await put_content(edge, shard, (lacking,), call, past=view.held)
    found: ResponseT = answer
    return found


Lacking = tuple[Content[Any, Any] | None, Any, Any, Sequence[int]]
"""An answer that lacks the content of entries: what puts it in, request, answer, which entries."""


async def put_content(
    edge: Edge,
    shard: int,
    answers: Sequence[Lacking],
    call: Call,
    room: Room | None = None,
    past: Past | None = None,
) -> None:
    """Put the content of other entries into answers of the live state, or of the past."""
    room = room or Room(edge)
    # All at once: to read one entry costs little more than to read none.
    wanted = [index for _, _, _, indexes in answers for index in indexes]
    entries = await edge.entries(shard, wanted, max(room.left, 0))
    state = (past or edge.replica(shard).shard).projections
    afterwards: list[Draft] = []
    at = 0
    for content, request, answer, indexes in answers:
        assert content is not None, "an answer lacks what nobody puts in"
        found = entries[at : at + len(indexes)]
        at += len(indexes)
        header = getattr(answer, "header", None)  # what streams send has none
        if found and header is not None and header.HasField("cost"):
            lowest, log = min(indexes[: len(found)]), edge.replica(shard).shard.log
            put_log_read(header.cost, log, len(found), lowest)
        afterwards += content.put(state, request, answer, found, room)
    if afterwards:
        # Whatever becomes of it: it only makes good sooner what time makes good as well.
        await edge.replica(shard).propose(afterwards, call.deadline_s)
