"""What applications import, and the ``onelog`` command.

::

    from onelog import Client

    with Client("127.0.0.1:7400") as client:
        client.kv.put("greeting", "hello")

The names below are loaded when they are first used: ``import onelog`` alone costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onelog.client.aio import AsyncClient
    from onelog.client.options import ClientOptions, Tls
    from onelog.client.values import Read

_HOMES = {
    "AsyncClient": "onelog.client.aio",
    "ClientOptions": "onelog.client.options",
    "Read": "onelog.client.values",
    "Tls": "onelog.client.options",
}

__all__ = ["AsyncClient", "ClientOptions", "Read", "Tls"]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'onelog' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
