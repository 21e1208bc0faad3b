from onelog.v1 import common_pb2 as _common_pb2
from onelog.v1 import kv_pb2 as _kv_pb2
from onelog.v1 import log_pb2 as _log_pb2
from onelog.v1 import queue_pb2 as _queue_pb2
from onelog.v1 import stream_pb2 as _stream_pb2
from onelog.v1 import timeseries_pb2 as _timeseries_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Operation(_message.Message):
    __slots__ = ("get", "put", "delete", "touch", "count", "append", "set_json", "txn", "batch_put", "transact", "enqueue", "lease", "ack", "nack", "extend", "release", "append_records", "ack_records", "commit_offsets", "write_points", "query")
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    TOUCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SET_JSON_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    BATCH_PUT_FIELD_NUMBER: _ClassVar[int]
    TRANSACT_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    APPEND_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACK_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    WRITE_POINTS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    get: _kv_pb2.GetRequest
    put: _kv_pb2.PutRequest
    delete: _kv_pb2.DeleteRequest
    touch: _kv_pb2.TouchRequest
    count: _kv_pb2.CountRequest
    append: _kv_pb2.AppendRequest
    set_json: _kv_pb2.SetJsonRequest
    txn: _kv_pb2.TxnRequest
    batch_put: _kv_pb2.BatchPutRequest
    transact: TransactRequest
    enqueue: _queue_pb2.EnqueueRequest
    lease: _queue_pb2.LeaseRequest
    ack: _queue_pb2.AckRequest
    nack: _queue_pb2.NackRequest
    extend: _queue_pb2.ExtendRequest
    release: _queue_pb2.ReleaseRequest
    append_records: _stream_pb2.AppendRecordsRequest
    ack_records: _stream_pb2.AckRecordsRequest
    commit_offsets: _stream_pb2.CommitOffsetsRequest
    write_points: _timeseries_pb2.WritePointsRequest
    query: _timeseries_pb2.QueryRequest
    def __init__(self, get: _Optional[_Union[_kv_pb2.GetRequest, _Mapping]] = ..., put: _Optional[_Union[_kv_pb2.PutRequest, _Mapping]] = ..., delete: _Optional[_Union[_kv_pb2.DeleteRequest, _Mapping]] = ..., touch: _Optional[_Union[_kv_pb2.TouchRequest, _Mapping]] = ..., count: _Optional[_Union[_kv_pb2.CountRequest, _Mapping]] = ..., append: _Optional[_Union[_kv_pb2.AppendRequest, _Mapping]] = ..., set_json: _Optional[_Union[_kv_pb2.SetJsonRequest, _Mapping]] = ..., txn: _Optional[_Union[_kv_pb2.TxnRequest, _Mapping]] = ..., batch_put: _Optional[_Union[_kv_pb2.BatchPutRequest, _Mapping]] = ..., transact: _Optional[_Union[TransactRequest, _Mapping]] = ..., enqueue: _Optional[_Union[_queue_pb2.EnqueueRequest, _Mapping]] = ..., lease: _Optional[_Union[_queue_pb2.LeaseRequest, _Mapping]] = ..., ack: _Optional[_Union[_queue_pb2.AckRequest, _Mapping]] = ..., nack: _Optional[_Union[_queue_pb2.NackRequest, _Mapping]] = ..., extend: _Optional[_Union[_queue_pb2.ExtendRequest, _Mapping]] = ..., release: _Optional[_Union[_queue_pb2.ReleaseRequest, _Mapping]] = ..., append_records: _Optional[_Union[_stream_pb2.AppendRecordsRequest, _Mapping]] = ..., ack_records: _Optional[_Union[_stream_pb2.AckRecordsRequest, _Mapping]] = ..., commit_offsets: _Optional[_Union[_stream_pb2.CommitOffsetsRequest, _Mapping]] = ..., write_points: _Optional[_Union[_timeseries_pb2.WritePointsRequest, _Mapping]] = ..., query: _Optional[_Union[_timeseries_pb2.QueryRequest, _Mapping]] = ...) -> None: ...

