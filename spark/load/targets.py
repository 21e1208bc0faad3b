"""What rows are written to: keys, a stream or a queue; ``series`` has the fourth target.

A target names its columns, brings rows into canonical form and refuses what cannot be written
(``prepare``), finds the shard of each row, and turns rows into operations of a transaction. Names
and limits are those of docs/api.md. Whatever depends on the state of the database (a full queue, a
value above the limit of a namespace) is refused by the server.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onelog.errors import InvalidArgument
from onelog.spark.load.columns import Column, Kind, check, fits, to_canonical_form
from onelog.spark.load.progress import PREFIX

# A transaction has 1,000 operations, and one of them is the progress.
CHUNK_ROWS_MAX = 999
KEY_SIZE_MAX = 4_096
VALUE_SIZE_MAX = (8 << 20) - (64 << 10)
NAME_SIZE_MAX = 128
MESSAGE_KEY_SIZE_MAX = 128
TTL_NS_MAX = 100 * 365 * 86_400 * 10**9
PRIORITY_MAX = 15
PARTITIONS_MAX = 256
_MS_NS = 10**6
_RECORD_HEADERS = b"\x1a"  # NewRecord.headers = 3
_MESSAGE_HEADERS = b"\x4a"  # NewMessage.headers = 9
_RESERVED = (b"cg:", b"_ts:", PREFIX)

ShardOf = Callable[[bytes], int]


class Target(ABC):
    """What rows are written to."""

    to: ClassVar[str]

    # Columns by their names.
    columns: Mapping[str, Column]

    # Rows of one transaction.
    chunk_rows_max: int = CHUNK_ROWS_MAX

    # Whether the position in a refusal, which counts puts, records and messages, is that of a row.
    is_by_row: ClassVar[bool] = True

    def __init__(self, namespace: str, name: str) -> None:
        self.namespace = namespace
        self.name = name  # of the stream, queue or measurement; empty: a column holds it

    @property
    def description(self) -> str:
        """A text that identifies the target; the digest of rows begins with it."""
        return f"{self.to} {self.name!r} of {self.namespace or 'default'!r}"

    def check_schema(self, schema: pa.Schema) -> None:
        """Refuse columns that are missing, unknown, or of another type."""
        for name in schema.names:
            if name not in self.columns:
                known = ", ".join(sorted(self.columns))
                raise InvalidArgument(
                    f"{self.to} have no column {name!r}; there are {known}",
                    reason="COLUMN_UNKNOWN",
                    metadata={"column": name},
                )
        if len(set(schema.names)) < len(schema.names):
            raise InvalidArgument("a column occurs twice", reason="COLUMN_TWICE")
        for name, column in self.columns.items():
            at = schema.get_field_index(name)
            if at < 0 and column.is_required:
                raise InvalidArgument(
                    f"the column {name!r} is missing",
                    reason="COLUMN_MISSING",
                    metadata={"column": name},
                )
            if at >= 0 and not fits(column.kind, schema.field(at).type):
                raise InvalidArgument(
                    f"column {name!r} is {column.kind.value}, not {schema.field(at).type}",
                    reason="COLUMN_TYPE_INVALID",
                    metadata={"column": name},
                )

    def prepare(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Return rows in canonical form; refuse the first that cannot be written."""
        self.check_schema(batch.schema)
        found: dict[str, pa.Array] = {}
        for name, column in self.columns.items():
            at = batch.schema.get_field_index(name)
            if at < 0:
                continue
            array = batch.column(at)
            if column.is_required:
                check(array.is_null(), first_row, name, "is null", "COLUMN_NULL")
            found[name] = to_canonical_form(column, name, array, first_row)
        rows = pa.RecordBatch.from_arrays(list(found.values()), list(found))
        self.check_rows(rows, first_row)
        return rows

    @abstractmethod
    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """Refuse the first row that the database would refuse in any state."""

    def shards(self, rows: pa.RecordBatch, find_shard: ShardOf) -> NDArray[np.int64]:
        """Return the shard of each row."""
        return np.full(rows.num_rows, find_shard(self.name.encode()), np.int64)

    @abstractmethod
    def fill(self, operations: Any, rows: pa.RecordBatch) -> None:
        """Add operations that write these rows to a transaction."""


