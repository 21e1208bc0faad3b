"""Which projections there are, how they are put together, and what can be answered before apply.

To add a projection: write it (projection.py says what it must do) and name it here.

``needs_result`` decides on the bytes of a draft alone whether its answer can be given before it is
applied: if its only result, when it takes effect, is that it did (``Operation.is_blind``).
A counter's new value, a lease's id, a condition that holds or does not, a session's first result:
these exist only once the entry is applied. What is answered early may still be refused when it is
applied (its namespace is gone, or full): whoever asks for an early answer gives up hearing of that.
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
from onelog.projections.timeseries.commands import TS_OPERATIONS
from onelog.projections.timeseries.projection import TimeSeries
from onelog.ual.entry import OWNER_KV, OWNER_QUEUE, OWNER_STREAM, OWNER_TIMESERIES


@dataclass(frozen=True, slots=True)
class Projections:
    """A router with its projections, for those who read from them."""

    router: ProjectionRouter
    system: System
    kv: KV
    queue: Queue
    stream: Stream
    series: TimeSeries


def build_projections(notes: Notes, spill: SpillStore | None = None) -> Projections:
    """Return a fresh set of projections that has applied nothing."""
    position = Position()
    kv = KV(position, spill)
    queue = Queue(position)
    stream = Stream(position, notes, kv)
    series = TimeSeries(position, kv)
    everything: tuple[Projection, ...] = (kv, queue, stream, series)
    table = {projection.owner: projection for projection in everything}
    system = System(table)
    router = ProjectionRouter(table, notes, system=system, judge=kv, position=position)
    return Projections(router, system, kv, queue, stream, series)


_PREFIX_SIZE_MIN = 3
# So much of a body is looked at.
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
