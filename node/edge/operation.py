"""Operations of the data models, each described once: for its own call, for pipelines, for batches.

A ``Write`` says which names it concerns, which entries it becomes, and what their results mean for
the answer. A ``Read`` says which names it concerns and what to look up. Everything else (shards,
deadlines, sessions, headers, refusals, forwarding) is the same for all and is here or in the edge.

Operations work on lists: a call of its own is a list of one request, and a pipeline hands over all
requests of one kind, shard and namespace that follow each other. So there is one loop for each kind
of operation, whichever way it came.

``drafts`` raises for requests that are invalid whatever the state; nothing was written then. To
find the same things wrong as apply would, it decodes what it has encoded (``checked``). A list of
which one is invalid raises as a whole: the caller then tries its requests one by one.

Some entries name things by ids that only the state knows (``needs_state``): their drafts are made
where the shard is led, right before they are proposed. Some answers hold what other entries of the
log brought (``Content``): those are read when the results are there, from memory if they are new.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count
from typing import Any, Generic, TypeVar

from onelog.errors import OnelogError, ResourceExhausted
from onelog.node.edge.calls import Call
from onelog.node.edge.shards import (
    Edge,
    View,
    Written,
    fill_log_read,
    parse_namespace,
    parse_session,
    read_options,
    write_options,
)
from onelog.node.public_errors import RETRY_BUSY_S, answer_too_large, error_of_refusal
from onelog.node.snapshots.past import Past
from onelog.projections.codec import SessionRef, count_sessions
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft, Entry
from onelog.v1 import common_pb2, pipeline_pb2

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")


# What a result takes in an answer at least, that of an operation that was refused included.
RESULT_SIZE_MIN = 256


class AnswerBudget:
    """How much more fits an answer, to one call or to one message of a pipeline.

    Content of other entries fills it up to half of what a message may be; the first that is put in
    always fits, if nothing else is there. Results of a pipeline fill it up to the whole, less what
    the refusals of all its operations would take.
    """

    __slots__ = ("_is_used", "_whole", "is_full", "left", "size_max")

    def __init__(self, edge: Edge, results: int = 1) -> None:
        limit = edge.context.config.limits.message_bytes_max
        self.left = limit // 2
        self._whole = self.size_max = limit - min(limit // 2, results * RESULT_SIZE_MIN)
        self._is_used = False
        # Something did not fit: what follows need not be looked up to be refused.
        self.is_full = False

    def take(self, size: int) -> bool:
        """Tell whether content of this size fits, and count it if it does."""
        if size > min(self.left, self._whole) and self._is_used:
            return False
        self._use(size)
        return True

    def take_result(self, size: int) -> bool:
        """Tell whether a result of this size fits, and count it if it does."""
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
        """Return the error of a read whose result of this size does not fit."""
        limit = self.size_max
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

    ``fill`` is given as many of the entries that the answer lacks as there is room for, in order,
    None for those that cannot be read; it cuts the answer behind them and returns the entries that
    release what the answer has not got. ``wait_s``: how long the answer may wait for a repair, if
    that is bounded by more than the call's deadline.
    """

    fill: Callable[
        [Projections, RequestT, ResponseT, Sequence[Entry | None], AnswerBudget], Sequence[Draft]
    ]
    wait_s: Callable[[Projections, ResponseT], float] | None = None


