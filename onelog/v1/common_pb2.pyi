from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_SYNC: _ClassVar[Durability]
    DURABILITY_ASYNC: _ClassVar[Durability]

class ReadLevel(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_LEVEL_UNSPECIFIED: _ClassVar[ReadLevel]
    READ_LEVEL_LINEARIZABLE: _ClassVar[ReadLevel]
    READ_LEVEL_STALE: _ClassVar[ReadLevel]
    READ_LEVEL_LEASE: _ClassVar[ReadLevel]

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_HOT: _ClassVar[Tier]
    TIER_WARM: _ClassVar[Tier]
    TIER_COLD: _ClassVar[Tier]
DURABILITY_UNSPECIFIED: Durability
DURABILITY_SYNC: Durability
DURABILITY_ASYNC: Durability
READ_LEVEL_UNSPECIFIED: ReadLevel
READ_LEVEL_LINEARIZABLE: ReadLevel
READ_LEVEL_STALE: ReadLevel
READ_LEVEL_LEASE: ReadLevel
TIER_UNSPECIFIED: Tier
TIER_HOT: Tier
TIER_WARM: Tier
TIER_COLD: Tier

class Session(_message.Message):
    __slots__ = ("session_id", "sequence", "first_unacknowledged")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_UNACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    sequence: int
    first_unacknowledged: int
    def __init__(self, session_id: _Optional[int] = ..., sequence: _Optional[int] = ..., first_unacknowledged: _Optional[int] = ...) -> None: ...

class WriteOptions(_message.Message):
    __slots__ = ("session", "durability", "with_cost")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    WITH_COST_FIELD_NUMBER: _ClassVar[int]
    session: Session
    durability: Durability
    with_cost: bool
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., durability: _Optional[_Union[Durability, str]] = ..., with_cost: _Optional[bool] = ...) -> None: ...

class ReadOptions(_message.Message):
    __slots__ = ("level", "max_staleness_ms", "min_index", "as_of_index", "with_cost")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    MAX_STALENESS_MS_FIELD_NUMBER: _ClassVar[int]
    MIN_INDEX_FIELD_NUMBER: _ClassVar[int]
    AS_OF_INDEX_FIELD_NUMBER: _ClassVar[int]
    WITH_COST_FIELD_NUMBER: _ClassVar[int]
    level: ReadLevel
    max_staleness_ms: int
    min_index: int
    as_of_index: int
    with_cost: bool
    def __init__(self, level: _Optional[_Union[ReadLevel, str]] = ..., max_staleness_ms: _Optional[int] = ..., min_index: _Optional[int] = ..., as_of_index: _Optional[int] = ..., with_cost: _Optional[bool] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("wait_ns", "raft_ns", "fsync_ns", "scanned", "tier", "round_ns")
    WAIT_NS_FIELD_NUMBER: _ClassVar[int]
    RAFT_NS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_NS_FIELD_NUMBER: _ClassVar[int]
    SCANNED_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ROUND_NS_FIELD_NUMBER: _ClassVar[int]
    wait_ns: int
    raft_ns: int
    fsync_ns: int
    scanned: int
    tier: Tier
    round_ns: int
    def __init__(self, wait_ns: _Optional[int] = ..., raft_ns: _Optional[int] = ..., fsync_ns: _Optional[int] = ..., scanned: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., round_ns: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("shard", "index", "events_sent", "new_after")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EVENTS_SENT_FIELD_NUMBER: _ClassVar[int]
    NEW_AFTER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    events_sent: int
    new_after: int
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., events_sent: _Optional[int] = ..., new_after: _Optional[int] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("positions",)
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    def __init__(self, positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ...) -> None: ...

class WriteHeader(_message.Message):
    __slots__ = ("shard", "index", "duplicate", "cost")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    duplicate: bool
    cost: Cost
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., duplicate: _Optional[bool] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class ReadHeader(_message.Message):
    __slots__ = ("shard", "applied_index", "cost")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    shard: int
    applied_index: int
    cost: Cost
    def __init__(self, shard: _Optional[int] = ..., applied_index: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata", "retry_after_ms", "cost")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: str
    message: str
    metadata: _containers.ScalarMap[str, str]
    retry_after_ms: int
    cost: Cost
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., retry_after_ms: _Optional[int] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...
