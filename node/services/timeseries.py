"""The time series service: one line for what is one entry or one look, and what is more.

Deleting many series takes several entries, since an entry does a bounded amount of work and says
where to go on. The first of them carries the session, and what is left follows outside of it: a
repeated call finds the result of the first, goes on from there, and what it finds deleted already
it deletes again. The call ends when everything is gone that was there when it began.
"""

from collections.abc import Callable
from heapq import nsmallest
from typing import Any

from onelog.errors import NotFound
from onelog.node.edge.calls import Call
from onelog.node.edge.operation import applied, put_header, run_read, run_write
from onelog.node.edge.pages import list_by_name
from onelog.node.edge.shards import (
    Edge,
    View,
    namespace_of,
    session_of,
    write_options,
)
from onelog.node.public_errors import error_of_reason
from onelog.node.services import timeseries_operations as op
from onelog.projections.codec import U64
from onelog.projections.reasons import Reason
from onelog.projections.timeseries.commands import Command, DropMeasurement, encode_command
from onelog.projections.timeseries.limits import NAME_SIZE_MAX
from onelog.projections.timeseries.listing import describe_measurement
from onelog.v1 import timeseries_pb2


class TimeSeriesService:
    """See ``timeseries.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def create_measurement(
        self, request: timeseries_pb2.CreateMeasurementRequest, call: Call
    ) -> timeseries_pb2.CreateMeasurementResponse:
        """Create a measurement."""
        return await run_write(self._edge, op.CREATE, request, call)

    async def configure_measurement(
        self, request: timeseries_pb2.ConfigureMeasurementRequest, call: Call
    ) -> timeseries_pb2.ConfigureMeasurementResponse:
        """Replace the settings of a measurement."""
        return await run_write(self._edge, op.CONFIGURE, request, call)

    async def get_measurement(
        self, request: timeseries_pb2.GetMeasurementRequest, call: Call
    ) -> timeseries_pb2.GetMeasurementResponse:
        """Show a measurement."""
        return await run_read(self._edge, op.GET_MEASUREMENT, request, call)

    async def write_points(
        self, request: timeseries_pb2.WritePointsRequest, call: Call
    ) -> timeseries_pb2.WritePointsResponse:
        """Write points."""
        return await run_write(self._edge, op.WRITE_POINTS, request, call)

    async def list_series(
        self, request: timeseries_pb2.ListSeriesRequest, call: Call
    ) -> timeseries_pb2.ListSeriesResponse:
        """List series that match, a page of them."""
        return await run_read(self._edge, op.LIST_SERIES, request, call)

    async def query(
        self, request: timeseries_pb2.QueryRequest, call: Call
    ) -> timeseries_pb2.QueryResponse:
        """Ask for points or aggregates."""
        return await run_read(self._edge, op.QUERY, request, call)

    async def set_rule(
        self, request: timeseries_pb2.SetRuleRequest, call: Call
    ) -> timeseries_pb2.SetRuleResponse:
        """Set a downsampling rule."""
        return await run_write(self._edge, op.SET_RULE, request, call)

    async def delete_rule(
        self, request: timeseries_pb2.DeleteRuleRequest, call: Call
    ) -> timeseries_pb2.DeleteRuleResponse:
        """Delete a downsampling rule."""
        return await run_write(self._edge, op.DELETE_RULE, request, call)

    # In several entries

    async def delete_points(
        self, request: timeseries_pb2.DeletePointsRequest, call: Call
    ) -> timeseries_pb2.DeletePointsResponse:
        """Delete points, or series, that match."""
        answer = timeseries_pb2.DeletePointsResponse()
        answer.series_count = await self._until_done(
            request, call, answer, lambda after: op.delete_of(request, after)
        )
        return answer

    async def delete_measurement(
        self, request: timeseries_pb2.DeleteMeasurementRequest, call: Call
    ) -> timeseries_pb2.DeleteMeasurementResponse:
        """Delete a measurement with all of its series."""
        answer = timeseries_pb2.DeleteMeasurementResponse()
        await self._until_done(
            request, call, answer, lambda _: DropMeasurement(request.measurement)
        )
        return answer

    async def _until_done(
        self, request: Any, call: Call, answer: Any, command_of: Callable[[int], Command]
    ) -> int:
        """Propose commands until one says that nothing is left; return how many series it were.

        ``command_of`` gets what the one before said about where to go on.
        """
        edge, options = self._edge, write_options(request)
        shard = edge.shard_of_all(op.by_measurement(request))
        namespace, session = namespace_of(request.namespace), session_of(options)
        count = after = 0
        while True:
            draft = encode_command(command_of(after), namespace, session)
            written = await edge.write(shard, op.checked(draft), options, call)
            result = written.results[0]
            try:
                done = applied(result)
            except NotFound:
                if not count and not after:
                    raise
                return count  # somebody else has deleted what was left of the measurement
            put_header(answer.header, shard, written.first_index, result)
            if written.cost is not None:
                answer.header.cost.CopyFrom(written.cost)
            count += done.number
            if done.value is None:
                return count
            (after,) = U64.unpack(done.value)
            session = None

    # Over all shards

    async def list_measurements(
        self, request: timeseries_pb2.ListMeasurementsRequest, call: Call
    ) -> timeseries_pb2.ListMeasurementsResponse:
        """List measurements by name, a page of them."""

        def look(view: View, namespace: str, after: str, limit: int, answer: Any) -> bool:
            room = view.projections.series.rooms.get(namespace)
            if room is None:
                raise error_of_reason(Reason.NAMESPACE_UNKNOWN)
            prefix = request.prefix
            names = nsmallest(
                limit + 1,
                (each for each in room.measurements if each > after and each.startswith(prefix)),
            )
            for name in names[:limit]:
                info = describe_measurement(room.measurements[name])
                op.put_measurement(answer.measurements.add(), namespace, info)
            return len(names) > limit

        listed: timeseries_pb2.ListMeasurementsResponse = await list_by_name(
            self._edge,
            request,
            call,
            look,
            items="measurements",
            name="measurement",
            name_size_max=NAME_SIZE_MAX,
            name_invalid=Reason.SERIES_NAME_INVALID,
        )
        return listed
