"""The ``traceparent`` of W3C Trace Context: which trace and span a call belongs to.

``00-<trace, 32 hex digits>-<span, 16 hex digits>-<flags, 2 hex digits>``; the lowest flag says that
the trace is sampled. A malformed one is ignored: a mistake in tracing must not fail the call. Of a
later version we read these parts and ignore what follows them.
"""

import re
from typing import NamedTuple

# The key in a call's metadata.
KEY = "traceparent"
# In one pipeline message, which may carry the calls of many callers.
PARENTS_MAX = 16

_SAMPLED = 1
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


class TraceParent(NamedTuple):
    """The caller's span, which ours become children of; ids are hex digits."""

    trace_id: str
    span_id: str
    is_sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.is_sampled):02x}"


def parse(text: str) -> TraceParent | None:
    """Parse a traceparent; return None if it is malformed."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == "ff" or (version == "00" and rest is not None):
        return None
    if not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceParent(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))
