"""The trace that calls are part of: ``with traced(traceparent)``.

A traceparent is a text (onelog/traceparent.py), as whatever traces the program has it. Every call
that is made in the block, or in a task that was begun in it, is handed to the server with it; what
is malformed is left out. Who is traced is known by a context variable, as for ``costs``.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onelog.traceparent import KEY, PARENTS_MAX, parse
from onelog.v1 import pipeline_pb2

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
