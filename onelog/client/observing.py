"""What calls have cost, by the servers' word: ``with costs() as spent``.

Every call that is made in the block, or in a task that was begun in it, asks for its cost, and a
call that has its answer has its cost in the list. Who asks is known by a context variable: nothing
is handed through, and callers who do not ask pay for one look at it. A write with the durability
``async`` is answered before there is something to tell, and streams of answers (``scan``,
``consume``, ``tail``, ``watch``) are not counted.

Tracing
-------
The trace that calls are part of: ``with traced(traceparent)``.

A traceparent is a text (onelog/traceparent.py), as whatever traces the program has it. Every call
that is made in the block, or in a task that was begun in it, is handed to the server with it; what
is malformed is left out. Who is traced is known by a context variable, as for ``costs``.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple

from onelog.traceparent import KEY, PARENTS_MAX, parse
from onelog.v1 import common_pb2, pipeline_pb2

Answer = Callable[[pipeline_pb2.OperationResult, Any], None]


class Cost(NamedTuple):
    """Where the time of one call went, on the node that carried it out, and what it looked at."""

    # From its arrival until it was part of a group, from there until it was applied, and the sync
    # of this node that covered it. Of writes.
    wait_ns: int
    raft_ns: int
    fsync_ns: int

    # Keys, messages, records or points, and the slowest place that they came from.
    scanned: int
    tier: str


COLLECTING: ContextVar[list[Cost] | None] = ContextVar("onelog_costs", default=None)


@contextmanager
def costs() -> Iterator[list[Cost]]:
    """Collect what the calls of a block cost, in the order of their answers."""
    spent: list[Cost] = []
    token = COLLECTING.set(spent)
    try:
        yield spent
    finally:
        COLLECTING.reset(token)


def ask(request: Any) -> None:
    """Let a call ask for its cost, if it is one that has a cost."""
    if "options" in request.DESCRIPTOR.fields_by_name:
        request.options.with_cost = True


def take(spent: list[Cost], answer: Any) -> None:
    """Collect what an answer says about its cost."""
    fields = answer.DESCRIPTOR.fields_by_name
    headers = (
        [answer.header] if "header" in fields else answer.headers if "headers" in fields else ()
    )
    for header in headers:
        if header.HasField("cost"):
            cost = header.cost
            tier = common_pb2.Tier.Name(cost.tier).removeprefix("TIER_").lower()
            spent.append(Cost(cost.wait_ns, cost.raft_ns, cost.fsync_ns, cost.scanned, tier))


def taking(spent: list[Cost], answer: Answer) -> Answer:
    """Return how a result of a pipeline is handed out whose cost is collected."""
    return partial(_answer, spent, answer)


def _answer(
    spent: list[Cost], answer: Answer, result: pipeline_pb2.OperationResult, calls: Any
) -> None:
    take(spent, getattr(result, str(result.WhichOneof("result"))))
    answer(result, calls)


# Tracing

PARENT: ContextVar[str | None] = ContextVar("onelog_traceparent", default=None)


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Make the calls of a block part of a trace; with None, or what is malformed, of none."""
    is_known = traceparent is not None and parse(traceparent) is not None
    token = PARENT.set(traceparent if is_known else None)
    try:
        yield
    finally:
        PARENT.reset(token)


def with_parent(metadata: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call that is made now."""
    parent = PARENT.get()
    return metadata if parent is None else (*metadata, (KEY, parent))


def note(request: pipeline_pb2.ExecuteRequest, parents: Iterable[str]) -> None:
    """Let a message say that operations of these are in it, as far as it holds them."""
    for parent in parents:
        if parent not in request.traceparent and len(request.traceparent) < PARENTS_MAX:
            request.traceparent.append(parent)
