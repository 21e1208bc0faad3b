from onelog.v1 import common_pb2 as _common_pb2
from onelog.v1 import queue_pb2 as _queue_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class KeyHash(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_HASH_UNSPECIFIED: _ClassVar[KeyHash]
    KEY_HASH_CRC32C: _ClassVar[KeyHash]
    KEY_HASH_MIXED: _ClassVar[KeyHash]
KEY_HASH_UNSPECIFIED: KeyHash
KEY_HASH_CRC32C: KeyHash
KEY_HASH_MIXED: KeyHash

class Retention(_message.Message):
    __slots__ = ("age_ms", "size_max", "count_max", "past_groups")
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    COUNT_MAX_FIELD_NUMBER: _ClassVar[int]
    PAST_GROUPS_FIELD_NUMBER: _ClassVar[int]
    age_ms: int
    size_max: int
    count_max: int
    past_groups: bool
    def __init__(self, age_ms: _Optional[int] = ..., size_max: _Optional[int] = ..., count_max: _Optional[int] = ..., past_groups: _Optional[bool] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition_count", "retention", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition_count: int
    retention: Retention
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition_count: _Optional[int] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CreateStreamResponse(_message.Message):
    __slots__ = ("header", "stream_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    stream_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., stream_id: _Optional[int] = ...) -> None: ...

class ConfigureStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "retention", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    retention: Retention
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ConfigureStreamResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteStreamResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class GetStreamRequest(_message.Message):
    __slots__ = ("namespace", "stream", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetStreamResponse(_message.Message):
    __slots__ = ("header", "stream")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    stream: StreamInfo
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., stream: _Optional[_Union[StreamInfo, _Mapping]] = ...) -> None: ...

class StreamInfo(_message.Message):
    __slots__ = ("namespace", "stream", "stream_id", "retention", "partitions", "groups", "key_hash")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    KEY_HASH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    stream_id: int
    retention: Retention
    partitions: _containers.RepeatedCompositeFieldContainer[PartitionInfo]
    groups: _containers.RepeatedScalarFieldContainer[str]
    key_hash: KeyHash
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., stream_id: _Optional[int] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[PartitionInfo, _Mapping]]] = ..., groups: _Optional[_Iterable[str]] = ..., key_hash: _Optional[_Union[KeyHash, str]] = ...) -> None: ...

