"""Which trace a call is part of, as W3C Trace Context writes it: ``traceparent``.

``00-<trace, 32 hex digits>-<span, 16 hex digits>-<flags, 2 hex digits>``; the lowest flag says that
the trace is sampled. What is malformed is as good as nothing: a caller's mistake in it must not
concern what is asked for. Of a later version the same parts are read, whatever follows them.
"""

import re
from typing import NamedTuple

# Its key in the metadata of a call.
KEY = "traceparent"
# Of those who called together, in one message of a pipeline.
PARENTS_MAX = 16

_SAMPLED = 1
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceParent(NamedTuple):
    """A span that others are children of; ids are hex digits."""

    trace_id: str
    span_id: str
    is_sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def parse(text: str) -> TraceParent | None:
    """Return what a traceparent says, or None for one that is malformed."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
