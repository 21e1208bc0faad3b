"""The plain puts of a message or of a batch: most of what there is, so they have their own way.

Over local names and without a command object in between; anything unusual is left to the ordinary
way. That both ways agree is a test.
"""

import struct
from collections.abc import Sequence
from typing import Any

from crc32c import crc32c

from onelog.errors import OnelogError
from onelog.node.edge.shards import Edge, namespace_of
from onelog.node.replica.durability import Durability
from onelog.node.services.plain import Run
from onelog.projections.codec import SessionRef, encode_prefix
from onelog.projections.kv.commands import TYPE_PUT, PutMany, encode_command
from onelog.projections.limits import (
    BATCH_ENTRIES_MAX,
    KEY_SIZE_MAX,
    KEYS_RESERVED,
    PUT_MANY_KEYS_MAX,
    VALUE_SIZE_MAX,
)
from onelog.ual.entry import Draft
from onelog.ual.routing import routing_key
from onelog.v1 import pipeline_pb2

_pack_put_head = struct.Struct("<BH").pack  # no options, size of the key
_pack_session = struct.Struct("<QQQ").pack  # as encode_prefix has it
SESSION_SIZE = 24
_join = b"".join
# All operations of a batch may be puts that go together.
assert BATCH_ENTRIES_MAX <= PUT_MANY_KEYS_MAX

Batched = tuple[Draft | None, int]
"""An entry of a batch, and of how many operations; None in the place of what is no plain put."""


def add_plain_puts(
    edge: Edge,
    request: pipeline_pb2.ExecuteRequest,
    session: SessionRef | None,
    runs: dict[int, list[Run]],
) -> range | None:
    """Take the plain puts from the message's start; return what is left from the first other.

    This loop is what a pipelined put costs before the log.
    """
    partitions, shards = edge.context.topology.partitions, edge.context.topology.shards
    checksum, pack, join = crc32c, _pack_put_head, _join
    key_max, value_max, reserved = KEY_SIZE_MAX, VALUE_SIZE_MAX, KEYS_RESERVED
    prefixes: dict[str, bytes] = {}
    numbers = b""
    if session is not None:
        session_id, sequence, first = session
        pack_session = _pack_session
    targets: dict[int, tuple[Any, Any]] = {}
    for position, operation in enumerate(request.operations):
        put = operation.put  # empty, if it is another operation
        key, value = put.key, put.value
        name = put.namespace
        prefix = prefixes.get(name)
        if prefix is None:
            try:
                prefix = encode_prefix(namespace_of(name), session)
            except OnelogError:
                return range(position, len(request.operations))
            if session is not None:
                prefix = prefix[:-SESSION_SIZE]  # of each put its own follows
            prefixes[name] = prefix
        size = len(key)
        if (
            put.ttl_ms
            or put.lease_id
            or not 0 < size <= key_max
            or len(value) > value_max
            or put.HasField("expected_version")
            or put.HasField("options")
            or key.startswith(reserved)
        ):
            return range(position, len(request.operations))
        tag = routing_key(key) if b"{" in key else key
        shard = checksum(tag) % partitions % shards
        target = targets.get(shard)
        if target is None:
            run = Run(Durability.SYNC)
            runs[shard] = [run]
            target = targets[shard] = run.drafts.append, run.puts.append
        if session is not None:
            numbers = pack_session(session_id, sequence + position, first)
        target[0]((TYPE_PUT, join((prefix, numbers, pack(0, size), key, value)), 0))
        target[1](position)
    return None


def batched_puts(
    operations: Sequence[pipeline_pb2.TransactOperation], namespace: str, names: list[bytes]
) -> list[Batched]:
    """Return what a batch becomes; puts that follow each other, of different keys, go together.

    They have one version then, which is why a key that comes again is a new entry: it keeps both.
    The keys of those that are plain are added to ``names``.
    """
    pack, join = _pack_put_head, _join
    key_max, value_max, reserved = KEY_SIZE_MAX, VALUE_SIZE_MAX, KEYS_RESERVED
    entries: list[Batched] = []
    run: dict[bytes, bytes] = {}  # bodies by their keys
    add_name = names.append
    for operation in operations:
        put = operation.put  # empty, if it is another operation
        key, value = put.key, put.value
        size = len(key)
        if (
            not 0 < size <= key_max
            or put.ttl_ms
            or put.lease_id
            or len(value) > value_max
            or put.HasField("expected_version")
            or key.startswith(reserved)
        ):
            _end_run(run, namespace, entries)
            entries.append((None, 1))
            continue
        if key in run:
            _end_run(run, namespace, entries)
        add_name(key)
        run[key] = join((pack(0, size), key, value))
    _end_run(run, namespace, entries)
    return entries


def _end_run(run: dict[bytes, bytes], namespace: str, entries: list[Batched]) -> None:
    """Make one entry of the puts that were collected."""
    if not run:
        return
    bodies = tuple(run.values())
    if len(bodies) > 1:
        draft = encode_command(PutMany(bodies), namespace)
    else:
        draft = Draft(TYPE_PUT, encode_prefix(namespace) + bodies[0])
    entries.append((draft, len(bodies)))
    run.clear()