class PartitionInfo(_message.Message):
    __slots__ = ("partition", "first_offset", "last_offset", "record_count", "size")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    first_offset: int
    last_offset: int
    record_count: int
    size: int
    def __init__(self, partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("namespace", "prefix", "page_size", "page_token", "options", "routing_key")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    prefix: str
    page_size: int
    page_token: bytes
    options: _common_pb2.ReadOptions
    routing_key: bytes
    def __init__(self, namespace: _Optional[str] = ..., prefix: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ..., routing_key: _Optional[bytes] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams", "next_page_token", "cost")
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    streams: _containers.RepeatedCompositeFieldContainer[StreamInfo]
    next_page_token: bytes
    cost: _common_pb2.Cost
    def __init__(self, streams: _Optional[_Iterable[_Union[StreamInfo, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class Producer(_message.Message):
    __slots__ = ("producer_id", "epoch", "sequence")
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    epoch: int
    sequence: int
    def __init__(self, producer_id: _Optional[int] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ...) -> None: ...

class NewRecord(_message.Message):
    __slots__ = ("value", "key", "headers", "tag", "partition")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[_queue_pb2.Header]
    tag: str
    partition: int
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[_queue_pb2.Header, _Mapping]]] = ..., tag: _Optional[str] = ..., partition: _Optional[int] = ...) -> None: ...

class AppendRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "records", "producer", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    records: _containers.RepeatedCompositeFieldContainer[NewRecord]
    producer: Producer
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., records: _Optional[_Iterable[_Union[NewRecord, _Mapping]]] = ..., producer: _Optional[_Union[Producer, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class AppendRecordsResponse(_message.Message):
    __slots__ = ("header", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    results: _containers.RepeatedCompositeFieldContainer[AppendResult]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., results: _Optional[_Iterable[_Union[AppendResult, _Mapping]]] = ...) -> None: ...

class AppendResult(_message.Message):
    __slots__ = ("offset", "partition", "duplicate", "error")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    offset: int
    partition: int
    duplicate: bool
    error: _common_pb2.Error
    def __init__(self, offset: _Optional[int] = ..., partition: _Optional[int] = ..., duplicate: _Optional[bool] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class Record(_message.Message):
    __slots__ = ("offset", "partition", "value", "key", "headers", "tag", "timestamp_ns", "stream", "delivery_count", "gap")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    GAP_FIELD_NUMBER: _ClassVar[int]
    offset: int
    partition: int
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[_queue_pb2.Header]
    tag: str
    timestamp_ns: int
    stream: str
    delivery_count: int
    gap: Gap
    def __init__(self, offset: _Optional[int] = ..., partition: _Optional[int] = ..., value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[_queue_pb2.Header, _Mapping]]] = ..., tag: _Optional[str] = ..., timestamp_ns: _Optional[int] = ..., stream: _Optional[str] = ..., delivery_count: _Optional[int] = ..., gap: _Optional[_Union[Gap, _Mapping]] = ...) -> None: ...

class Gap(_message.Message):
    __slots__ = ("first_offset", "last_offset", "reason")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    reason: str
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class RecordFilter(_message.Message):
    __slots__ = ("keys", "tags", "headers", "key_prefix", "header_names")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    HEADER_NAMES_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    tags: _containers.RepeatedScalarFieldContainer[str]
    headers: _containers.RepeatedCompositeFieldContainer[_queue_pb2.Header]
    key_prefix: bytes
    header_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[bytes]] = ..., tags: _Optional[_Iterable[str]] = ..., headers: _Optional[_Iterable[_Union[_queue_pb2.Header, _Mapping]]] = ..., key_prefix: _Optional[bytes] = ..., header_names: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "from_offset", "from_ns", "limit", "filter", "options", "wait_ms")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: int
    from_offset: int
    from_ns: int
    limit: int
    filter: RecordFilter
    options: _common_pb2.ReadOptions
    wait_ms: int
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., from_offset: _Optional[int] = ..., from_ns: _Optional[int] = ..., limit: _Optional[int] = ..., filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class ReadRecordsResponse(_message.Message):
    __slots__ = ("header", "records", "next_offset")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    records: _containers.RepeatedCompositeFieldContainer[Record]
    next_offset: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class TailRequest(_message.Message):
    __slots__ = ("namespace", "streams", "filter", "cursor")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    streams: _containers.RepeatedCompositeFieldContainer[TailStart]
    filter: RecordFilter
    cursor: _common_pb2.Cursor
    def __init__(self, namespace: _Optional[str] = ..., streams: _Optional[_Iterable[_Union[TailStart, _Mapping]]] = ..., filter: _Optional[_Union[RecordFilter, _Mapping]] = ..., cursor: _Optional[_Union[_common_pb2.Cursor, _Mapping]] = ...) -> None: ...

class TailStart(_message.Message):
    __slots__ = ("stream", "partition", "from_offset", "from_ns")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    stream: str
    partition: int
    from_offset: int
    from_ns: int
    def __init__(self, stream: _Optional[str] = ..., partition: _Optional[int] = ..., from_offset: _Optional[int] = ..., from_ns: _Optional[int] = ...) -> None: ...

class TailResponse(_message.Message):
    __slots__ = ("records", "cursor", "cost")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[Record]
    cursor: _common_pb2.Cursor
    cost: _common_pb2.Cost
    def __init__(self, records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ..., cursor: _Optional[_Union[_common_pb2.Cursor, _Mapping]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class TrimRequest(_message.Message):
    __slots__ = ("namespace", "stream", "partition", "below_offset", "age_ms", "keep_size", "keep_count", "past_groups", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BELOW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_SIZE_FIELD_NUMBER: _ClassVar[int]
    KEEP_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAST_GROUPS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    partition: int
    below_offset: int
    age_ms: int
    keep_size: int
    keep_count: int
    past_groups: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., partition: _Optional[int] = ..., below_offset: _Optional[int] = ..., age_ms: _Optional[int] = ..., keep_size: _Optional[int] = ..., keep_count: _Optional[int] = ..., past_groups: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class TrimResponse(_message.Message):
    __slots__ = ("header", "partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    partitions: _containers.RepeatedCompositeFieldContainer[TrimmedPartition]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., partitions: _Optional[_Iterable[_Union[TrimmedPartition, _Mapping]]] = ...) -> None: ...

class TrimmedPartition(_message.Message):
    __slots__ = ("left", "kept_for_group")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    KEPT_FOR_GROUP_FIELD_NUMBER: _ClassVar[int]
    left: PartitionInfo
    kept_for_group: str
    def __init__(self, left: _Optional[_Union[PartitionInfo, _Mapping]] = ..., kept_for_group: _Optional[str] = ...) -> None: ...

class GroupConfig(_message.Message):
    __slots__ = ("shared", "max_deliveries", "dead_letter_stream", "filter")
    SHARED_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_STREAM_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    shared: bool
    max_deliveries: int
    dead_letter_stream: str
    filter: RecordFilter
    def __init__(self, shared: _Optional[bool] = ..., max_deliveries: _Optional[int] = ..., dead_letter_stream: _Optional[str] = ..., filter: _Optional[_Union[RecordFilter, _Mapping]] = ...) -> None: ...

class CreateGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "from_offset", "from_ns", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    from_offset: int
    from_ns: int
    config: GroupConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., from_offset: _Optional[int] = ..., from_ns: _Optional[int] = ..., config: _Optional[_Union[GroupConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CreateGroupResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class ConfigureGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    config: GroupConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., config: _Optional[_Union[GroupConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ConfigureGroupResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class GetGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetGroupResponse(_message.Message):
    __slots__ = ("header", "config", "generation", "members", "partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    config: GroupConfig
    generation: int
    members: _containers.RepeatedCompositeFieldContainer[GroupMember]
    partitions: _containers.RepeatedCompositeFieldContainer[GroupPartition]
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., config: _Optional[_Union[GroupConfig, _Mapping]] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[_Union[GroupMember, _Mapping]]] = ..., partitions: _Optional[_Iterable[_Union[GroupPartition, _Mapping]]] = ...) -> None: ...

class GroupMember(_message.Message):
    __slots__ = ("member_id", "partitions", "expires_ns", "pending_count")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    member_id: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    expires_ns: int
    pending_count: int
    def __init__(self, member_id: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ..., expires_ns: _Optional[int] = ..., pending_count: _Optional[int] = ...) -> None: ...

class GroupPartition(_message.Message):
    __slots__ = ("partition", "committed_offset", "next_offset", "lag", "pending_count")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    PENDING_COUNT_FIELD_NUMBER: _ClassVar[int]
    partition: int
    committed_offset: int
    next_offset: int
    lag: int
    pending_count: int
    def __init__(self, partition: _Optional[int] = ..., committed_offset: _Optional[int] = ..., next_offset: _Optional[int] = ..., lag: _Optional[int] = ..., pending_count: _Optional[int] = ...) -> None: ...

class JoinGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "session_ms", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SESSION_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    session_ms: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., session_ms: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class JoinGroupResponse(_message.Message):
    __slots__ = ("header", "member_id", "generation", "partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    member_id: int
    generation: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., member_id: _Optional[int] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaveGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class LeaveGroupResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class HeartbeatGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class HeartbeatGroupResponse(_message.Message):
    __slots__ = ("header", "generation", "partitions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    generation: int
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., generation: _Optional[int] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class FetchRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "generation", "limit", "wait_ms", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    generation: int
    limit: int
    wait_ms: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., generation: _Optional[int] = ..., limit: _Optional[int] = ..., wait_ms: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class FetchRecordsResponse(_message.Message):
    __slots__ = ("header", "records")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("partition", "offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class AckRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "places", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class AckRecordsResponse(_message.Message):
    __slots__ = ("header", "acked_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ACKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    acked_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., acked_count: _Optional[int] = ...) -> None: ...

class NackRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "places", "delay_ms", "reason", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    delay_ms: int
    reason: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class NackRecordsResponse(_message.Message):
    __slots__ = ("header", "nacked_count", "dead_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NACKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    nacked_count: int
    dead_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., nacked_count: _Optional[int] = ..., dead_count: _Optional[int] = ...) -> None: ...

class ClaimRecordsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "generation", "idle_ms", "limit", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    generation: int
    idle_ms: int
    limit: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., generation: _Optional[int] = ..., idle_ms: _Optional[int] = ..., limit: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ClaimRecordsResponse(_message.Message):
    __slots__ = ("header", "records")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    records: _containers.RepeatedCompositeFieldContainer[Record]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., records: _Optional[_Iterable[_Union[Record, _Mapping]]] = ...) -> None: ...

class CommitOffsetsRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "member_id", "generation", "places", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    member_id: int
    generation: int
    places: _containers.RepeatedCompositeFieldContainer[Place]
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., member_id: _Optional[int] = ..., generation: _Optional[int] = ..., places: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CommitOffsetsResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class SeekGroupRequest(_message.Message):
    __slots__ = ("namespace", "stream", "group", "partition", "offset", "time_ns", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_NS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    stream: str
    group: str
    partition: int
    offset: int
    time_ns: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., stream: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., time_ns: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class SeekGroupResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...