class Keys(Target):
    """Keys and values."""

    to = "keys"

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace, "")
        self.columns = {
            "key": Column(Kind.BYTES, is_required=True),
            "value": Column(Kind.BYTES, is_required=True),
            "ttl_ns": Column(Kind.INTEGER),
            "expires": Column(Kind.TIME),
        }

    def check_schema(self, schema: pa.Schema) -> None:
        """See ``Target``; a key has one lifetime."""
        super().check_schema(schema)
        if {"ttl_ns", "expires"} <= set(schema.names):
            raise InvalidArgument("give either ttl_ns or expires", reason="COLUMNS_CONFLICT")

    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """See ``Target``."""
        keys = rows.column("key")
        _check_size(keys, first_row, "key", 1, KEY_SIZE_MAX, "KEY_SIZE_INVALID")
        for prefix in _RESERVED:
            text = prefix.decode()
            check(pc.starts_with(keys, pattern=text), first_row, "key",
                  f"begins with {text}, which is reserved", "KEY_RESERVED")  # fmt: skip
        _check_size(rows.column("value"), first_row, "value", 0, VALUE_SIZE_MAX, "VALUE_TOO_LARGE")
        if "ttl_ns" in rows.schema.names:
            _check_range(rows.column("ttl_ns"), first_row, "ttl_ns", 0, TTL_NS_MAX, "TTL_INVALID")

    def shards(self, rows: pa.RecordBatch, find_shard: ShardOf) -> NDArray[np.int64]:
        """See ``Target``."""
        keys = rows.column("key").to_pylist()
        return np.fromiter(map(find_shard, keys), np.int64, len(keys))

    def fill(self, operations: Any, rows: pa.RecordBatch) -> None:
        """See ``Target``."""
        add = operations.add
        lifetimes = _lifetimes_ms(rows)
        pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), lifetimes,
                    strict=True)  # fmt: skip
        for key, value, ttl_ms in pairs:
            put = add().put
            put.key = key
            put.value = value
            if ttl_ms:
                put.ttl_ms = ttl_ms