@dataclass(frozen=True, slots=True)
class Write(Generic[RequestT, ResponseT]):
    """An operation that is entries in the log of one shard.

    All requests of a list have one shard, one namespace, and consecutive sequences of one session.
    """

    response: type[ResponseT]
    # The keys or names that say in which shard each request belongs; all of one must agree.
    names: Callable[[Sequence[Any]], Sequence[Sequence[bytes]]]
    # The entries of requests, in order; the state is None unless ``needs_state``. The session is
    # that of the first entry; each entry that follows takes the next sequence.
    drafts: Callable[[Any, Sequence[RequestT], str, SessionRef | None], list[Draft]]
    # Fills in what the entries of requests returned, with their indexes; headers are there already,
    # and requests that were refused as a whole are left out. Returns for each request the indexes
    # of the entries that ``content`` puts in, if there are any.
    answer: (
        Callable[
            [
                Projections,
                Sequence[RequestT],
                Sequence[ResponseT],
                Sequence[Result],
                Sequence[int],
            ],
            Sequence[Sequence[int]] | None,
        ]
        | None
    ) = None
    needs_state: bool = False
    # How many entries each request is; None: one.
    counts: Callable[[Sequence[RequestT]], list[int]] | None = None
    # Whether the refusal of the first of several entries is that of the request.
    is_refused_by: Callable[[Refused], bool] = lambda _: False
    # All entries of a request share one sequence of a session.
    takes_one_sequence: bool = False
    # Finds out about a request, once, what the others need to know: that is given to them instead.
    prepare: Callable[[Any], RequestT] | None = None
    content: Content[RequestT, ResponseT] | None = None
    # Answers hold what was stored before: their size does not follow from that of the requests.
    returns_data: bool = False
    # The error of a request that was refused when it was applied; the state has names for ids.
    error_of: Callable[[Projections, Refused], OnelogError] = lambda _, refused: error_of_refusal(
        refused
    )
    # Whether the state tells that nothing would happen: then nothing is written.
    is_idle: Callable[[Projections, RequestT, str, SessionRef | None], bool] | None = None
    # What ``names`` are, for people.
    nouns: str = "names"
    # Whether the names of a request need only be in one shard, and not have one tag.
    by_shard: Callable[[Any], bool] | None = None

    def find_shards(self, edge: Edge, requests: Sequence[Any]) -> list[int]:
        """Return the shard of each request."""
        named, by_shard = self.names(requests), self.by_shard
        flags = {False} if by_shard is None else set(map(by_shard, requests))
        if len(flags) < 2:
            return edge.find_shards(named, self.nouns, by_shard=True in flags)
        assert by_shard is not None
        return [
            shard
            for request, names in zip(requests, named, strict=True)
            for shard in edge.find_shards((names,), self.nouns, by_shard=by_shard(request))
        ]

    def widths(self, requests: Sequence[Any]) -> list[int]:
        """Return how many sequences of a session each request takes, valid or not."""
        if self.counts is None or self.takes_one_sequence:
            return [1] * len(requests)
        return [max(1, count) for count in self.counts(requests)]


Look = Callable[[RequestT, ResponseT], Awaitable[None] | Sequence[int] | None]


@dataclass(frozen=True, slots=True)
class Read(Generic[RequestT, ResponseT]):
    """An operation that reads the state of one shard."""

    response: type[ResponseT]
    names: Callable[[Sequence[RequestT]], Sequence[Sequence[bytes]]]
    # Returns what looks up a request in a namespace and fills in the answer; the header is there
    # already. A read that takes long returns what to wait for, and says in the header which index
    # it has read; one whose answer lacks entries returns their indexes, and ``content`` puts them
    # in.
    look: Callable[[View, str], Look[RequestT, ResponseT]]
    content: Content[RequestT, ResponseT] | None = None
    # Whether the live state may still tell what was (``View.as_of``); it is asked first then.
    tells_past: bool = False

    def find_shards(self, edge: Edge, requests: Sequence[Any]) -> list[int]:
        """Return the shard of each request."""
        return edge.find_shards(self.names(requests))


Operations = Mapping[str, Write[Any, Any] | Read[Any, Any]]
"""The operations of a model by the names of their calls, as protos of pipelines have them."""


_RESULT_FIELDS: Mapping[str, str] = {
    field.message_type.full_name: field.name
    for field in pipeline_pb2.OperationResult.DESCRIPTOR.oneofs_by_name["result"].fields
}


def result_field(response: Any) -> str:
    """Return the field of an ``OperationResult`` that holds answers of this type."""
    return _RESULT_FIELDS[response.DESCRIPTOR.full_name]


def applied(result: Result) -> Applied:
    """Return what an entry returned; raise why it was refused."""
    first: Any = result.first if isinstance(result, Duplicate) else result
    if isinstance(first, Refused):
        raise error_of_refusal(first)
    assert isinstance(first, Applied), first
    return first


def fill_header(header: common_pb2.WriteHeader, shard: int, index: int, result: Result) -> None:
    """Set shard and index of a write; a repeated one has the index of the first time."""
    header.shard = shard
    if isinstance(result, Duplicate):
        header.index = result.index
        header.duplicate = True
    else:
        header.index = index