class OperationResult(_message.Message):
    __slots__ = ("get", "put", "delete", "touch", "count", "append", "set_json", "txn", "batch_put", "transact", "enqueue", "lease", "settle", "append_records", "ack_records", "commit_offsets", "write_points", "query", "error")
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    TOUCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SET_JSON_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    BATCH_PUT_FIELD_NUMBER: _ClassVar[int]
    TRANSACT_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    APPEND_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACK_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    WRITE_POINTS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    get: _kv_pb2.GetResponse
    put: _kv_pb2.PutResponse
    delete: _kv_pb2.DeleteResponse
    touch: _kv_pb2.TouchResponse
    count: _kv_pb2.CountResponse
    append: _kv_pb2.AppendResponse
    set_json: _kv_pb2.SetJsonResponse
    txn: _kv_pb2.TxnResponse
    batch_put: _kv_pb2.BatchPutResponse
    transact: TransactResponse
    enqueue: _queue_pb2.EnqueueResponse
    lease: _queue_pb2.LeaseResponse
    settle: _queue_pb2.SettleResponse
    append_records: _stream_pb2.AppendRecordsResponse
    ack_records: _stream_pb2.AckRecordsResponse
    commit_offsets: _stream_pb2.CommitOffsetsResponse
    write_points: _timeseries_pb2.WritePointsResponse
    query: _timeseries_pb2.QueryResponse
    error: _common_pb2.Error
    def __init__(self, get: _Optional[_Union[_kv_pb2.GetResponse, _Mapping]] = ..., put: _Optional[_Union[_kv_pb2.PutResponse, _Mapping]] = ..., delete: _Optional[_Union[_kv_pb2.DeleteResponse, _Mapping]] = ..., touch: _Optional[_Union[_kv_pb2.TouchResponse, _Mapping]] = ..., count: _Optional[_Union[_kv_pb2.CountResponse, _Mapping]] = ..., append: _Optional[_Union[_kv_pb2.AppendResponse, _Mapping]] = ..., set_json: _Optional[_Union[_kv_pb2.SetJsonResponse, _Mapping]] = ..., txn: _Optional[_Union[_kv_pb2.TxnResponse, _Mapping]] = ..., batch_put: _Optional[_Union[_kv_pb2.BatchPutResponse, _Mapping]] = ..., transact: _Optional[_Union[TransactResponse, _Mapping]] = ..., enqueue: _Optional[_Union[_queue_pb2.EnqueueResponse, _Mapping]] = ..., lease: _Optional[_Union[_queue_pb2.LeaseResponse, _Mapping]] = ..., settle: _Optional[_Union[_queue_pb2.SettleResponse, _Mapping]] = ..., append_records: _Optional[_Union[_stream_pb2.AppendRecordsResponse, _Mapping]] = ..., ack_records: _Optional[_Union[_stream_pb2.AckRecordsResponse, _Mapping]] = ..., commit_offsets: _Optional[_Union[_stream_pb2.CommitOffsetsResponse, _Mapping]] = ..., write_points: _Optional[_Union[_timeseries_pb2.WritePointsResponse, _Mapping]] = ..., query: _Optional[_Union[_timeseries_pb2.QueryResponse, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("request_id", "operations", "session", "more", "with_cost", "traceparent")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    WITH_COST_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    session: _common_pb2.Session
    more: _containers.RepeatedCompositeFieldContainer[ExecuteRequest]
    with_cost: bool
    traceparent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[int] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., session: _Optional[_Union[_common_pb2.Session, _Mapping]] = ..., more: _Optional[_Iterable[_Union[ExecuteRequest, _Mapping]]] = ..., with_cost: _Optional[bool] = ..., traceparent: _Optional[_Iterable[str]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("request_id", "results", "forwarded", "more", "cost")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    FORWARDED_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    forwarded: bool
    more: _containers.RepeatedCompositeFieldContainer[ExecuteResponse]
    cost: _common_pb2.Cost
    def __init__(self, request_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ..., forwarded: _Optional[bool] = ..., more: _Optional[_Iterable[_Union[ExecuteResponse, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class TransactOperation(_message.Message):
    __slots__ = ("put", "delete", "touch", "count", "append", "set_json", "enqueue", "ack", "nack", "append_records", "ack_records", "commit_offsets", "write_points")
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    TOUCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SET_JSON_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    APPEND_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ACK_RECORDS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    WRITE_POINTS_FIELD_NUMBER: _ClassVar[int]
    put: _kv_pb2.PutRequest
    delete: _kv_pb2.DeleteRequest
    touch: _kv_pb2.TouchRequest
    count: _kv_pb2.CountRequest
    append: _kv_pb2.AppendRequest
    set_json: _kv_pb2.SetJsonRequest
    enqueue: _queue_pb2.EnqueueRequest
    ack: _queue_pb2.AckRequest
    nack: _queue_pb2.NackRequest
    append_records: _stream_pb2.AppendRecordsRequest
    ack_records: _stream_pb2.AckRecordsRequest
    commit_offsets: _stream_pb2.CommitOffsetsRequest
    write_points: _timeseries_pb2.WritePointsRequest
    def __init__(self, put: _Optional[_Union[_kv_pb2.PutRequest, _Mapping]] = ..., delete: _Optional[_Union[_kv_pb2.DeleteRequest, _Mapping]] = ..., touch: _Optional[_Union[_kv_pb2.TouchRequest, _Mapping]] = ..., count: _Optional[_Union[_kv_pb2.CountRequest, _Mapping]] = ..., append: _Optional[_Union[_kv_pb2.AppendRequest, _Mapping]] = ..., set_json: _Optional[_Union[_kv_pb2.SetJsonRequest, _Mapping]] = ..., enqueue: _Optional[_Union[_queue_pb2.EnqueueRequest, _Mapping]] = ..., ack: _Optional[_Union[_queue_pb2.AckRequest, _Mapping]] = ..., nack: _Optional[_Union[_queue_pb2.NackRequest, _Mapping]] = ..., append_records: _Optional[_Union[_stream_pb2.AppendRecordsRequest, _Mapping]] = ..., ack_records: _Optional[_Union[_stream_pb2.AckRecordsRequest, _Mapping]] = ..., commit_offsets: _Optional[_Union[_stream_pb2.CommitOffsetsRequest, _Mapping]] = ..., write_points: _Optional[_Union[_timeseries_pb2.WritePointsRequest, _Mapping]] = ...) -> None: ...

class TransactRequest(_message.Message):
    __slots__ = ("namespace", "conditions", "operations", "options", "by_shard")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BY_SHARD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    conditions: _containers.RepeatedCompositeFieldContainer[_kv_pb2.Condition]
    operations: _containers.RepeatedCompositeFieldContainer[TransactOperation]
    options: _common_pb2.WriteOptions
    by_shard: bool
    def __init__(self, namespace: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[_kv_pb2.Condition, _Mapping]]] = ..., operations: _Optional[_Iterable[_Union[TransactOperation, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ..., by_shard: _Optional[bool] = ...) -> None: ...

class TransactResponse(_message.Message):
    __slots__ = ("header", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    results: _containers.RepeatedCompositeFieldContainer[OperationResult]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., results: _Optional[_Iterable[_Union[OperationResult, _Mapping]]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("shard", "ttl_ms")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    ttl_ms: int
    def __init__(self, shard: _Optional[int] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("header", "session_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    session_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., session_id: _Optional[int] = ...) -> None: ...

class KeepSessionRequest(_message.Message):
    __slots__ = ("shard", "session_id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    session_id: int
    def __init__(self, shard: _Optional[int] = ..., session_id: _Optional[int] = ...) -> None: ...

class KeepSessionResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("shard", "session_id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    session_id: int
    def __init__(self, shard: _Optional[int] = ..., session_id: _Optional[int] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("cursor", "filters", "with_previous", "shards", "progress_ms")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    WITH_PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_MS_FIELD_NUMBER: _ClassVar[int]
    cursor: _common_pb2.Cursor
    filters: _containers.RepeatedCompositeFieldContainer[WatchFilter]
    with_previous: bool
    shards: _containers.RepeatedScalarFieldContainer[int]
    progress_ms: int
    def __init__(self, cursor: _Optional[_Union[_common_pb2.Cursor, _Mapping]] = ..., filters: _Optional[_Iterable[_Union[WatchFilter, _Mapping]]] = ..., with_previous: _Optional[bool] = ..., shards: _Optional[_Iterable[int]] = ..., progress_ms: _Optional[int] = ...) -> None: ...

class WatchFilter(_message.Message):
    __slots__ = ("namespace", "owner", "name", "is_prefix")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    IS_PREFIX_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    owner: _log_pb2.Owner
    name: bytes
    is_prefix: bool
    def __init__(self, namespace: _Optional[str] = ..., owner: _Optional[_Union[_log_pb2.Owner, str]] = ..., name: _Optional[bytes] = ..., is_prefix: _Optional[bool] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("events", "cursor", "cost")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[Event]
    cursor: _common_pb2.Cursor
    cost: _common_pb2.Cost
    def __init__(self, events: _Optional[_Iterable[_Union[Event, _Mapping]]] = ..., cursor: _Optional[_Union[_common_pb2.Cursor, _Mapping]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("shard", "index", "timestamp_ns", "namespace", "key", "queue", "stream", "series")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    timestamp_ns: int
    namespace: str
    key: KeyEvent
    queue: QueueEvent
    stream: StreamEvent
    series: SeriesEvent
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., namespace: _Optional[str] = ..., key: _Optional[_Union[KeyEvent, _Mapping]] = ..., queue: _Optional[_Union[QueueEvent, _Mapping]] = ..., stream: _Optional[_Union[StreamEvent, _Mapping]] = ..., series: _Optional[_Union[SeriesEvent, _Mapping]] = ...) -> None: ...

class KeyEvent(_message.Message):
    __slots__ = ("key", "item", "previous", "expired")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    item: _kv_pb2.KeyValue
    previous: _kv_pb2.KeyValue
    expired: bool
    def __init__(self, key: _Optional[bytes] = ..., item: _Optional[_Union[_kv_pb2.KeyValue, _Mapping]] = ..., previous: _Optional[_Union[_kv_pb2.KeyValue, _Mapping]] = ..., expired: _Optional[bool] = ...) -> None: ...

class QueueEvent(_message.Message):
    __slots__ = ("queue", "kind", "message_ids")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[QueueEvent.Kind]
        CREATED: _ClassVar[QueueEvent.Kind]
        CONFIGURED: _ClassVar[QueueEvent.Kind]
        DELETED: _ClassVar[QueueEvent.Kind]
        PAUSED: _ClassVar[QueueEvent.Kind]
        RESUMED: _ClassVar[QueueEvent.Kind]
        ENQUEUED: _ClassVar[QueueEvent.Kind]
        LEASED: _ClassVar[QueueEvent.Kind]
        ACKED: _ClassVar[QueueEvent.Kind]
        FAILED: _ClassVar[QueueEvent.Kind]
        DEAD: _ClassVar[QueueEvent.Kind]
        EXPIRED: _ClassVar[QueueEvent.Kind]
        CANCELLED: _ClassVar[QueueEvent.Kind]
        PURGED: _ClassVar[QueueEvent.Kind]
        RELEASED: _ClassVar[QueueEvent.Kind]
        REDRIVEN: _ClassVar[QueueEvent.Kind]
        LEASE_EXPIRED: _ClassVar[QueueEvent.Kind]
        DUE: _ClassVar[QueueEvent.Kind]
        EXTENDED: _ClassVar[QueueEvent.Kind]
        PRIORITISED: _ClassVar[QueueEvent.Kind]
    KIND_UNSPECIFIED: QueueEvent.Kind
    CREATED: QueueEvent.Kind
    CONFIGURED: QueueEvent.Kind
    DELETED: QueueEvent.Kind
    PAUSED: QueueEvent.Kind
    RESUMED: QueueEvent.Kind
    ENQUEUED: QueueEvent.Kind
    LEASED: QueueEvent.Kind
    ACKED: QueueEvent.Kind
    FAILED: QueueEvent.Kind
    DEAD: QueueEvent.Kind
    EXPIRED: QueueEvent.Kind
    CANCELLED: QueueEvent.Kind
    PURGED: QueueEvent.Kind
    RELEASED: QueueEvent.Kind
    REDRIVEN: QueueEvent.Kind
    LEASE_EXPIRED: QueueEvent.Kind
    DUE: QueueEvent.Kind
    EXTENDED: QueueEvent.Kind
    PRIORITISED: QueueEvent.Kind
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    kind: QueueEvent.Kind
    message_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, queue: _Optional[str] = ..., kind: _Optional[_Union[QueueEvent.Kind, str]] = ..., message_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamEvent(_message.Message):
    __slots__ = ("stream", "kind", "record")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[StreamEvent.Kind]
        CREATED: _ClassVar[StreamEvent.Kind]
        CONFIGURED: _ClassVar[StreamEvent.Kind]
        DELETED: _ClassVar[StreamEvent.Kind]
        APPENDED: _ClassVar[StreamEvent.Kind]
        TRIMMED: _ClassVar[StreamEvent.Kind]
    KIND_UNSPECIFIED: StreamEvent.Kind
    CREATED: StreamEvent.Kind
    CONFIGURED: StreamEvent.Kind
    DELETED: StreamEvent.Kind
    APPENDED: StreamEvent.Kind
    TRIMMED: StreamEvent.Kind
    STREAM_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    stream: str
    kind: StreamEvent.Kind
    record: _stream_pb2.Record
    def __init__(self, stream: _Optional[str] = ..., kind: _Optional[_Union[StreamEvent.Kind, str]] = ..., record: _Optional[_Union[_stream_pb2.Record, _Mapping]] = ...) -> None: ...

class SeriesEvent(_message.Message):
    __slots__ = ("measurement", "kind", "points")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[SeriesEvent.Kind]
        CREATED: _ClassVar[SeriesEvent.Kind]
        CONFIGURED: _ClassVar[SeriesEvent.Kind]
        DELETED: _ClassVar[SeriesEvent.Kind]
        WRITTEN: _ClassVar[SeriesEvent.Kind]
        POINTS_DELETED: _ClassVar[SeriesEvent.Kind]
    KIND_UNSPECIFIED: SeriesEvent.Kind
    CREATED: SeriesEvent.Kind
    CONFIGURED: SeriesEvent.Kind
    DELETED: SeriesEvent.Kind
    WRITTEN: SeriesEvent.Kind
    POINTS_DELETED: SeriesEvent.Kind
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    measurement: str
    kind: SeriesEvent.Kind
    points: _containers.RepeatedCompositeFieldContainer[_timeseries_pb2.SeriesPoints]
    def __init__(self, measurement: _Optional[str] = ..., kind: _Optional[_Union[SeriesEvent.Kind, str]] = ..., points: _Optional[_Iterable[_Union[_timeseries_pb2.SeriesPoints, _Mapping]]] = ...) -> None: ...
