"""A JSON document in a key, read and changed in parts: ``client.kv.json(key)``."""

import json
from typing import Any

from onelog.client import kv_requests as fill
from onelog.client.connection import Connection
from onelog.client.kv_requests import Path
from onelog.client.options import Scope
from onelog.client.unsendable import refuse_unsendable
from onelog.client.values import Key, Read, to_bytes
from onelog.v1 import kv_pb2, pipeline_pb2


@refuse_unsendable
class AsyncDocument:
    """A path is a member name, an element number, or a sequence of both; () is the whole."""

    def __init__(self, connection: Connection, scope: Scope, key: Key) -> None:
        self._connection = connection
        self._scope = scope
        self._key = to_bytes(key)

    async def get(self, path: Path = (), *, read: Read | None = None) -> Any:
        """Return a part of the document; None if the key does not exist."""
        request = kv_pb2.GetJsonRequest(namespace=self._scope.namespace, key=self._key)
        fill.put_path(request.path, path)
        if read is not None:
            read.put(request.options)
        answer = await self._connection.call_read(
            "KV/GetJson",
            request,
            self._scope.timeout_s,
            name=self._key,
            is_stale=read is not None and read.stale,
        )
        return json.loads(answer.json) if answer.HasField("json") else None

    async def set(self, path: Path, value: Any, *, create_parents: bool = True) -> int:
        """Set a part of the document and return the key's new version."""

        def build(operation: pipeline_pb2.Operation) -> None:
            request = operation.set_json
            fill.fill_set_json(request, self._key, path, value, create_parents=create_parents)
            request.namespace = self._scope.namespace

        return await self._change(build)

    async def delete(self, path: Path) -> int:
        """Delete a part of the document and return the key's new version."""

        def build(operation: pipeline_pb2.Operation) -> None:
            fill.fill_delete_json(operation.set_json, self._key, path)
            operation.set_json.namespace = self._scope.namespace

        return await self._change(build)

    async def _change(self, build: Any) -> int:
        version: int = await self._connection.write(
            self._key, len(self._key), self._scope.timeout_s, build, _version
        )
        return version


def _version(result: pipeline_pb2.OperationResult) -> Any:
    return result.set_json.header.index
