"""Traces: where the time of a request went, as spans that any collector of OpenTelemetry reads.

A traced request has one server span, with a child for each wait that explains its time: for its
group and commit, and for the round of a read. Messages of a pipeline have a span each. What is
forwarded carries the span along (``traceparent``), so the spans of both nodes are one trace.

Who decides: the sampled flag of a parent; without a parent ``trace.ratio``, at the node that the
client has called: what comes forwarded without a parent was decided on there. Invariants:

* With tracing off, it costs one attribute look-up.
* Nothing grows: spans that wait for the thread that writes them are bounded, and so are the file
  and the one older file beside it. What does not fit is dropped and counted.
* Nothing that is wrong with the file concerns a request. Spans that cannot be written are counted.

The file has one ``ExportTraceServiceRequest`` a line, in the JSON of OTLP as its file exporter
writes it: ids are hex digits, enums are numbers, integers of 64 bits are texts.
"""

import asyncio
import json
import logging
import os
import random
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client import Counter

from onelog.cluster.errors import ClusterError
from onelog.node.errors import ConfigError
from onelog.node.replica.requests import Results
from onelog.traceparent import KEY, PARENTS_MAX, TraceParent, parse

# Spans that wait to be written; one takes about a kilobyte.
SPANS_WAITING_MAX = 8192
# How often they are written, and how many in one line, which stays below the 1 MiB that a collector
# reads of one.
FLUSH_S = 0.5
LINE_SPANS_MAX = 256
# A file that would become larger is renamed to FILE.1, in the place of the one before.
FILE_BYTES_MAX = 64 << 20

# The names of what requests wait for: from being proposed until there is an outcome, and until a
# read may look.
COMMIT, READ = "onelog.commit", "onelog.read"

# Of the protos of OpenTelemetry.
_INTERNAL, _SERVER = 1, 2
_ERROR = 2
_CANCELLED = 1  # of gRPC

Metadata = tuple[tuple[str, str], ...]

OutcomeT = TypeVar("OutcomeT")

_log = logging.getLogger("onelog.node.tracing")


class Span:
    """One piece of work, from its making to ``end``."""

    __slots__ = (
        "_add", "attributes", "code", "ended_ns", "events", "kind", "links", "name", "parent_id",
        "reason", "shards", "span_id", "started_ns", "trace_id",
    )  # fmt: skip

    def __init__(
        self, add: Callable[["Span"], None], name: str, kind: int, trace_id: str, parent_id: str
    ) -> None:
        self._add = add
        self.name = name
        self.kind = kind
        self.trace_id = trace_id
        self.parent_id = parent_id
        self.span_id = secrets.token_hex(8)
        self.attributes: dict[str, str | int] = {}
        self.events: list[tuple[str, int]] = []
        self.links: list[TraceParent] = []
        self.shards: set[int] = set()
        self.reason = ""
        self.code = 0
        self.started_ns = time.time_ns()
        self.ended_ns = 0

    @property
    def traceparent(self) -> str:
        """What makes others its children."""
        return str(TraceParent(self.trace_id, self.span_id, is_sampled=True))

    def fail(self, reason: str, code: int) -> None:
        """Say why it was refused."""
        self.reason, self.code = reason, code

    async def wait(self, name: str, shard: int, until: "asyncio.Future[OutcomeT]") -> OutcomeT:
        """Wait for what a request needs, and note how long that took."""
        self.shards.add(shard)
        child = Span(self._add, name, _INTERNAL, self.trace_id, self.span_id)
        child.shards.add(shard)
        try:
            outcome = await until
            match outcome:
                case ClusterError() as error:
                    child.reason = error.reason
                case Results(proposed_s=proposed_s):
                    # By the shard's clock, which does not tell the time of day.
                    ago_ns = int((time.monotonic() - proposed_s) * 1e9)
                    at_ns = max(child.started_ns, time.time_ns() - ago_ns)
                    child.events.append(("proposed", at_ns))
            return outcome
        finally:
            child.end()

    def end(self) -> None:
        """End the span and queue it for writing; a cancelled task is recorded as such."""
        if isinstance(sys.exception(), asyncio.CancelledError):
            self.fail("CANCELLED", _CANCELLED)
        self.ended_ns = max(self.started_ns, time.time_ns())  # a clock may be set back
        self._add(self)


