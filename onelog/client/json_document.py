"""A JSON document in a key, read and changed in parts: ``client.kv.json(key)``."""

import json
from typing import Any

from onelog.client import kv_requests as fill
from onelog.client.connection import Connection
from onelog.client.kv_requests import Path
from onelog.client.options import Scope
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Key, Read, to_bytes
from onelog.v1 import kv_pb2


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
        request = kv_pb2.SetJsonRequest()
        fill.fill_set_json(request, self._key, path, value, create_parents=create_parents)
        return await self._change(request)

    async def delete(self, path: Path) -> int:
        """Delete a part of the document and return the key's new version."""
        request = kv_pb2.SetJsonRequest()
        fill.fill_delete_json(request, self._key, path)
        return await self._change(request)

    async def _change(self, request: kv_pb2.SetJsonRequest) -> int:
        request.namespace = self._scope.namespace
        version: int = await self._connection.write(
            self._key,
            len(self._key),
            self._scope.timeout_s,
            lambda operation: operation.set_json.CopyFrom(request),
            lambda result: result.set_json.header.index,
        )
        return version
