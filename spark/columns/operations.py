"""Names of owners and operations, by the numbers in an entry's type (docs/payloads.md)."""

from typing import Final

OWNERS: Final = ("system", "kv", "queue", "timeseries", "stream")

_NAMES: Final = {
    "system": (
        "noop", "raft_config", "expire", "session_open", "session_keepalive", "session_close",
        "namespace_create", "namespace_configure", "namespace_delete", "batch", "hold_set",
        "hold_release", "hold_break",
    ),
    "kv": (
        "put", "delete", "touch", "increment", "min", "max", "append", "json_set", "json_delete",
        "lease_grant", "lease_keepalive", "lease_revoke", "transaction", "delete_range", "put_many",
    ),
    "queue": (
        "enqueue", "lease", "ack", "nack", "extend", "release", "cancel", "prioritise", "purge",
        "redrive", "redrive_step", "redrive_cancel", "schedule_create", "schedule_delete",
        "schedule_fire", "queue_create", "queue_configure", "queue_delete", "queue_pause",
        "queue_resume",
    ),
    "timeseries": (
        "ts_write", "ts_write_batch", "ts_block", "measurement_create", "measurement_configure",
        "measurement_drop", "ts_delete", "rule_set", "rule_drop", "ts_trim", "ts_rollup",
        "ts_rollup_begin",
    ),
    "stream": (
        "append", "create", "configure", "delete", "trim", "retain", "group_create",
        "group_configure", "group_delete", "group_join", "group_leave", "group_heartbeat",
        "group_commit", "group_seek", "deliver", "ack", "nack", "dead_letter", "claim",
        "trim_to",
    ),
}  # fmt: skip

# Every entry type that this version writes, by its number.
OPERATIONS: Final[dict[int, str]] = {
    number << 8 | place: name
    for number, owner in enumerate(OWNERS)
    for place, name in enumerate(_NAMES[owner], 1)
}

# Operations that occur only in a transaction, numbered as if they were entries.
NESTED: Final[dict[int, str]] = {0x0120: "get"}

# Entry types by owner and name: streams and queues both have an operation ``ack``.
TYPES: Final[dict[tuple[str, str], int]] = {
    (OWNERS[number >> 8], name): number for number, name in OPERATIONS.items()
}


def find_types(owner: str, *operations: str) -> frozenset[int]:
    """Return the entry types of some operations, or of all operations of an owner."""
    names = operations or _NAMES[owner]
    return frozenset(TYPES[owner, name] for name in names)
