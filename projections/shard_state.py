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
from onelog.projections.kv.projection import KV
from onelog.projections.projection import Notes, Operation, Position, Projection, SpillStore
from onelog.projections.queue.projection import Queue
from onelog.projections.router import ProjectionRouter
from onelog.projections.stream.projection import Stream
from onelog.projections.system.projection import System
from onelog.projections.system.sessions import FindParts, FindRepeated, Fingerprints
from onelog.projections.timeseries.projection import TimeSeries


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
    fingerprints = Fingerprints(_REPEATED, _SEVERAL)
    router = ProjectionRouter(
        table, notes, system=system, checker=kv, position=position, fingerprints=fingerprints
    )
    return Projections(router, system, kv, queue, stream, series)


_PREFIX_SIZE_MIN = 3
# The number of bytes of a body that ``is_blind`` gets.
_BODY_SIZE = 16
_OPERATIONS: dict[int, Operation] = {
    model.owner << 8 | each.number: each
    for model in (KV, Queue, Stream, TimeSeries)
    for each in model.operations
}
_BLIND: dict[int, Callable[[bytes], bool]] = {
    entry_type: each.is_blind
    for entry_type, each in _OPERATIONS.items()
    if each.is_blind is not None
}
_REPEATED: dict[int, FindRepeated] = {
    entry_type: each.find_repeated
    for entry_type, each in _OPERATIONS.items()
    if each.find_repeated is not None
}
_SEVERAL: dict[int, FindParts] = {
    entry_type: each.several for entry_type, each in _OPERATIONS.items() if each.several is not None
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
