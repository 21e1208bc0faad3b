"""Events of time series, made of their entries alone.

Points are told as they were written, by clients and by downsampling rules alike: what a rule writes
is new to whoever watches its target. A block is no event, since nothing is different for a reader;
neither is the beginning of a rollup, nor a measurement that a first write creates on its way. What
was deleted, by a client or by retention, is told by the name of the measurement: the entry says
which matchers and times, not which points they met. Setting and deleting a rule configures its
measurement.

A measurement with more series than one entry deletes goes in several, and each is told.
"""

from collections.abc import Iterable

from onelog.node.edge.series_points import pack_runs
from onelog.node.watch.happening import Happening
from onelog.projections.codec import read_prefix
from onelog.projections.shard_state import Projections
from onelog.projections.timeseries.commands import (
    BeginRollup,
    Block,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    Rollup,
    SetRule,
    Trim,
    Write,
    decode_command,
)
from onelog.projections.timeseries.point_batch import Run, WriteBatch, batch_runs
from onelog.projections.timeseries.types import type_of
from onelog.ual.entry import OWNER_TIMESERIES, Entry
from onelog.v1 import pipeline_pb2

_KINDS: dict[type, "pipeline_pb2.SeriesEvent.Kind"] = {
    CreateMeasurement: pipeline_pb2.SeriesEvent.CREATED,
    ConfigureMeasurement: pipeline_pb2.SeriesEvent.CONFIGURED,
    SetRule: pipeline_pb2.SeriesEvent.CONFIGURED,
    DropRule: pipeline_pb2.SeriesEvent.CONFIGURED,
    DropMeasurement: pipeline_pb2.SeriesEvent.DELETED,
    Delete: pipeline_pb2.SeriesEvent.POINTS_DELETED,
    Trim: pipeline_pb2.SeriesEvent.POINTS_DELETED,
}


class SeriesHappening(Happening):
    """Something happened to a measurement."""

    __slots__ = ("_data",)

    def __init__(self, entry: Entry, namespace: str, event: pipeline_pb2.SeriesEvent) -> None:
        self._data = event.SerializeToString()
        name = event.measurement.encode()
        super().__init__(entry, OWNER_TIMESERIES, namespace, name, len(self._data))

    def put_own(self, event: pipeline_pb2.Event, *, with_previous: bool) -> None:  # noqa: ARG002
        """See ``Happening``."""
        event.series.MergeFromString(self._data)


def series_events(_projections: Projections, entry: Entry) -> Iterable[Happening]:
    """Return what an entry did to series."""
    prefix, reader = read_prefix(entry.plain_payload())
    command = decode_command(entry.entry_type & 0xFF, reader)
    match command:
        case Block() | BeginRollup():
            return ()
        case WriteBatch():
            return _written(entry, prefix.namespace, batch_runs(command))
        case Rollup(batch=batch):
            return _written(entry, prefix.namespace, batch_runs(batch))
        case Write(series=series, time_ns=time_ns, fields=fields):
            runs = [Run(series, name, type_of(value), [time_ns], [value]) for name, value in fields]
            return _written(entry, prefix.namespace, runs)
        case _:
            event = pipeline_pb2.SeriesEvent(
                measurement=command.measurement, kind=_KINDS[type(command)]
            )
            return (SeriesHappening(entry, prefix.namespace, event),)


def _written(entry: Entry, namespace: str, runs: Iterable[Run]) -> list[Happening]:
    """Return one event for each measurement that points were written to."""
    events: dict[str, pipeline_pb2.SeriesEvent] = {}
    for measurement, points in pack_runs(runs):
        event = events.get(measurement)
        if event is None:
            event = events[measurement] = pipeline_pb2.SeriesEvent(
                measurement=measurement, kind=pipeline_pb2.SeriesEvent.WRITTEN
            )
        event.points.append(points)
    return [SeriesHappening(entry, namespace, event) for event in events.values()]