def fill_answers(
    write: Write[Any, Any],
    state: Projections,
    requests: Sequence[Any],
    answers: Sequence[Any],
    shard: int,
    first_index: int,
    results: Sequence[Result],
) -> tuple[Mapping[int, OnelogError], Sequence[Sequence[int]] | None]:
    """Fill in the answers to writes; the first of their entries has ``first_index``.

    Returns why some were refused, by their number in the list, and for each of the others the
    indexes of the entries that its answer lacks.
    """
    indexes: Sequence[int] = range(first_index, first_index + len(results))
    firsts, first_indexes, counts = results, indexes, None
    if len(results) != len(requests):
        assert write.counts is not None, (len(requests), len(results))
        counts = write.counts(requests)
        starts = [0, *accumulate(counts)]
        assert starts.pop() == len(results), (counts, len(results))
        firsts = [results[start] for start in starts]
        first_indexes = [first_index + start for start in starts]
    refused: dict[int, OnelogError] = {}
    written = zip(count(), answers, firsts, first_indexes, strict=False)
    for number, answer, result, index in written:
        if type(result) is Applied:
            header = answer.header
            header.index = index
            if shard:
                header.shard = shard
        elif (
            error := _refusal(write, state, result, 1 if counts is None else counts[number])
        ) is None:
            fill_header(answer.header, shard, index, result)
        else:
            refused[number] = error
    if write.answer is None or len(refused) == len(requests):
        return refused, None
    if refused:
        kept = [number not in refused for number in range(len(requests))]
        requests, answers = list(compress(requests, kept)), list(compress(answers, kept))
        if counts is not None:
            kept = [each for each, width in zip(kept, counts, strict=True) for _ in range(width)]
        results, indexes = list(compress(results, kept)), list(compress(indexes, kept))
    return refused, write.answer(state, requests, answers, results, indexes)


def _refusal(
    write: Write[Any, Any], state: Projections, result: Result, count: int
) -> OnelogError | None:
    """Return why a request was refused, of whose entries this is the first result."""
    first = result.first if isinstance(result, Duplicate) else result
    if isinstance(first, Refused) and (count == 1 or write.is_refused_by(first)):
        return write.error_of(state, first)
    return None


def one_entry_each(
    make: Callable[[Any, RequestT, str, SessionRef | None], Draft],
) -> Callable[[Any, Sequence[RequestT], str, SessionRef | None], list[Draft]]:
    """Return the ``drafts`` of a write that has one entry, which ``make`` returns."""

    def drafts(
        state: Any, requests: Sequence[RequestT], namespace: str, session: SessionRef | None
    ) -> list[Draft]:
        sessions = count_sessions(session)
        return [make(state, request, namespace, next(sessions)) for request in requests]

    return drafts


def answer_each(fill: Callable[[RequestT, ResponseT, Applied], None]) -> Any:
    """Return the ``answer`` of a write that has one entry, whose result ``fill`` fills in."""

    def answer(
        _state: Projections,
        requests: Sequence[RequestT],
        answers: Sequence[ResponseT],
        results: Sequence[Result],
        _indexes: Sequence[int],
    ) -> None:
        for request, each, result in zip(requests, answers, results, strict=True):
            fill(request, each, applied(result))

    return answer


def answer_number(field: str) -> Any:
    """Return the ``answer`` of a write whose entry returns a number that is this field."""
    return answer_each(lambda _, answer, done: setattr(answer, field, done.number))


async def run_write(
    edge: Edge, write: Write[RequestT, ResponseT], request: Any, call: Call
) -> ResponseT:
    """Carry out a write of a unary call."""
    options, namespace = write_options(request), parse_namespace(request.namespace)
    session = parse_session(options)
    prepared = request if write.prepare is None else write.prepare(request)
    requests = (prepared,)
    (shard,) = write.find_shards(edge, requests)

    def make(state: Projections | None, _is_certain: bool) -> list[Draft]:  # noqa: FBT001
        if write.is_idle is not None:
            assert state is not None
            if write.is_idle(state, prepared, namespace, session):
                return []
        return write.drafts(state, requests, namespace, session)

    drafts = await edge.bind(shard, call, make) if write.needs_state else make(None, True)
    written = await edge.write(shard, drafts, options, call)
    return await answer_written(edge, write, prepared, written, call)


