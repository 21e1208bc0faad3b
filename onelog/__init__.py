"""The public API of onelog: the clients, their values and errors; also the ``onelog`` command.

::

    from onelog import Client

    with Client("127.0.0.1:7400") as client:
        client.kv.put("greeting", "hello")

Applications import the names in ``__all__`` from here. Each is loaded on first use, so ``import
onelog`` alone costs nothing.

* ``client`` is the client: ``AsyncClient``, and ``Client`` generated from it (``client/sync``)
* ``cli`` is the ``onelog`` command
* ``errors`` are the exceptions of the API; ``status`` reads them from a failed call
* ``channel``, ``spread`` and ``wire`` are our gRPC over HTTP/2
* ``packed`` and ``traceparent`` are encodings that client and server share, ``routing`` the rule by
  which a name has its shard
* ``v1`` is generated from the protos

The client imports nothing of the server. The server imports the shared modules, never ``client`` or
``cli``. To read the client begin with ``client/client.py``, to read the command with
``cli/main.py``.

``onelog.node``, ``cluster``, ``snapshot``, ``projections``, ``ual`` and ``spark`` are links to the
folders of these names beside this one. Always import them as ``onelog.node`` and so on, never by
their bare names: a module would be loaded twice.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog import errors
    from onelog.client.client import AsyncClient
    from onelog.client.leased import (
        AsyncFetchedRecord,
        AsyncLeasedMessage,
        FetchedRecord,
        LeasedMessage,
    )
    from onelog.client.observing import Cost, costs, traced
    from onelog.client.options import ClientOptions, Tls
    from onelog.client.sync.client import Client
    from onelog.client.tables import Rows
    from onelog.client.timeseries import MeasurementConfig, Rule, SeriesData
    from onelog.client.values import (
        GroupConfig,
        Item,
        Message,
        NewMessage,
        NewRecord,
        Producer,
        QueueConfig,
        Read,
        Record,
        RecordFilter,
        Retention,
    )
    from onelog.client.watch import Event, Watched
    from onelog.client.worker import Reject
    from onelog.errors import OnelogError

_HOMES = {
    "AsyncClient": "onelog.client.client",
    "AsyncFetchedRecord": "onelog.client.leased",
    "AsyncLeasedMessage": "onelog.client.leased",
    "Client": "onelog.client.sync.client",
    "ClientOptions": "onelog.client.options",
    "Cost": "onelog.client.observing",
    "Event": "onelog.client.watch",
    "FetchedRecord": "onelog.client.leased",
    "GroupConfig": "onelog.client.values",
    "Item": "onelog.client.values",
    "LeasedMessage": "onelog.client.leased",
    "MeasurementConfig": "onelog.client.timeseries",
    "Message": "onelog.client.values",
    "NewMessage": "onelog.client.values",
    "NewRecord": "onelog.client.values",
    "OnelogError": "onelog.errors",
    "Producer": "onelog.client.values",
    "QueueConfig": "onelog.client.values",
    "Read": "onelog.client.values",
    "Record": "onelog.client.values",
    "RecordFilter": "onelog.client.values",
    "Reject": "onelog.client.worker",
    "Retention": "onelog.client.values",
    "Rows": "onelog.client.tables",
    "Rule": "onelog.client.timeseries",
    "SeriesData": "onelog.client.timeseries",
    "Tls": "onelog.client.options",
    "Watched": "onelog.client.watch",
    "costs": "onelog.client.observing",
    "traced": "onelog.client.observing",
}

__all__ = [
    "AsyncClient", "AsyncFetchedRecord", "AsyncLeasedMessage", "Client", "ClientOptions", "Cost",
    "Event", "FetchedRecord", "GroupConfig", "Item", "LeasedMessage", "MeasurementConfig",
    "Message", "NewMessage", "NewRecord", "OnelogError", "Producer", "QueueConfig", "Read",
    "Record", "RecordFilter", "Reject", "Retention", "Rows", "Rule", "SeriesData", "Tls",
    "Watched", "costs", "errors", "traced",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("onelog.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'onelog' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
