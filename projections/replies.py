"""Which operations can be answered before they are applied: those whose answer says nothing.

A table by entry type, so that the edge can decide on the bytes of a draft alone. An operation is in
it if its only result, when it takes effect, is that it did. A counter's new value, a lease's id, a
condition that holds or does not, a session's first result: these exist only once the entry is
applied. A new operation is not in the table until somebody puts it there.

What is answered early may still be refused when it is applied (its namespace is gone, or full):
whoever asks for an early answer gives up hearing of that.
"""

from collections.abc import Callable

from projections.kv_commands import OPTION_EXPECTED, OPTION_LEASE, TYPE_PUT, TYPE_PUT_MANY
from projections.payload import FLAG_SESSION, PAYLOAD_VERSION
from projections.queue_commands import QUEUE_OPERATIONS
from projections.stream_record import OPTION_PRODUCER, TYPE_APPEND
from projections.ts_commands import TYPE_WRITE_BATCH
from ual.entry import OWNER_QUEUE

_PREFIX_SIZE_MIN = 3
# So much of a body is looked at.
_BODY_SIZE = 16


def _is_blind_put(body: bytes) -> bool:
    """A put with no expected version and no lease, either of which can make it fail."""
    return bool(body) and not body[0] & (OPTION_EXPECTED | OPTION_LEASE)


def _is_blind_append(body: bytes) -> bool:
    """A record without a producer, who may have sent it before; its offset is its index."""
    return bool(body) and not body[0] & OPTION_PRODUCER


# By entry type: whether this body, behind the prefix, needs no result. How many points a batch has
# written is how many it holds.
_BLIND: dict[int, Callable[[bytes], bool]] = {
    TYPE_PUT: _is_blind_put,
    TYPE_PUT_MANY: lambda _: True,
    TYPE_APPEND: _is_blind_append,
    TYPE_WRITE_BATCH: lambda _: True,
    **{OWNER_QUEUE << 8 | each.number: each.is_blind for each in QUEUE_OPERATIONS if each.is_blind},
}


def needs_result(draft: tuple[int, bytes, int]) -> bool:
    """Tell whether the answer to this entry exists only when it is applied."""
    entry_type, payload, flags = draft
    is_blind = _BLIND.get(entry_type)
    if is_blind is None or flags or len(payload) < _PREFIX_SIZE_MIN:
        return True
    if payload[0] != PAYLOAD_VERSION or payload[1] & FLAG_SESSION:
        return True
    at = _PREFIX_SIZE_MIN + payload[2]
    return not is_blind(payload[at : at + _BODY_SIZE])
