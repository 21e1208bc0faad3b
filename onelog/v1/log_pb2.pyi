from onelog.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Owner(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OWNER_SYSTEM: _ClassVar[Owner]
    OWNER_KV: _ClassVar[Owner]
    OWNER_QUEUE: _ClassVar[Owner]
    OWNER_TIME_SERIES: _ClassVar[Owner]
    OWNER_STREAM: _ClassVar[Owner]
OWNER_SYSTEM: Owner
OWNER_KV: Owner
OWNER_QUEUE: Owner
OWNER_TIME_SERIES: Owner
OWNER_STREAM: Owner

class Entry(_message.Message):
    __slots__ = ("shard", "index", "term", "timestamp_ns", "entry_type", "group_left", "payload", "unreadable_through")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_LEFT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_THROUGH_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    term: int
    timestamp_ns: int
    entry_type: int
    group_left: int
    payload: bytes
    unreadable_through: int
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., entry_type: _Optional[int] = ..., group_left: _Optional[int] = ..., payload: _Optional[bytes] = ..., unreadable_through: _Optional[int] = ...) -> None: ...

class UnreadableRange(_message.Message):
    __slots__ = ("first_index", "last_index")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ...) -> None: ...

class DescribeLogRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class DescribeLogResponse(_message.Message):
    __slots__ = ("cluster_id", "shard", "shard_count", "first_index", "cut_index", "cut_timestamp_ns", "first_as_of_index", "spans", "snapshots", "cost")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    CUT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CUT_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AS_OF_INDEX_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    shard: int
    shard_count: int
    first_index: int
    cut_index: int
    cut_timestamp_ns: int
    first_as_of_index: int
    spans: _containers.RepeatedCompositeFieldContainer[LogSpan]
    snapshots: _containers.RepeatedCompositeFieldContainer[KeptSnapshot]
    cost: _common_pb2.Cost
    def __init__(self, cluster_id: _Optional[str] = ..., shard: _Optional[int] = ..., shard_count: _Optional[int] = ..., first_index: _Optional[int] = ..., cut_index: _Optional[int] = ..., cut_timestamp_ns: _Optional[int] = ..., first_as_of_index: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[LogSpan, _Mapping]]] = ..., snapshots: _Optional[_Iterable[_Union[KeptSnapshot, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class LogSpan(_message.Message):
    __slots__ = ("first_index", "last_index", "first_timestamp_ns", "last_timestamp_ns", "entry_count", "size", "sealed", "owner_counts", "damaged")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    OWNER_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    entry_count: int
    size: int
    sealed: bool
    owner_counts: _containers.RepeatedScalarFieldContainer[int]
    damaged: bool
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., first_timestamp_ns: _Optional[int] = ..., last_timestamp_ns: _Optional[int] = ..., entry_count: _Optional[int] = ..., size: _Optional[int] = ..., sealed: _Optional[bool] = ..., owner_counts: _Optional[_Iterable[int]] = ..., damaged: _Optional[bool] = ...) -> None: ...

class KeptSnapshot(_message.Message):
    __slots__ = ("index", "term", "size", "state_hash", "timestamp_ns")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    size: int
    state_hash: int
    timestamp_ns: int
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., size: _Optional[int] = ..., state_hash: _Optional[int] = ..., timestamp_ns: _Optional[int] = ...) -> None: ...

class ReadLogFramesRequest(_message.Message):
    __slots__ = ("shard", "first_index", "last_index", "owners", "bytes_per_second_max")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_MAX_FIELD_NUMBER: _ClassVar[int]
    shard: int
    first_index: int
    last_index: int
    owners: _containers.RepeatedScalarFieldContainer[Owner]
    bytes_per_second_max: int
    def __init__(self, shard: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., owners: _Optional[_Iterable[_Union[Owner, str]]] = ..., bytes_per_second_max: _Optional[int] = ...) -> None: ...

class LogFrame(_message.Message):
    __slots__ = ("first_index", "last_index", "offsets", "voids", "data", "cost")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    VOIDS_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    offsets: bytes
    voids: _containers.RepeatedCompositeFieldContainer[VoidRange]
    data: bytes
    cost: _common_pb2.Cost
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., offsets: _Optional[bytes] = ..., voids: _Optional[_Iterable[_Union[VoidRange, _Mapping]]] = ..., data: _Optional[bytes] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class VoidRange(_message.Message):
    __slots__ = ("first_index", "last_index")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ...) -> None: ...

class ReadSnapshotRequest(_message.Message):
    __slots__ = ("shard", "index")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("data", "size", "cost")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size: int
    cost: _common_pb2.Cost
    def __init__(self, data: _Optional[bytes] = ..., size: _Optional[int] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...
