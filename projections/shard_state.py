"""All projections of a shard, how they are connected, and what can be answered before apply.

To add a projection: write it (projection.py says what it must do) and name it here.

``needs_result`` decides from the bytes of a draft whether the client can be answered before the
entry is applied. It can if success is all that the result would say (``Operation.is_blind``). A
counter's new value, a lease's id, the outcome of a condition or a session's first result exist only
once the entry is applied. An entry that was answered early may still be refused by apply (its
namespace was deleted or is full): a client that asks for an early answer does not learn of it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onelog.projections.codec import FLAG_SESSION, PAYLOAD_VERSION
from onelog.projections.kv.commands import KV_OPERATIONS
from onelog.projections.kv.projection import KV
from onelog.projections.projection import Notes, Position, Projection, SpillStore
from onelog.projections.queue.commands import QUEUE_OPERATIONS
from onelog.projections.queue.projection import Queue
from onelog.projections.router import ProjectionRouter
from onelog.projections.stream.commands import STREAM_OPERATIONS
from onelog.projections.stream.projection import Stream
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import FindParts, FindRepeated
from onelog.projections.timeseries.commands import TS_OPERATIONS
from onelog.projections.timeseries.projection import TimeSeries
from onelog.ual.entry import OWNER_KV, OWNER_QUEUE, OWNER_STREAM, OWNER_TIMESERIES


@dataclass(frozen=True, slots=True)
class Projections:
    """A router with its projections, for reads."""

    router: ProjectionRouter
    system: System
    kv: KV
    queue: Queue
    stream: Stream
    series: TimeSeries


def build_projections(notes: Notes, spill: SpillStore | None = None) -> Projections:
    """Return fresh projections that have applied nothing."""
    position = Position()
    kv = KV(position, spill)
    queue = Queue(position)
    stream = Stream(position, notes, kv)
    series = TimeSeries(position, kv)
    everything: tuple[Projection, ...] = (kv, queue, stream, series)
    table = {projection.owner: projection for projection in everything}
    system = System(table)
    router = ProjectionRouter(
        table, notes, system=system, checker=kv, position=position, repeated=_REPEATED,
        parts=_PARTS,
    )  # fmt: skip
    return Projections(router, system, kv, queue, stream, series)


_PREFIX_SIZE_MIN = 3
# The number of bytes of a body that ``is_blind`` gets.
_BODY_SIZE = 16
_MODELS = (
    (OWNER_KV, KV_OPERATIONS),
    (OWNER_QUEUE, QUEUE_OPERATIONS),
    (OWNER_STREAM, STREAM_OPERATIONS),
    (OWNER_TIMESERIES, TS_OPERATIONS),
)
_BLIND: dict[int, Callable[[bytes], bool]] = {
    owner << 8 | each.number: each.is_blind
    for owner, operations in _MODELS
    for each in operations
    if each.is_blind is not None
}
_REPEATED: dict[int, FindRepeated] = {
    owner << 8 | each.number: each.find_repeated
    for owner, operations in _MODELS
    for each in operations
    if each.find_repeated is not None
}
_PARTS: dict[int, FindParts] = {
    owner << 8 | each.number: each.find_parts
    for owner, operations in _MODELS
    for each in operations
    if each.find_parts is not None
}


def needs_result(draft: tuple[int, bytes, int]) -> bool:
    """Return whether the answer to this entry exists only once it is applied."""
    entry_type, payload, flags = draft
    is_blind = _BLIND.get(entry_type)
    if is_blind is None or flags or len(payload) < _PREFIX_SIZE_MIN:
        return True
    if payload[0] != PAYLOAD_VERSION or payload[1] & FLAG_SESSION:
        return True
    at = _PREFIX_SIZE_MIN + payload[2]
    return not is_blind(payload[at : at + _BODY_SIZE])
