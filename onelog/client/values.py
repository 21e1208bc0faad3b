"""What calls take and return: small values, the same in the async client and the blocking one.

Names of units are part of the names: ``_s`` seconds, ``_ns`` nanoseconds since 1970-01-01 UTC.
A version, an index or an offset is a position in the log of one shard.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from onelog.errors import InvalidArgument
from onelog.v1 import common_pb2, kv_pb2

Key = str | bytes
Value = str | bytes

STALE = common_pb2.READ_LEVEL_STALE
LEASE = common_pb2.READ_LEVEL_LEASE
ASYNC = common_pb2.DURABILITY_ASYNC

# What a field has room for, less what a float may be above it; some 300 million years.
MILLISECONDS_MAX = (1 << 63) - 1


def to_bytes(value: str | bytes) -> bytes:
    """Return a key, name or value as it is sent: text is UTF-8."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidArgument(f"bytes or str are expected, not {type(value).__name__}")


def milliseconds(seconds: float | None) -> int:
    """Return a duration as it is sent; a positive one never becomes 0, which means none."""
    if not seconds:
        return 0
    if not 0 < seconds * 1000 <= MILLISECONDS_MAX:
        raise InvalidArgument(f"a duration of {seconds} s", reason="DURATION_INVALID")
    return max(1, round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class Read:
    """What a read may miss; by default nothing that was acknowledged before it began."""

    # Ask any replica: anything may be missing that has not reached it.
    stale: bool = False

    # With ``stale``: refuse an answer that may be older than this.
    max_staleness_s: float | None = None

    # Wait until the replica has this index: a version that a write returned, so that one's own
    # writes are read.
    min_index: int = 0

    # The state as it was at this index; 0: now.
    as_of_index: int = 0

    # Let the leader answer by its lease, without asking the others whether it still leads. Nothing
    # is missing as long as the clocks of the servers run alike within a fifth.
    by_lease: bool = False

    @property
    def takes_long(self) -> bool:
        """Whether the answer may have to wait for something, and others are not to wait with it."""
        return bool(self.min_index or self.as_of_index)

    def put(self, options: common_pb2.ReadOptions) -> None:
        """Write it into a request."""
        if self.stale and self.by_lease:
            raise InvalidArgument("a stale read needs no lease", reason="LEVEL_INVALID")
        if self.by_lease:
            options.level = LEASE
        if self.stale:
            options.level = STALE
            options.max_staleness_ms = milliseconds(self.max_staleness_s)
        elif self.max_staleness_s is not None:
            raise InvalidArgument("a staleness is for stale reads", reason="STALENESS_INVALID")
        if self.min_index:
            options.min_index = self.min_index
        if self.as_of_index:
            options.as_of_index = self.as_of_index


class Item(NamedTuple):
    """A key as a read finds it."""

    key: bytes
    value: bytes
    version: int
    expires_ns: int = 0
    lease_id: int = 0

    @property
    def text(self) -> str:
        """The value as text."""
        return self.value.decode()

    def json(self) -> Any:
        """Return the value as a document."""
        return json.loads(self.value)


def item_of(found: kv_pb2.KeyValue) -> Item:
    """Return a key as the server sends it."""
    return Item(found.key, found.value, found.version, found.expires_ns, found.lease_id)


class Version(NamedTuple):
    """A past version of a key; the value is None where it was deleted."""

    version: int
    value: bytes | None
    expired: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Where a write stands in the log."""

    shard: int
    index: int
    duplicate: bool = False


def written_of(header: common_pb2.WriteHeader) -> Written:
    """Return where a write stands as the server says it."""
    return Written(header.shard, header.index, header.duplicate)


class TxnResult(NamedTuple):
    """What a transaction did: one result for each operation of the branch that was taken.

    A get has an ``Item`` or None, a counter its number, an append the size, a delete the count.
    """

    succeeded: bool
    version: int
    results: list[Item | int | None]


class LeaseInfo(NamedTuple):
    """A lease and the keys that go with it."""

    ttl_s: float
    expires_ns: int
    keys: list[bytes]


class Enqueued(NamedTuple):
    """A message that is in its queue; ``deduplicated``: it was there already."""

    message_id: int
    deduplicated: bool = False


class Message(NamedTuple):
    """A message of a queue, leased or looked at; ``token`` settles it."""

    message_id: int
    body: bytes
    token: int = 0
    delivery_count: int = 0
    headers: Mapping[str, bytes] = {}
    priority: int = 8
    group: bytes = b""
    tenant: bytes = b""
    enqueued_ns: int = 0
    lease_expires_ns: int = 0
    state: str = ""
    due_ns: int = 0

    def json(self) -> Any:
        """Return the body as a document."""
        return json.loads(self.body)


class Settled(NamedTuple):
    """What became of a message that was to be settled; no reason: it is done."""

    message_id: int
    reason: str = ""
    dead: bool = False


class Appended(NamedTuple):
    """Where a record stands; ``duplicate``: the producer had sent it before."""

    offset: int
    partition: int = 0
    duplicate: bool = False


class Gap(NamedTuple):
    """Records that are gone, and why."""

    first_offset: int
    last_offset: int
    reason: str


class Record(NamedTuple):
    """A record of a stream; with ``gap`` it stands for records that are gone."""

    offset: int
    value: bytes
    key: bytes | None = None
    partition: int = 0
    headers: Mapping[str, bytes] = {}
    tag: str = ""
    timestamp_ns: int = 0
    stream: str = ""
    delivery_count: int = 0
    gap: Gap | None = None

    def json(self) -> Any:
        """Return the value as a document."""
        return json.loads(self.value)
