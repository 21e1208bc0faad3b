"""The services of the API. ``SERVICES`` is what a server offers, besides health and reflection.

Each entry makes one service for a node; see ``node/context.py`` for what it is given. A service is
an object with a method for each call of its proto; ``node/edge/calls.py`` has the rest.
"""

from collections.abc import Callable
from typing import Any

from onelog.node.context import NodeContext, Service, ServiceFactory
from onelog.node.edge.shards import Edge, edge_of
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


def _service(proto: Any, name: str, make: Callable[[Edge], object]) -> ServiceFactory:
    def factory(context: NodeContext) -> Service:
        edge = edge_of(context)
        return edge.calls.service(proto.DESCRIPTOR.services_by_name[name], make(edge))

    return factory


SERVICES: list[ServiceFactory] = [
    _service(kv_pb2, "KV", KvService),
    _service(queue_pb2, "Queue", QueueService),
    _service(stream_pb2, "Stream", StreamService),
    _service(timeseries_pb2, "TimeSeries", TimeSeriesService),
    _service(pipeline_pb2, "Pipeline", PipelineService),
    _service(log_pb2, "Log", LogService),
    _service(admin_pb2, "Admin", AdminService),
]
