"""Operations on keys as they are sent: filled in here for calls, transactions and batches alike."""

import json
from collections.abc import Sequence
from typing import Any

from onelog.client.values import Key, Value, milliseconds, to_bytes
from onelog.errors import InvalidArgument
from onelog.v1 import kv_pb2

Path = str | int | Sequence[str | int]

_COMPARISONS: dict[str, kv_pb2.Comparison] = {
    "==": kv_pb2.COMPARISON_EQUAL,
    "!=": kv_pb2.COMPARISON_NOT_EQUAL,
    "<": kv_pb2.COMPARISON_LESS,
    "<=": kv_pb2.COMPARISON_LESS_OR_EQUAL,
    ">": kv_pb2.COMPARISON_GREATER,
    ">=": kv_pb2.COMPARISON_GREATER_OR_EQUAL,
}


def fill_put(
    request: kv_pb2.PutRequest,
    key: Key,
    value: Value,
    ttl_s: float | None = None,
    lease_id: int = 0,
    expected_version: int | None = None,
) -> None:
    """Fill in a put."""
    request.key = to_bytes(key)
    request.value = to_bytes(value)
    if ttl_s:
        request.ttl_ms = milliseconds(ttl_s)
    if lease_id:
        request.lease_id = lease_id
    if expected_version is not None:
        request.expected_version = expected_version


def fill_delete(
    request: kv_pb2.DeleteRequest, key: Key, expected_version: int | None = None
) -> None:
    """Fill in a delete."""
    request.key = to_bytes(key)
    if expected_version is not None:
        request.expected_version = expected_version


def fill_touch(
    request: kv_pb2.TouchRequest,
    key: Key,
    ttl_s: float | None,
    expected_version: int | None = None,
) -> None:
    """Fill in a touch."""
    request.key = to_bytes(key)
    request.ttl_ms = milliseconds(ttl_s)
    if expected_version is not None:
        request.expected_version = expected_version


def fill_count(
    request: kv_pb2.CountRequest,
    key: Key,
    *,
    add: int | None = None,
    lower_to: int | None = None,
    raise_to: int | None = None,
) -> None:
    """Fill in a change of a number; exactly one of the changes is given."""
    request.key = to_bytes(key)
    if add is not None:
        request.add = add
    if lower_to is not None:
        request.lower_to = lower_to
    if raise_to is not None:
        request.raise_to = raise_to


def fill_append(request: kv_pb2.AppendRequest, key: Key, data: Value) -> None:
    """Fill in an append."""
    request.key = to_bytes(key)
    request.data = to_bytes(data)


def fill_set_json(
    request: kv_pb2.SetJsonRequest, key: Key, path: Path, value: Any, *, create_parents: bool = True
) -> None:
    """Fill in a change of a part of a document."""
    request.key = to_bytes(key)
    put_path(request.path, path)
    request.json = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    request.create_parents = create_parents


def fill_delete_json(request: kv_pb2.SetJsonRequest, key: Key, path: Path) -> None:
    """Fill in the removal of a part of a document."""
    request.key = to_bytes(key)
    put_path(request.path, path)


def put_path(message: kv_pb2.JsonPath, path: Path) -> None:
    """Write the way into a document: member names and element numbers."""
    for step in (path,) if isinstance(path, str | int) else path:
        if isinstance(step, str):
            message.steps.add().member = step
        else:
            message.steps.add().element = step


def put_range(
    message: kv_pb2.KeyRange, prefix: Key | None, start: Key | None, end: Key | None
) -> None:
    """Write a range of keys: those with a prefix, or from ``start`` to before ``end``."""
    if prefix is not None and (start is not None or end is not None):
        raise InvalidArgument("a range is a prefix, or start and end", reason="RANGE_INVALID")
    if prefix is not None:
        message.prefix = to_bytes(prefix)
    if start is not None:
        message.start = to_bytes(start)
    if end is not None:
        message.end = to_bytes(end)


def put_condition(
    message: kv_pb2.Condition,
    key: Key,
    *,
    exists: bool | None = None,
    version: int | None = None,
    value: Value | None = None,
    comparison: str = "==",
) -> None:
    """Write a condition; exactly one test is given."""
    if comparison not in _COMPARISONS:
        raise InvalidArgument(
            f"{comparison!r} is none of {' '.join(_COMPARISONS)}", reason="COMPARISON_INVALID"
        )
    if (exists is not None) + (version is not None) + (value is not None) != 1:
        raise InvalidArgument(
            "a condition is about existence, version or value", reason="CONDITION_INVALID"
        )
    message.key = to_bytes(key)
    if exists is not None:
        message.exists = exists
    if version is not None:
        message.version.comparison = _COMPARISONS[comparison]
        message.version.version = version
    if value is not None:
        message.value.comparison = _COMPARISONS[comparison]
        message.value.value = to_bytes(value)
