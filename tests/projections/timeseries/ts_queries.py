"""Queries on one thread: the selection, the plan and the reading that a server does apart."""

from onelog.projections.errors import BadPayload
from onelog.projections.reasons import Reason
from onelog.projections.result import Refused
from onelog.projections.timeseries.limits import CACHE_SIZE_MAX
from onelog.projections.timeseries.names import compile_matchers
from onelog.projections.timeseries.projection import TimeSeries
from onelog.projections.timeseries.query import (
    Bounds,
    Query,
    Reader,
    Row,
    find_measurement,
    plan_query,
)
from onelog.projections.timeseries.read import ReadBlock

BOUNDS = Bounds(series=100_000, points=10_000_000, values=10_000_000)


class Queries:
    """Answers queries about the series of a state."""

    def __init__(
        self, series: TimeSeries, read_block: ReadBlock, cache_size_max: int = CACHE_SIZE_MAX
    ) -> None:
        self._series = series
        self._reader = Reader(read_block, cache_size_max)
        self.cache = self._reader.cache

    def query(self, namespace: str, query: Query, bounds: Bounds = BOUNDS) -> list[Row] | Refused:
        if query.invalid() is not None:
            return Refused(Reason.QUERY_INVALID)
        measurement = find_measurement(self._series, namespace, query.measurement)
        if isinstance(measurement, Refused):
            return measurement
        try:
            ids = measurement.index.cut(compile_matchers(query.matchers)).select()
        except BadPayload as error:
            return Refused(error.reason, error.detail)
        plan = plan_query(measurement, query, ids.tolist(), bounds)
        if isinstance(plan, Refused):
            return plan
        found = self._reader.run(plan, bounds)
        return found if isinstance(found, Refused) else found.rows