def _lifetimes_ms(rows: pa.RecordBatch) -> list[int]:
    """Return each key's lifetime, 0: for ever; one that has passed becomes the shortest."""
    if "ttl_ns" in rows.schema.names:
        return _to_ms(rows.column("ttl_ns"))
    if "expires" not in rows.schema.names:
        return [0] * rows.num_rows
    now_ns = time.time_ns()
    return [
        0 if at is None else min(max(1, -(-(at - now_ns) // _MS_NS)), TTL_NS_MAX // _MS_NS)
        for at in rows.column("expires").to_pylist()
    ]


def _to_ms(column: pa.Array) -> list[int]:
    """Return durations in milliseconds, rounded up, so that only 0 becomes 0."""
    return [0 if each is None else -(-each // _MS_NS) for each in column.to_pylist()]


class Named(Target):
    """A target with a name, which an option or a column gives."""

    name_reason: ClassVar[str]

    def __init__(self, namespace: str, name: str, columns: Mapping[str, Column]) -> None:
        super().__init__(namespace, name)
        named = {} if name else {self.to: Column(Kind.TEXT, is_required=True)}
        self.columns = {**named, **columns}
        if name:
            self._check_name(name)

    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """See ``Target``."""
        if not self.name:
            names = rows.column(self.to)
            _check_size(names, first_row, self.to, 1, NAME_SIZE_MAX, self.name_reason)
            for name in pc.unique(names).to_pylist():
                self._check_name(name.decode())

    def _check_name(self, name: str) -> None:
        if not 0 < len(name.encode()) <= NAME_SIZE_MAX:
            raise InvalidArgument(
                f"the name of a {self.to} has 1 to {NAME_SIZE_MAX} bytes", reason=self.name_reason
            )

    def shards(self, rows: pa.RecordBatch, find_shard: ShardOf) -> NDArray[np.int64]:
        """See ``Target``."""
        if self.name:
            return super().shards(rows, find_shard)
        encoded = rows.column(self.to).dictionary_encode()
        shards = np.array([find_shard(each) for each in encoded.dictionary.to_pylist()], np.int64)
        found: NDArray[np.int64] = shards[encoded.indices.to_numpy()]
        return found

    def _names(self, rows: pa.RecordBatch) -> list[str]:
        if self.name:
            return [self.name] * rows.num_rows
        return [each.decode() for each in rows.column(self.to).to_pylist()]


class Stream(Named):
    """Records of a stream, or of the streams that a column names."""

    to = "stream"
    name_reason = "STREAM_NAME_INVALID"

    def __init__(self, namespace: str, name: str) -> None:
        columns = {
            "value": Column(Kind.BYTES, is_required=True),
            "key": Column(Kind.BYTES),
            "headers": Column(Kind.HEADERS, tag=_RECORD_HEADERS),
            "tag": Column(Kind.TEXT),
            "partition": Column(Kind.INTEGER),
        }
        super().__init__(namespace, name, columns)

    def _check_name(self, name: str) -> None:
        super()._check_name(name)
        if ":" in name:
            raise InvalidArgument("the name of a stream has no colon", reason=self.name_reason)

    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """See ``Target``."""
        super().check_rows(rows, first_row)
        names = rows.schema.names
        _check_size(rows.column("value"), first_row, "value", 0, VALUE_SIZE_MAX, "VALUE_TOO_LARGE")
        if "key" in names:
            _check_size(rows.column("key"), first_row, "key", 0, KEY_SIZE_MAX, "KEY_SIZE_INVALID")
        if "partition" in names:
            _check_range(rows.column("partition"), first_row, "partition", 0, PARTITIONS_MAX - 1,
                         "PARTITION_UNKNOWN")  # fmt: skip

    def fill(self, operations: Any, rows: pa.RecordBatch) -> None:
        """See ``Target``."""
        add = operations.add
        keys, headers, tags, partitions = (
            _optional(rows, name) for name in ("key", "headers", "tag", "partition")
        )
        is_plain = not (keys or headers or tags or partitions)
        names, name = self._names(rows), ""
        for row, value in enumerate(rows.column("value").to_pylist()):
            if names[row] != name:  # records that follow each other are one operation
                request = add().append_records
                request.stream = name = names[row]
                new = request.records.add
            record = new()
            record.value = value
            if is_plain:
                continue
            if keys and keys[row] is not None:
                record.key = keys[row]
            if headers and headers[row]:
                record.MergeFromString(headers[row])
            if tags and tags[row]:
                record.tag = tags[row].decode()
            if partitions and partitions[row] is not None:
                record.partition = partitions[row]


class Queue(Named):
    """Messages of a queue, or of the queues that a column names."""

    to = "queue"
    name_reason = "QUEUE_NAME_INVALID"

    def __init__(self, namespace: str, name: str) -> None:
        columns = {
            "body": Column(Kind.BYTES, is_required=True),
            "priority": Column(Kind.INTEGER),
            "delay_ns": Column(Kind.INTEGER),
            "ttl_ns": Column(Kind.INTEGER),
            "headers": Column(Kind.HEADERS, tag=_MESSAGE_HEADERS),
            "dedup": Column(Kind.BYTES),
            "group": Column(Kind.BYTES),
            "tenant": Column(Kind.BYTES),
        }
        super().__init__(namespace, name, columns)

    def check_rows(self, rows: pa.RecordBatch, first_row: int) -> None:
        """See ``Target``."""
        super().check_rows(rows, first_row)
        _check_size(rows.column("body"), first_row, "body", 0, VALUE_SIZE_MAX, "MESSAGE_TOO_LARGE")
        for name, limit, reason in (
            ("priority", PRIORITY_MAX, "PRIORITY_INVALID"),
            ("delay_ns", TTL_NS_MAX, "DELAY_INVALID"),
            ("ttl_ns", TTL_NS_MAX, "TTL_INVALID"),
        ):
            if name in rows.schema.names:
                _check_range(rows.column(name), first_row, name, 0, limit, reason)
        for name in ("dedup", "group", "tenant"):
            if name in rows.schema.names:
                _check_size(rows.column(name), first_row, name, 0, MESSAGE_KEY_SIZE_MAX,
                            "MESSAGE_KEY_INVALID")  # fmt: skip

    def fill(self, operations: Any, rows: pa.RecordBatch) -> None:
        """See ``Target``."""
        add = operations.add
        priorities, headers, dedups, groups, tenants = (
            _optional(rows, name) for name in ("priority", "headers", "dedup", "group", "tenant")
        )
        delays, lifetimes = (
            _to_ms(rows.column(name)) if name in rows.schema.names else None
            for name in ("delay_ns", "ttl_ns")
        )
        names, name = self._names(rows), ""
        for row, body in enumerate(rows.column("body").to_pylist()):
            if names[row] != name:  # messages that follow each other are one operation
                request = add().enqueue
                request.queue = name = names[row]
                new = request.messages.add
            message = new()
            message.body = body
            if priorities and priorities[row] is not None:
                message.priority = priorities[row]
            if delays and delays[row]:
                message.delay_ms = delays[row]
            if lifetimes and lifetimes[row]:
                message.ttl_ms = lifetimes[row]
            if headers and headers[row]:
                message.MergeFromString(headers[row])
            if dedups and dedups[row]:
                message.dedup_id = dedups[row]
            if groups and groups[row]:
                message.group = groups[row]
            if tenants and tenants[row]:
                message.tenant = tenants[row]


def _optional(rows: pa.RecordBatch, name: str) -> list[Any] | None:
    return rows.column(name).to_pylist() if name in rows.schema.names else None


def _check_size(
    column: pa.Array, first_row: int, name: str, least: int, most: int, reason: str
) -> None:
    sizes = pc.binary_length(column)
    beyond = pc.or_(pc.less(sizes, least), pc.greater(sizes, most))
    check(beyond, first_row, name, f"has not {least} to {most} bytes", reason)


def _check_range(
    column: pa.Array, first_row: int, name: str, least: int, most: int, reason: str
) -> None:
    beyond = pc.or_(pc.less(column, least), pc.greater(column, most))
    check(beyond, first_row, name, f"is not {least} to {most}", reason)