async def answer_written(
    edge: Edge,
    write: Write[RequestT, ResponseT],
    request: RequestT,
    written: Written,
    call: Call,
) -> ResponseT:
    """Return the answer to a write that was done; raise if it was refused."""
    answer: Any = write.response()
    shard = written.shard
    if not written.results:
        answer.header.shard = shard
        return answer  # type: ignore[no-any-return]
    state = edge.replica(shard).shard.projections
    refused, lacking = fill_answers(
        write, state, (request,), (answer,), shard, written.first_index, written.results
    )
    if refused:
        raise refused[0]
    if written.cost is not None:
        answer.header.cost.CopyFrom(written.cost)
    if lacking and lacking[0]:
        await fill_content(edge, shard, ((write.content, request, answer, lacking[0]),), call)
    found: ResponseT = answer
    return found


async def run_read(
    edge: Edge, read: Read[RequestT, ResponseT], request: RequestT, call: Call
) -> ResponseT:
    """Carry out a read of a unary call."""
    message: Any = request
    namespace = parse_namespace(message.namespace)
    (shard,) = read.find_shards(edge, (request,))
    options = read_options(message)

    def look(view: View) -> tuple[View, Any, Awaitable[None] | Sequence[int] | None]:
        answer: Any = read.response()
        view.header(answer.header)
        return view, answer, read.look(view, namespace)(request, answer)

    if read.tells_past:
        view, answer, rest = await edge.look(shard, options, call, look)
    else:
        view, answer, rest = look(await edge.read(shard, options, call))
    if isinstance(rest, Awaitable):
        await rest
    elif rest:
        lacking = (read.content, request, answer, rest)
        await fill_content(edge, shard, (lacking,), call, past=view.held)
    found: ResponseT = answer
    return found


Lacking = tuple[Content[Any, Any] | None, Any, Any, Sequence[int]]
"""An answer that lacks the content of entries: what puts it in, request, answer, which entries."""


async def fill_content(
    edge: Edge,
    shard: int,
    answers: Sequence[Lacking],
    call: Call,
    budget: AnswerBudget | None = None,
    past: Past | None = None,
) -> None:
    """Put the content of other entries into answers of the live state, or of the past.

    If nothing can be read, whatever the reason, what was leased is put back: nobody has the tokens,
    and a failure of the server is none of a worker.
    """
    budget = budget or AnswerBudget(edge)
    # All at once: to read one entry costs little more than to read none.
    wanted = [index for _, _, _, indexes in answers for index in indexes]
    try:
        entries, unreadable = await edge.entries(shard, wanted, max(budget.left, 0))
        if unreadable:
            deadline_s = _find_deadline(edge, shard, answers, call)
            while unreadable and await edge.until_repaired(shard, unreadable, deadline_s):
                entries, unreadable = await edge.entries(shard, wanted, max(budget.left, 0))
    except Exception:
        await _fill(edge, shard, answers, (), call, budget, past)
        raise
    await _fill(edge, shard, answers, entries, call, budget, past)


def _find_deadline(edge: Edge, shard: int, answers: Sequence[Lacking], call: Call) -> float:
    """Return when answers have to be there, whatever is repaired by then."""
    now_s, state = edge.context.clock.now_s(), edge.replica(shard).shard.projections
    deadlines_s = [call.deadline_s]
    for content, _, answer, _ in answers:
        if content is not None and content.wait_s is not None:
            deadlines_s.append(now_s + content.wait_s(state, answer))
    return min(deadlines_s)


async def _fill(
    edge: Edge,
    shard: int,
    answers: Sequence[Lacking],
    entries: Sequence[Entry | None],
    call: Call,
    budget: AnswerBudget,
    past: Past | None,
) -> None:
    """Put entries into answers, as far as there are any."""
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
            fill_log_read(header.cost, log, len(found), lowest)
        afterwards += content.fill(state, request, answer, found, budget)
    if afterwards:
        # Whatever its outcome: it only does sooner what time does as well.
        await edge.replica(shard).propose(afterwards, call.deadline_s)
