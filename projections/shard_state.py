"""Which projections there are, and how they are put together.

To add a projection: write it (projection.py says what it must do) and name it here.
"""

from dataclasses import dataclass

from onelog.projections.kv.projection import KV
from onelog.projections.projection import Notes, Position, Projection, SpillStore
from onelog.projections.queue.projection import Queue
from onelog.projections.router import ProjectionRouter
from onelog.projections.stream.projection import Stream
from onelog.projections.system.projection import System
from onelog.projections.timeseries.projection import TimeSeries


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
