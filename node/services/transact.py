"""Batches (``Transact``): operations of all models, all of them or nothing.

A batch is the entries of its operations behind one that counts them, all in one group. Which
operations can be in one says the proto (``TransactOperation``). Their entries are those of the
operations' own calls, except that puts without options that follow each other are one entry, and
have one version. All are in the batch's namespace and session, of which it takes one sequence.

A batch is a call of its own or an operation of a pipeline message, where several of them are one
proposal. What it comes to is found out once (``prepare``), since that is most of its work.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, pairwise
from operator import attrgetter, itemgetter, methodcaller
from typing import Any

from onelog.errors import OnelogError
from onelog.node.edge.operation import Write, applied, fill_answers, result_field
from onelog.node.edge.shards import invalid, parse_namespace
from onelog.node.public_errors import error_of_bounds, error_of_refusal
from onelog.node.services import kv
from onelog.node.services import queue_operations as queue
from onelog.node.services import stream_operations as stream
from onelog.node.services import timeseries as series
from onelog.projections.codec import SessionRef, count_sessions, encode_prefix
from onelog.projections.conditions import Condition
from onelog.projections.kv.commands import TYPE_PUT, PutMany, encode_command
from onelog.projections.limits import BATCH_ENTRIES_MAX, PUT_MANY_KEYS_MAX
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.system.commands import encode_batch
from onelog.ual.entry import Draft
from onelog.v1 import pipeline_pb2

# All operations of a batch may be puts that go together.
assert BATCH_ENTRIES_MAX <= PUT_MANY_KEYS_MAX


def _batched() -> Mapping[str, Write[Any, Any]]:
    """Return the writes that can be part of a batch, by their names in the proto."""
    known = {**kv.OPERATIONS, **queue.OPERATIONS, **stream.OPERATIONS, **series.OPERATIONS}
    oneof = pipeline_pb2.TransactOperation.DESCRIPTOR.oneofs_by_name["operation"]
    found = {}
    for field in oneof.fields:
        write = known[field.name]
        assert isinstance(write, Write), field.name
        found[field.name] = write
    return found


BATCHED = _batched()
_kind = methodcaller("WhichOneof", "operation")


@dataclass(frozen=True, slots=True)
class Part:
    """Operations of one kind that follow each other."""

    write: Write[Any, Any]
    requests: Sequence[Any]
    # How many entries each operation is.
    counts: Sequence[int]
    # Of puts: the entries, and how many operations each of them is.
    puts: Sequence[tuple[Draft, int]] = ()

    @property
    def entry_count(self) -> int:
        """How many entries these operations are."""
        return len(self.puts) or sum(self.counts)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a request comes to, whatever the state."""

    conditions: Sequence[Condition]
    parts: Sequence[Part]
    names: Sequence[bytes]
    by_shard: bool = False

    @property
    def entry_count(self) -> int:
        """How many entries these operations are."""
        return sum(part.entry_count for part in self.parts)


def prepare(request: pipeline_pb2.TransactRequest) -> Batch:
    """Look through a request; refuses what cannot be a batch."""
    namespace, operations = parse_namespace(request.namespace), request.operations
    if not 0 < len(operations) <= BATCH_ENTRIES_MAX:
        what = "the number of operations"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, len(operations), BATCH_ENTRIES_MAX)
    conditions = kv.parse_conditions(request.conditions)
    names = [condition.key for condition in request.conditions]
    parts = []
    width = position = 0
    for kind, group in groupby(operations, _kind):
        write = BATCHED.get(kind)
        if write is None:
            raise invalid(
                "OPERATION_MISSING",
                f"operation {position}, counted from 0, is of no kind that a transaction takes",
            )
        requests = list(map(attrgetter(kind), group))
        counts = [1] * len(requests) if write.counts is None else write.counts(requests)
        names += chain.from_iterable(write.names(requests))
        puts = _merge_puts(requests, namespace) if write is kv.PUT else ()
        parts.append(Part(write, requests, counts, puts))
        width += sum(counts)
        position += len(requests)
    if width > BATCH_ENTRIES_MAX:
        what = "the number of operations, records and messages"
        raise error_of_bounds(Reason.LIMIT_INVALID, what, width, BATCH_ENTRIES_MAX)
    return Batch(conditions, parts, names, request.by_shard)


