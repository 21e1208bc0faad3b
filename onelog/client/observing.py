"""Observing calls: their costs (``with costs() as spent``) and their trace (``with traced(...)``).

Both apply to every call made in the block, or in a task started in it. Each is a context variable,
so nothing is passed from call to call, and other callers pay only for one lookup.

Each call in ``costs`` asks the server for its cost, and adds it to the list when it is answered or
refused; of streams (``scan``, ``consume``, ``tail``, ``watch``) each message is counted. A write
with the durability ``async`` is answered before it is replicated: its cost is the time until then.

Each call in ``traced`` carries the given traceparent (onelog/traceparent.py) to the server. A
malformed one is left out.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

from onelog.client.tables import Row
from onelog.errors import OnelogError
from onelog.traceparent import KEY, PARENTS_MAX, parse
from onelog.v1 import common_pb2, pipeline_pb2

Answer = Callable[[pipeline_pb2.OperationResult, Any], None]


@dataclass(slots=True, unsafe_hash=True)
class Cost(Row):
    """What one call cost on the node that carried it out: time, and data that was read."""

    # For writes: the time from arrival until it was part of a proposal, from there until it was
    # applied, and of this node's fdatasync that covered it. For others ``wait_ns`` is all of the
    # time, except for ``round_ns``.
    wait_ns: int
    raft_ns: int
    fsync_ns: int

    # Keys, messages, records or points that were read, and the slowest storage they came from.
    scanned: int
    tier: str

    # Of linearizable reads: waiting for the leader's read round.
    round_ns: int = 0


# The answer of a call whose metadata has this key says what it has cost, with options or not.
COST_KEY = "onelog-cost"
COLLECTING: ContextVar[list[Cost] | None] = ContextVar("onelog_costs", default=None)


@contextmanager
def costs() -> Iterator[list[Cost]]:
    """Collect the costs of the calls in a block, in the order of their answers."""
    spent: list[Cost] = []
    token = COLLECTING.set(spent)
    try:
        yield spent
    finally:
        COLLECTING.reset(token)


def ask_for_cost(request: Any) -> None:
    """Ask for the cost of a call, if its request has an option for it."""
    if "options" in request.DESCRIPTOR.fields_by_name:
        request.options.with_cost = True


def collect_cost(spent: list[Cost], answer: Any) -> None:
    """Collect the costs in an answer, or of a refusal."""
    if isinstance(answer, OnelogError):
        if answer.cost is not None:
            spent.append(_cost(answer.cost))
        return
    fields = answer.DESCRIPTOR.fields_by_name
    if "header" in fields:
        targets = [answer.header]
    else:
        targets = answer.headers if "headers" in fields else [answer]
    spent.extend(_cost(target.cost) for target in targets if target.HasField("cost"))


def _cost(cost: common_pb2.Cost) -> Cost:
    tier = common_pb2.Tier.Name(cost.tier).removeprefix("TIER_").lower()
    return Cost(cost.wait_ns, cost.raft_ns, cost.fsync_ns, cost.scanned, tier, cost.round_ns)


def collecting_cost(spent: list[Cost], answer: Answer) -> Answer:
    """Return ``answer`` wrapped so that it also collects the cost of a pipeline's result."""
    return partial(_answer, spent, answer)


def _answer(
    spent: list[Cost], answer: Answer, result: pipeline_pb2.OperationResult, calls: Any
) -> None:
    collect_cost(spent, getattr(result, str(result.WhichOneof("result"))))
    answer(result, calls)


# Tracing

PARENT: ContextVar[str | None] = ContextVar("onelog_traceparent", default=None)


@contextmanager
def traced(traceparent: str | None) -> Iterator[None]:
    """Make the calls of a block part of a trace; of none if it is None or malformed."""
    is_known = traceparent is not None and parse(traceparent) is not None
    token = PARENT.set(traceparent if is_known else None)
    try:
        yield
    finally:
        PARENT.reset(token)


def observing_metadata() -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call: the current traceparent, and that its cost is asked for."""
    parent, spent = PARENT.get(), COLLECTING.get()
    metadata = () if parent is None else ((KEY, parent),)
    return metadata if spent is None else (*metadata, (COST_KEY, "1"))


def add_parents(request: pipeline_pb2.ExecuteRequest, parents: Iterable[str]) -> None:
    """Add traceparents to a pipeline message, up to its limit."""
    for parent in parents:
        if parent not in request.traceparent and len(request.traceparent) < PARENTS_MAX:
            request.traceparent.append(parent)