class Tracer:
    """Begins spans and writes them. One for each process that has a ``trace.file``."""

    def __init__(
        self, file: "SpanFile", ratio: float, resource: Mapping[str, str | int], dropped: Counter
    ) -> None:
        self._file = file
        self._ratio = ratio
        self._resource = resource
        self._dropped = dropped
        self._has_failed = False
        self._waiting: deque[Span] = deque()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="traces", daemon=True)
        self._thread.start()

    def begin(self, method: str, parents: Iterable[str], *, is_forwarded: bool) -> Span | None:
        """Return the span of a request, or None if it is not traced."""
        known = [each for each in map(parse, islice(parents, PARENTS_MAX)) if each is not None]
        sampled = [each for each in known if each.is_sampled]
        if sampled:
            trace_id, parent_id, _ = sampled[0]
        elif known or is_forwarded or random.random() >= self._ratio:  # noqa: S311 - no secret
            return None
        else:
            trace_id, parent_id = secrets.token_hex(16), ""
        service, _, name = method.removeprefix("/").partition("/")
        span = Span(self._add, f"{service}/{name}", _SERVER, trace_id, parent_id)
        span.attributes |= {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name}
        span.links = sampled[1:]
        return span

    def close(self) -> None:
        """Write what waits and close the file; blocks until then."""
        self._stopping.set()
        self._thread.join()
        self._file.close()

    def _add(self, span: Span) -> None:
        if len(self._waiting) >= SPANS_WAITING_MAX:
            self._dropped.labels("FULL").inc()
        else:
            self._waiting.append(span)

    def _work(self) -> None:
        while not self._stopping.wait(FLUSH_S):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        waiting = self._waiting
        while waiting:
            spans = [waiting.popleft() for _ in range(min(len(waiting), LINE_SPANS_MAX))]
            try:
                self._file.write(format_line(self._resource, spans))
            except OSError as error:
                self._dropped.labels("WRITE_FAILED").inc(len(spans))
                if not self._has_failed:
                    self._has_failed = True
                    _log.warning("spans are lost, this is said once: %s", error)


class SpanFile:
    """The file, and the older one beside it; whole lines only. Raises OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._size = 0
        self._fd: int | None = self._open()

    def write(self, line: bytes) -> None:
        """Add a line."""
        if self._fd is not None and self._size and self._size + len(line) > FILE_BYTES_MAX:
            self.close()
            os.replace(self.path, f"{self.path}.1")
        if self._fd is None:
            self._fd = self._open()
        try:
            left = memoryview(line)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._size)  # half a line would spoil the next one
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        if self.path.exists() and not self.path.is_file():
            raise OSError("it is no file")  # a pipe would block, a device cannot be renamed
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._size = os.fstat(fd).st_size
        return fd


def open_tracer(path: Path, ratio: float, resource: Mapping[str, str], dropped: Counter) -> Tracer:
    """Return what traces the requests of a process."""
    try:
        file = SpanFile(path)
    except OSError as error:
        raise ConfigError(
            f"trace.file is {path}, which cannot be written: {error.strerror or error}; name "
            "another file, or none"
        ) from error
    return Tracer(file, ratio, {"service.name": "onelog", **resource}, dropped)


def with_parent(metadata: Metadata, traceparent: str) -> Metadata:
    """Return the metadata of a call that is part of a trace."""
    return (*(each for each in metadata if each[0] != KEY), (KEY, traceparent))


# The JSON of OTLP


def format_line(resource: Mapping[str, str | int], spans: Iterable[Span]) -> bytes:
    """Return one line of the file."""
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": _attributes(resource)},
                "scopeSpans": [{"scope": {"name": "onelog"}, "spans": list(map(_json, spans))}],
            }
        ]
    }
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def _json(span: Span) -> dict[str, Any]:
    attributes = dict(span.attributes)
    if span.kind == _SERVER:
        attributes["rpc.grpc.status_code"] = span.code
    if len(span.shards) == 1:
        attributes["onelog.shard"] = next(iter(span.shards))
    found: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.started_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _attributes(attributes),
        "status": {"code": _ERROR, "message": span.reason} if span.reason else {},
    }
    if span.parent_id:
        found["parentSpanId"] = span.parent_id
    if span.events:
        found["events"] = [{"timeUnixNano": str(at), "name": name} for name, at in span.events]
    if span.links:
        found["links"] = [{"traceId": each.trace_id, "spanId": each.span_id} for each in span.links]
    return found


def _attributes(values: Mapping[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)}}
        if isinstance(value, int)
        else {"key": key, "value": {"stringValue": value}}
        for key, value in values.items()
    ]