def _merge_puts(requests: Sequence[Any], namespace: str) -> list[tuple[Draft, int]]:
    """Return the entries of puts, and how many puts each of them is.

    Puts of one entry have one version, which is why a key that comes again begins a new entry: it
    keeps both.
    """
    heads, keys, values = kv.put_fields(requests)
    bodies = tuple(map(b"".join, zip(heads, keys, values, strict=True)))
    starts = [0]
    # Mostly each key comes once and no put has options.
    if len(set(keys)) < len(keys) or any(map(itemgetter(0), heads)):
        starts = _find_starts(heads, keys)
    return [
        (_put_entry(bodies[start:end], namespace), end - start)
        for start, end in pairwise([*starts, len(bodies)])
        if end > start
    ]


def _find_starts(heads: Sequence[bytes], keys: Sequence[bytes]) -> list[int]:
    """Return where entries of puts begin."""
    starts = [0]
    seen: set[bytes] = set()
    for number, (head, key) in enumerate(zip(heads, keys, strict=True)):
        has_options = head[0] != 0
        if key in seen or has_options:
            starts.append(number)
            seen.clear()
        if has_options:
            starts.append(number + 1)
        else:
            seen.add(key)
    return starts


def _put_entry(bodies: tuple[bytes, ...], namespace: str) -> Draft:
    if len(bodies) > 1:
        return encode_command(PutMany(bodies), namespace)
    return Draft(TYPE_PUT, encode_prefix(namespace) + bodies[0])


def _drafts(
    state: Projections, batches: Sequence[Batch], namespace: str, session: SessionRef | None
) -> list[Draft]:
    drafts: list[Draft] = []
    for batch, each in zip(batches, count_sessions(session), strict=False):
        entries: list[Draft] = []
        for part in batch.parts:
            if part.puts:
                entries += [draft for draft, _ in part.puts]
            else:
                entries += part.write.drafts(state, part.requests, namespace, None)
        assert len(entries) == batch.entry_count, (len(entries), batch.entry_count)
        drafts += encode_batch(entries, batch.conditions, namespace, each)
    return drafts


def _answer(
    state: Projections,
    batches: Sequence[Batch],
    answers: Sequence[pipeline_pb2.TransactResponse],
    results: Sequence[Result],
    _indexes: Sequence[int],
) -> None:
    """Put a result for each operation into the answers; a batch's first entry has them all."""
    at = 0
    for batch, answer in zip(batches, answers, strict=True):
        _answer_batch(state, batch, answer, applied(results[at]).results)
        at += 1 + batch.entry_count


def _answer_batch(
    state: Projections,
    batch: Batch,
    answer: pipeline_pb2.TransactResponse,
    results: Sequence[Result],
) -> None:
    shard, first_index = answer.header.shard, answer.header.index + 1
    index = first_index
    # A repetition may have the results of a server that did not merge puts.
    are_merged = len(results) == batch.entry_count
    for part in batch.parts:
        field = result_field(part.write.response)
        if part.puts:
            for count in [count for _, count in part.puts] if are_merged else part.counts:
                # All alike, and to read them takes a tenth of the time that it takes to make them.
                one = pipeline_pb2.TransactResponse()
                header = one.results.add().put.header
                header.shard, header.index = shard, index
                answer.MergeFromString(one.SerializeToString() * count)
                index += 1
        else:
            targets = [getattr(answer.results.add(), field) for _ in part.requests]
            at = index - first_index
            some = results[at : at + part.entry_count]
            fill_answers(part.write, state, part.requests, targets, shard, index, some)
            index += part.entry_count


def _to_error(_state: Projections, refused: Refused) -> OnelogError:
    """Return why a batch was refused: one that has conditions counts them."""
    error = error_of_refusal(refused)
    if refused.reason is Reason.CONDITION_FAILED:
        error.message = f"condition {refused.detail}, counted from 0, does not hold"
    return error


# Some of its parts may need the state, so that all is made where the shard is led.
TRANSACT: Write[Batch, pipeline_pb2.TransactResponse] = Write(
    pipeline_pb2.TransactResponse,
    lambda batches: [batch.names for batch in batches],
    _drafts,
    _answer,
    needs_state=True,
    counts=lambda batches: [1 + batch.entry_count for batch in batches],
    is_refused_by=lambda _: True,
    error_of=_to_error,
    takes_one_sequence=True,
    prepare=prepare,
    returns_data=True,
    by_shard=attrgetter("by_shard"),
)
