"""Operations of one message that go together, and those that go together among these.

What can be one proposal or one read is a ``Run``. In it, plain puts and plain appends of records
are positions and drafts; enqueues and acks of one message each are put together by queue, since to
look each of them up alone would cost more than the rest of it; everything else is an ``Operation``.

Execute puts
------------
The plain puts of a message or of a batch: most of what there is, so they have their own way.

Over local names and without a command object in between; anything unusual is left to the ordinary
way. That both ways agree is a test.

Execute gets
------------
Plain gets in messages of many operations: what is read most, and a way of its own for it.

What ``add_plain_puts`` is to puts: over local names and without the
table of operations in between, for all that are to be equally fresh. Whatever is unusual is left to
the long way. That both ways agree is a test.

Execute appends
---------------
Plain appends in messages of many operations: one record each, with a key or without.

What ``add_plain_puts`` is to puts: a way of its own for what
clients that batch send most, over local names and without the table of operations in between.
Whatever is unusual is left to the long way. That both ways agree is a test.

Measured as there: 6 µs of CPU per append in the service layer, where the long way takes 20.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from crc32c import crc32c

from onelog.errors import OnelogError
from onelog.node.edge.messages import put_item
from onelog.node.edge.operation import Room
from onelog.node.edge.shards import Edge, View, namespace_of
from onelog.node.public_errors import error_of_refusal, put_error
from onelog.node.replica.requests import Durability
from onelog.node.services.queue_operations import message_drafts, single_ack_drafts
from onelog.node.services.stream_operations import heads_of
from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.kv.commands import TYPE_PUT, PutMany, encode_command
from onelog.projections.limits import (
    BATCH_ENTRIES_MAX,
    KEY_SIZE_MAX,
    KEYS_RESERVED,
    PUT_MANY_KEYS_MAX,
    VALUE_SIZE_MAX,
)
from onelog.projections.queue.message import ACKED
from onelog.projections.result import APPLIED, Refused, Result
from onelog.projections.shard_state import Projections
from onelog.projections.stream.commands import TYPE_APPEND
from onelog.projections.stream.limits import RECORD_KEY_SIZE_MAX
from onelog.ual.entry import Draft
from onelog.ual.routing import routing_key
from onelog.v1 import pipeline_pb2


@dataclass(slots=True)
class Operation:
    """One operation that is no plain put, and which drafts of its run are its entries."""

    position: int
    kind: str
    request: Any
    session: SessionRef | None = None
    at: int = 0
    count: int = 0


@dataclass(slots=True)
class Singles:
    """Enqueues, or acks, of one message each that follow each other, as if they were one.

    ``kind`` is the name of the operation in the proto.
    """

    kind: str
    namespace: str
    queue: str
    session: SessionRef | None
    positions: list[int] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    at: int = 0

    def drafts(self, state: Projections) -> list[Draft]:
        """Return the entry of each."""
        make = message_drafts if self.kind == "enqueue" else single_ack_drafts
        namespace = namespace_of(self.namespace)
        return make(state, self.queue, self.messages, namespace, self.session)

    def operations(self, request: pipeline_pb2.ExecuteRequest) -> list[Operation]:
        """Return them one by one."""
        found = []
        for number, position in enumerate(self.positions):
            session = self.session
            if session is not None:
                session = session._replace(sequence=session.sequence + number)
            one = getattr(request.operations[position], self.kind)
            found.append(Operation(position, self.kind, one, session))
        return found

    def put_applied(
        self,
        results: Sequence[pipeline_pb2.OperationResult],
        shard: int,
        index: int,
        outcome: Sequence[Result],
    ) -> list[tuple[int, int]]:
        """Answer those that simply took effect, the first at ``index``; return the others.

        Each of these is its position in the message, and its number among these.
        """
        others = []
        is_enqueue = self.kind == "enqueue"
        usual = APPLIED if is_enqueue else ACKED
        answers = zip(self.positions, self.messages, outcome, strict=True)
        for number, (position, message, result) in enumerate(answers):
            if result is not usual:
                others.append((position, number))
                continue
            target = results[position]
            answer: Any = target.enqueue if is_enqueue else target.settle
            answer.header.index = index + number
            if shard:
                answer.header.shard = shard
            message_id = index + number if is_enqueue else message.message_id
            answer.results.add().message_id = message_id
        return others


def of_one_message(kind: str, request: Any) -> bool:
    """Whether an operation can be among ``Singles``."""
    return (
        (kind == "enqueue" or (kind == "ack" and not request.strict))
        and len(request.messages) == 1
        and not request.HasField("options")
    )


@dataclass(slots=True)
class Run:
    """Operations of one shard that go together: one proposal, or one read."""

    durability: Durability | None  # None: reads
    drafts: list[tuple[int, bytes, int]] = field(default_factory=list)
    # Of plain puts, or of plain appends: their positions in the message. The first drafts are
    # theirs, one each.
    puts: list[int] = field(default_factory=list)
    appends: list[int] = field(default_factory=list)
    # Of plain gets: their positions and keys, all of one namespace and to be equally fresh (level,
    # staleness in milliseconds). Nothing else is in the run.
    gets: list[tuple[int, bytes]] = field(default_factory=list)
    namespace: str = ""
    wanted: tuple[int, int] = (0, 0)
    # Of other reads.
    operations: list[Operation] = field(default_factory=list)
    # Of all other writes, in order, behind those; ``is_plain``: there are plain enqueues and acks
    # alone.
    parts: list[Operation | Singles] = field(default_factory=list)
    is_plain: bool = False
    # Positions of those that ask what they cost.
    costed: list[int] = field(default_factory=list)
    # Some entries need the state: all but the plain ones are made when the run is written.
    needs_state: bool = False

    @property
    def plain_count(self) -> int:
        """How many drafts are of plain puts or appends."""
        return len(self.puts) + len(self.appends)

    @property
    def positions(self) -> list[int]:
        """Which operations of the message these are."""
        found = [*self.puts, *self.appends, *(position for position, _ in self.gets)]
        found += [each.position for each in self.operations]
        for part in self.parts:
            if isinstance(part, Singles):
                found += part.positions
            else:
                found.append(part.position)
        return found


# Execute puts

_pack_put_head = struct.Struct("<BH").pack  # no options, size of the key
_pack_session = struct.Struct("<QQQ").pack  # as encode_prefix has it
SESSION_SIZE = 24
_join = b"".join
# All operations of a batch may be puts that go together.
assert BATCH_ENTRIES_MAX <= PUT_MANY_KEYS_MAX

Batched = tuple[Draft | None, int]
"""An entry of a batch, and of how many operations; None in the place of what is no plain put."""


def add_plain_puts(
    edge: Edge,
    request: pipeline_pb2.ExecuteRequest,
    session: SessionRef | None,
    runs: dict[int, list[Run]],
) -> range | None:
    """Take the plain puts from the message's start; return what is left from the first other.

    This loop is what a pipelined put costs before the log.
    """
    partitions, shards = edge.context.topology.partitions, edge.context.topology.shards
    checksum, pack, join = crc32c, _pack_put_head, _join
    key_max, value_max, reserved = KEY_SIZE_MAX, VALUE_SIZE_MAX, KEYS_RESERVED
    prefixes: dict[str, bytes] = {}
    numbers = b""
    if session is not None:
        session_id, sequence, first = session
        pack_session = _pack_session
    targets: dict[int, tuple[Any, Any]] = {}
    for position, operation in enumerate(request.operations):
        put = operation.put  # empty, if it is another operation
        key, value = put.key, put.value
        name = put.namespace
        prefix = prefixes.get(name)
        if prefix is None:
            try:
                prefix = encode_prefix(namespace_of(name), session)
            except OnelogError:
                return range(position, len(request.operations))
            if session is not None:
                prefix = prefix[:-SESSION_SIZE]  # of each put its own follows
            prefixes[name] = prefix
        size = len(key)
        if (
            put.ttl_ms
            or put.lease_id
            or not 0 < size <= key_max
            or len(value) > value_max
            or put.HasField("expected_version")
            or put.HasField("options")
            or key.startswith(reserved)
        ):
            return range(position, len(request.operations))
        tag = routing_key(key) if b"{" in key else key
        shard = checksum(tag) % partitions % shards
        target = targets.get(shard)
        if target is None:
            run = Run(Durability.SYNC)
            runs[shard] = [run]
            target = targets[shard] = run.drafts.append, run.puts.append
        if session is not None:
            numbers = pack_session(session_id, sequence + position, first)
        target[0]((TYPE_PUT, join((prefix, numbers, pack(0, size), key, value)), 0))
        target[1](position)
    return None


def batched_puts(
    operations: Sequence[pipeline_pb2.TransactOperation], namespace: str, names: list[bytes]
) -> list[Batched]:
    """Return what a batch becomes; puts that follow each other, of different keys, go together.

    They have one version then, which is why a key that comes again is a new entry: it keeps both.
    The keys of those that are plain are added to ``names``.
    """
    pack, join = _pack_put_head, _join
    key_max, value_max, reserved = KEY_SIZE_MAX, VALUE_SIZE_MAX, KEYS_RESERVED
    entries: list[Batched] = []
    run: dict[bytes, bytes] = {}  # bodies by their keys
    add_name = names.append
    for operation in operations:
        put = operation.put  # empty, if it is another operation
        key, value = put.key, put.value
        size = len(key)
        if (
            not 0 < size <= key_max
            or put.ttl_ms
            or put.lease_id
            or len(value) > value_max
            or put.HasField("expected_version")
            or key.startswith(reserved)
        ):
            _end_run(run, namespace, entries)
            entries.append((None, 1))
            continue
        if key in run:
            _end_run(run, namespace, entries)
        add_name(key)
        run[key] = join((pack(0, size), key, value))
    _end_run(run, namespace, entries)
    return entries


def _end_run(run: dict[bytes, bytes], namespace: str, entries: list[Batched]) -> None:
    """Make one entry of the puts that were collected."""
    if not run:
        return
    bodies = tuple(run.values())
    if len(bodies) > 1:
        draft = encode_command(PutMany(bodies), namespace)
    else:
        draft = Draft(TYPE_PUT, encode_prefix(namespace) + bodies[0])
    entries.append((draft, len(bodies)))
    run.clear()


# Execute gets

Take = Callable[[tuple[int, bytes]], None]
Wanted = tuple[int, int]
"""How fresh: a level, and how old an answer may be in milliseconds."""
FRESH: Wanted = (0, 0)


def take_gets(
    operations: Sequence[pipeline_pb2.Operation],
    positions: range,
    shard_of: Callable[[bytes], int],
    target_of: Callable[[int, str, Wanted], Take],
) -> range | None:
    """Take the plain gets from ``positions`` on; return what is left, if anything.

    ``target_of`` returns for a shard, a namespace and how fresh it shall be who takes a get: its
    position and its key.
    """
    targets: dict[tuple[int, str, Wanted], Take] = {}
    for position in positions:
        get = operations[position].get  # empty, if it is another operation
        key = get.key
        if not 0 < len(key) <= KEY_SIZE_MAX:
            return range(position, positions.stop)
        wanted = FRESH
        if get.HasField("options"):
            options = get.options
            if options.min_index or options.as_of_index or options.with_cost:
                return range(position, positions.stop)
            wanted = options.level, options.max_staleness_ms
        place = shard_of(key), get.namespace, wanted
        take = targets.get(place)
        if take is None:
            try:
                take = targets[place] = target_of(place[0], namespace_of(place[1]), wanted)
            except OnelogError:
                return range(position, positions.stop)
        take((position, key))
    return None


def answer_gets(
    view: View,
    namespace: str,
    gets: Sequence[tuple[int, bytes]],
    results: Sequence[pipeline_pb2.OperationResult],
    room: Room,
) -> None:
    """Put what plain gets find into the answer, as far as there is room."""
    find, shard, applied_index = view.projections.kv.get, view.shard, view.applied_index
    for position, key in gets:
        target = results[position]
        if room.is_full:
            put_error(target.error, room.refusal())
            continue
        found = find(namespace, key)
        if isinstance(found, Refused):
            put_error(target.error, error_of_refusal(found))
            continue
        answer = target.get
        header = answer.header
        header.applied_index = applied_index
        if shard:
            header.shard = shard
        if found is not None:
            put_item(answer.item, found)
        size = target.ByteSize()
        if not room.take_result(size):
            target.Clear()
            put_error(target.error, room.refusal(size))


# Execute appends

_pack_size = struct.Struct("<H").pack

Operations = Sequence[pipeline_pb2.Operation]
ExecuteAppendsTake = Callable[[tuple[int, bytes, int]], None]
Note = Callable[[int], None]


def take_appends(
    operations: Operations,
    positions: range,
    session: SessionRef | None,
    shard_of: Callable[[bytes], int],
    target_of: Callable[[int], tuple[ExecuteAppendsTake, Note]],
) -> range | None:
    """Make entries of the plain appends from ``positions`` on; return what is left, if anything.

    ``target_of`` returns for a shard who takes an entry and who notes its operation's position.
    """
    key_max, value_max, join, pack_size = RECORD_KEY_SIZE_MAX, VALUE_SIZE_MAX, _join, _pack_size
    streams: dict[tuple[str, str], tuple[bytes, bytes, bytes, ExecuteAppendsTake, Note]] = {}
    numbers = b""
    for position in positions:
        request = operations[position].append_records  # empty, if it is another operation
        records = request.records
        if len(records) != 1 or request.HasField("producer") or request.HasField("options"):
            return range(position, positions.stop)
        record = records[0]
        value, key = record.value, record.key
        has_key, size = record.HasField("key"), len(key)
        if (
            len(value) > value_max
            or size > key_max
            or (has_key and not size)
            or record.tag
            or record.HasField("partition")
            or len(record.headers)
        ):
            return range(position, positions.stop)
        place = request.namespace, request.stream
        known = streams.get(place)
        if known is None:
            try:
                heads = heads_of(namespace_of(place[0]), place[1], session is not None)
            except OnelogError:
                return range(position, positions.stop)
            known = streams[place] = (*heads, *target_of(shard_of(place[1].encode())))
        prefix, plain, keyed, take, note = known
        if session is not None:
            numbers = _pack_session(session[0], session[1] + position, session[2])
        if has_key:
            payload = join((prefix, numbers, keyed, pack_size(size), key, value))
        else:
            payload = join((prefix, numbers, plain, value))
        take((TYPE_APPEND, payload, 0))
        note(position)
    return None


def answer_appends(
    operations: Operations,
    answers: Sequence[pipeline_pb2.OperationResult],
    positions: Sequence[int],
    results: Sequence[Result],
    first_index: int,
    shard: int,
    projections: Projections,
) -> Mapping[int, tuple[Result, int]]:
    """Put the results of plain appends into the answer; return those that need the long way.

    By position, with their index: what was refused, or sent before.
    """
    others: dict[int, tuple[Result, int]] = {}
    streams: dict[tuple[str, str], Any] = {}
    index = first_index - 1
    for position, result in zip(positions, results, strict=True):
        index += 1
        if result is not APPLIED:
            others[position] = result, index
            continue
        answer = answers[position].append_records
        answer.header.index = index
        if shard:
            answer.header.shard = shard
        appended = answer.results.add()
        appended.offset = index
        request = operations[position].append_records
        place = request.namespace, request.stream
        stream = streams.get(place)
        if stream is None:
            stream = projections.stream.find(namespace_of(place[0]), place[1])
            streams[place] = stream
        if not isinstance(stream, Refused) and len(stream.partitions) > 1 and index > stream.id:
            record = request.records[0]
            number = crc32c(record.key) if record.HasField("key") else index
            appended.partition = number % len(stream.partitions)
    return others
