"""Operations of one message that go together, and those that go together among these.

What can be one proposal or one read is a ``Run``. In it, plain puts and plain appends of records
are positions and drafts; enqueues and acks of one message each are put together by queue, since to
look each of them up alone would cost more than the rest of it; everything else is an ``Operation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onelog.node.edge.shards import namespace_of
from onelog.node.replica.durability import Durability
from onelog.node.services.queue_requests import message_drafts, single_ack_drafts
from onelog.projections.codec import SessionRef
from onelog.projections.queue.results import ACKED
from onelog.projections.result import APPLIED, Result
from onelog.projections.shard_state import Projections
from onelog.ual.entry import Draft
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
