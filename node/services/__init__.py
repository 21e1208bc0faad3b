"""The services of the API. ``SERVICES`` is what a server offers, besides health and reflection.

Each entry makes one service for a node; see ``node/context.py`` for what it is given. A call of a
proto is an operation of its model (node/edge/operation.py), or a method of the service's object
where it does more: waits, reads the log, or goes over several shards.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from onelog.node.context import NodeContext, Service, ServiceFactory
from onelog.node.edge.operation import Operations, Write, run_read, run_write
from onelog.node.edge.shards import Edge, get_edge
from onelog.node.services import kv, queue_operations, stream_operations, timeseries
from onelog.node.services.admin import AdminService
from onelog.node.services.kv import KvService
from onelog.node.services.log import LogService
from onelog.node.services.pipeline import PipelineService
from onelog.node.services.queue import QueueService
from onelog.node.services.stream import StreamService
from onelog.node.services.timeseries import TimeSeriesService
from onelog.v1 import (
    admin_pb2,
    kv_pb2,
    log_pb2,
    pipeline_pb2,
    queue_pb2,
    stream_pb2,
    timeseries_pb2,
)


def _service(
    proto: Any, name: str, make: Callable[[Edge], object], operations: Operations | None = None
) -> ServiceFactory:
    """Return what makes a service of an object and of the operations that are no methods of it."""

    def factory(context: NodeContext) -> Service:
        edge = get_edge(context)
        handlers = make(edge)
        for call, operation in (operations or {}).items():
            if not hasattr(handlers, call):
                run: Any = run_write if isinstance(operation, Write) else run_read
                setattr(handlers, call, partial(run, edge, operation))
        return edge.calls.service(proto.DESCRIPTOR.services_by_name[name], handlers)

    return factory


SERVICES: list[ServiceFactory] = [
    _service(kv_pb2, "KV", KvService, kv.OPERATIONS),
    _service(queue_pb2, "Queue", QueueService, queue_operations.OPERATIONS),
    _service(stream_pb2, "Stream", StreamService, stream_operations.OPERATIONS),
    _service(timeseries_pb2, "TimeSeries", TimeSeriesService, timeseries.OPERATIONS),
    _service(pipeline_pb2, "Pipeline", PipelineService),
    _service(log_pb2, "Log", LogService),
    _service(admin_pb2, "Admin", AdminService),
]
