"""Operations of one message that go together, and those that go together among these.

What can be one proposal or one read is a ``Run``. In it, plain puts are positions and drafts;
enqueues of one message each are put together by queue, since to look each of them up alone would
cost more than the rest of it; everything else is an ``Operation``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from node.durability import Durability
from onelog.v1 import pipeline_pb2
from projections.payload import SessionRef
from projections.result import APPLIED, Result


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
class Enqueues:
    """Enqueues of one message each that follow each other into one queue, as if they were one."""

    namespace: str
    queue: str
    session: SessionRef | None
    positions: list[int] = field(default_factory=list)
    messages: list[Any] = field(default_factory=list)
    at: int = 0

    def operations(self, request: pipeline_pb2.ExecuteRequest) -> list[Operation]:
        """Return them one by one."""
        found = []
        for number, position in enumerate(self.positions):
            session = self.session
            if session is not None:
                session = session._replace(sequence=session.sequence + number)
            enqueue = request.operations[position].enqueue
            found.append(Operation(position, "enqueue", enqueue, session))
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
        for number, (position, result) in enumerate(zip(self.positions, outcome, strict=True)):
            if result is APPLIED:
                answer = results[position].enqueue
                answer.header.index = index + number
                if shard:
                    answer.header.shard = shard
                answer.results.add().message_id = index + number
            else:
                others.append((position, number))
        return others


@dataclass(slots=True)
class Run:
    """Operations of one shard that go together: one proposal, or one read."""

    durability: Durability | None  # None: reads
    drafts: list[tuple[int, bytes, int]] = field(default_factory=list)
    # Of plain puts: their positions in the message, as many as drafts; else the operations.
    puts: list[int] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    # Of plain enqueues: those that go together. Then there is nothing else in the run.
    enqueues: list[Enqueues] = field(default_factory=list)
    # Some entries need the state: all are made when the run is written.
    needs_state: bool = False

    @property
    def positions(self) -> list[int]:
        """Which operations of the message these are."""
        found = [*self.puts, *(each.position for each in self.operations)]
        for enqueues in self.enqueues:
            found += enqueues.positions
        return found
