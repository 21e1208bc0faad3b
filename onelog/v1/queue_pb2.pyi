from onelog.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MESSAGE_STATE_UNSPECIFIED: _ClassVar[MessageState]
    MESSAGE_STATE_READY: _ClassVar[MessageState]
    MESSAGE_STATE_DELAYED: _ClassVar[MessageState]
    MESSAGE_STATE_LEASED: _ClassVar[MessageState]
MESSAGE_STATE_UNSPECIFIED: MessageState
MESSAGE_STATE_READY: MessageState
MESSAGE_STATE_DELAYED: MessageState
MESSAGE_STATE_LEASED: MessageState

class QueueConfig(_message.Message):
    __slots__ = ("max_deliveries", "dead_letter_queue", "visibility_ms", "ageing_ms", "ttl_ms", "dedup_window_ms", "dedup_max", "messages_max", "backoff_ms", "tenant_weights")
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_QUEUE_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    AGEING_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    DEDUP_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    max_deliveries: int
    dead_letter_queue: str
    visibility_ms: int
    ageing_ms: int
    ttl_ms: int
    dedup_window_ms: int
    dedup_max: int
    messages_max: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    tenant_weights: _containers.RepeatedCompositeFieldContainer[TenantWeight]
    def __init__(self, max_deliveries: _Optional[int] = ..., dead_letter_queue: _Optional[str] = ..., visibility_ms: _Optional[int] = ..., ageing_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., dedup_window_ms: _Optional[int] = ..., dedup_max: _Optional[int] = ..., messages_max: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., tenant_weights: _Optional[_Iterable[_Union[TenantWeight, _Mapping]]] = ...) -> None: ...

class TenantWeight(_message.Message):
    __slots__ = ("tenant", "weight")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    tenant: bytes
    weight: int
    def __init__(self, tenant: _Optional[bytes] = ..., weight: _Optional[int] = ...) -> None: ...

class CreateQueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    config: QueueConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CreateQueueResponse(_message.Message):
    __slots__ = ("header", "queue_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    queue_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., queue_id: _Optional[int] = ...) -> None: ...

class ConfigureQueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    config: QueueConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ConfigureQueueResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteQueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteQueueResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class GetQueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetQueueResponse(_message.Message):
    __slots__ = ("header", "queue")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    queue: QueueInfo
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., queue: _Optional[_Union[QueueInfo, _Mapping]] = ...) -> None: ...

class QueueInfo(_message.Message):
    __slots__ = ("namespace", "queue", "queue_id", "config", "paused", "ready_count", "delayed_count", "leased_count", "oldest_ns", "enqueued_count", "redriven_count", "acked_count", "expired_count", "dead_count", "cancelled_count", "purged_count", "deduplicated_count", "arrived_count", "moved_count", "unreadable_count")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    READY_COUNT_FIELD_NUMBER: _ClassVar[int]
    DELAYED_COUNT_FIELD_NUMBER: _ClassVar[int]
    LEASED_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_NS_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    ACKED_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_COUNT_FIELD_NUMBER: _ClassVar[int]
    PURGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_COUNT_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    MOVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_COUNT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    queue_id: int
    config: QueueConfig
    paused: bool
    ready_count: int
    delayed_count: int
    leased_count: int
    oldest_ns: int
    enqueued_count: int
    redriven_count: int
    acked_count: int
    expired_count: int
    dead_count: int
    cancelled_count: int
    purged_count: int
    deduplicated_count: int
    arrived_count: int
    moved_count: int
    unreadable_count: int
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., queue_id: _Optional[int] = ..., config: _Optional[_Union[QueueConfig, _Mapping]] = ..., paused: _Optional[bool] = ..., ready_count: _Optional[int] = ..., delayed_count: _Optional[int] = ..., leased_count: _Optional[int] = ..., oldest_ns: _Optional[int] = ..., enqueued_count: _Optional[int] = ..., redriven_count: _Optional[int] = ..., acked_count: _Optional[int] = ..., expired_count: _Optional[int] = ..., dead_count: _Optional[int] = ..., cancelled_count: _Optional[int] = ..., purged_count: _Optional[int] = ..., deduplicated_count: _Optional[int] = ..., arrived_count: _Optional[int] = ..., moved_count: _Optional[int] = ..., unreadable_count: _Optional[int] = ...) -> None: ...

class ListQueuesRequest(_message.Message):
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

class ListQueuesResponse(_message.Message):
    __slots__ = ("queues", "next_page_token", "cost")
    QUEUES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    queues: _containers.RepeatedCompositeFieldContainer[QueueInfo]
    next_page_token: bytes
    cost: _common_pb2.Cost
    def __init__(self, queues: _Optional[_Iterable[_Union[QueueInfo, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class PauseQueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "paused", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    paused: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., paused: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class PauseQueueResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("body", "priority", "delay_ms", "at_ns", "ttl_ms", "dedup_id", "group", "tenant", "headers")
    BODY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    AT_NS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DEDUP_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    body: bytes
    priority: int
    delay_ms: int
    at_ns: int
    ttl_ms: int
    dedup_id: bytes
    group: bytes
    tenant: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, body: _Optional[bytes] = ..., priority: _Optional[int] = ..., delay_ms: _Optional[int] = ..., at_ns: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., dedup_id: _Optional[bytes] = ..., group: _Optional[bytes] = ..., tenant: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("namespace", "queue", "messages", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("header", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    results: _containers.RepeatedCompositeFieldContainer[EnqueueResult]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., results: _Optional[_Iterable[_Union[EnqueueResult, _Mapping]]] = ...) -> None: ...

class EnqueueResult(_message.Message):
    __slots__ = ("message_id", "deduplicated", "error")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DEDUPLICATED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    deduplicated: bool
    error: _common_pb2.Error
    def __init__(self, message_id: _Optional[int] = ..., deduplicated: _Optional[bool] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("message_id", "body", "headers", "priority", "group", "tenant", "enqueued_ns", "delivery_count", "token", "lease_expires_ns", "state", "due_ns", "unreadable")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_NS_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DUE_NS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    body: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    priority: int
    group: bytes
    tenant: bytes
    enqueued_ns: int
    delivery_count: int
    token: int
    lease_expires_ns: int
    state: MessageState
    due_ns: int
    unreadable: bool
    def __init__(self, message_id: _Optional[int] = ..., body: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., priority: _Optional[int] = ..., group: _Optional[bytes] = ..., tenant: _Optional[bytes] = ..., enqueued_ns: _Optional[int] = ..., delivery_count: _Optional[int] = ..., token: _Optional[int] = ..., lease_expires_ns: _Optional[int] = ..., state: _Optional[_Union[MessageState, str]] = ..., due_ns: _Optional[int] = ..., unreadable: _Optional[bool] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("namespace", "queue", "count", "visibility_ms", "wait_ms", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    count: int
    visibility_ms: int
    wait_ms: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., count: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., wait_ms: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("header", "messages", "unreadable_ids")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_IDS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    unreadable_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., unreadable_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("namespace", "queue", "credit", "visibility_ms", "consumer_id", "received_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    CONSUMER_ID_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    credit: int
    visibility_ms: int
    consumer_id: bytes
    received_token: int
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., credit: _Optional[int] = ..., visibility_ms: _Optional[int] = ..., consumer_id: _Optional[bytes] = ..., received_token: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("messages", "unreadable_ids", "cost")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_IDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    unreadable_ids: _containers.RepeatedScalarFieldContainer[int]
    cost: _common_pb2.Cost
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., unreadable_ids: _Optional[_Iterable[int]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class Leased(_message.Message):
    __slots__ = ("message_id", "token")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    token: int
    def __init__(self, message_id: _Optional[int] = ..., token: _Optional[int] = ...) -> None: ...

class AckRequest(_message.Message):
    __slots__ = ("namespace", "queue", "messages", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Leased]
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Leased, _Mapping]]] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class NackRequest(_message.Message):
    __slots__ = ("namespace", "queue", "messages", "delay_ms", "reason", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Leased]
    delay_ms: int
    reason: str
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Leased, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("namespace", "queue", "messages", "visibility_ms", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    VISIBILITY_MS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Leased]
    visibility_ms: int
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Leased, _Mapping]]] = ..., visibility_ms: _Optional[int] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("namespace", "queue", "messages", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    messages: _containers.RepeatedCompositeFieldContainer[Leased]
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Leased, _Mapping]]] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("namespace", "queue", "message_ids", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    message_ids: _containers.RepeatedScalarFieldContainer[int]
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., message_ids: _Optional[_Iterable[int]] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class PrioritiseRequest(_message.Message):
    __slots__ = ("namespace", "queue", "message_ids", "priority", "strict", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    STRICT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    message_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    strict: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., message_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., strict: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class SettleResponse(_message.Message):
    __slots__ = ("header", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    results: _containers.RepeatedCompositeFieldContainer[SettleResult]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., results: _Optional[_Iterable[_Union[SettleResult, _Mapping]]] = ...) -> None: ...

class SettleResult(_message.Message):
    __slots__ = ("message_id", "reason", "dead")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    message_id: int
    reason: str
    dead: bool
    def __init__(self, message_id: _Optional[int] = ..., reason: _Optional[str] = ..., dead: _Optional[bool] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("namespace", "queue", "from_id", "from_ns", "limit", "options", "failure_contains")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    FROM_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    from_id: int
    from_ns: int
    limit: int
    options: _common_pb2.ReadOptions
    failure_contains: str
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., from_id: _Optional[int] = ..., from_ns: _Optional[int] = ..., limit: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ..., failure_contains: _Optional[str] = ...) -> None: ...

class PeekResponse(_message.Message):
    __slots__ = ("header", "messages", "next_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    next_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., next_id: _Optional[int] = ...) -> None: ...

class PurgeRequest(_message.Message):
    __slots__ = ("namespace", "queue", "below_id", "before_ns", "leased_too", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    BELOW_ID_FIELD_NUMBER: _ClassVar[int]
    BEFORE_NS_FIELD_NUMBER: _ClassVar[int]
    LEASED_TOO_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    below_id: int
    before_ns: int
    leased_too: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., below_id: _Optional[int] = ..., before_ns: _Optional[int] = ..., leased_too: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class PurgeResponse(_message.Message):
    __slots__ = ("header", "purged_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PURGED_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    purged_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., purged_count: _Optional[int] = ...) -> None: ...

class RedriveRequest(_message.Message):
    __slots__ = ("namespace", "queue", "target_queue", "first_id", "last_id", "failed_from_ns", "failed_until_ns", "failure_contains", "limit", "rate_per_s", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    TARGET_QUEUE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FROM_NS_FIELD_NUMBER: _ClassVar[int]
    FAILED_UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    target_queue: str
    first_id: int
    last_id: int
    failed_from_ns: int
    failed_until_ns: int
    failure_contains: str
    limit: int
    rate_per_s: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., target_queue: _Optional[str] = ..., first_id: _Optional[int] = ..., last_id: _Optional[int] = ..., failed_from_ns: _Optional[int] = ..., failed_until_ns: _Optional[int] = ..., failure_contains: _Optional[str] = ..., limit: _Optional[int] = ..., rate_per_s: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class RedriveResponse(_message.Message):
    __slots__ = ("header", "redrive_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    redrive_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., redrive_id: _Optional[int] = ...) -> None: ...

class CancelRedriveRequest(_message.Message):
    __slots__ = ("namespace", "queue", "redrive_id", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    REDRIVE_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    redrive_id: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., redrive_id: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CancelRedriveResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class ListRedrivesRequest(_message.Message):
    __slots__ = ("namespace", "queue", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class ListRedrivesResponse(_message.Message):
    __slots__ = ("header", "redrives")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REDRIVES_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    redrives: _containers.RepeatedCompositeFieldContainer[RunningRedrive]
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., redrives: _Optional[_Iterable[_Union[RunningRedrive, _Mapping]]] = ...) -> None: ...

class RunningRedrive(_message.Message):
    __slots__ = ("redrive_id", "target_queue", "target_queue_id", "last_id", "failed_from_ns", "failed_until_ns", "failure_contains", "limit", "rate_per_s", "started_ns", "next_ns", "next_id", "moved_count", "skipped_count", "remaining_count", "remaining_is_partial")
    REDRIVE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_QUEUE_FIELD_NUMBER: _ClassVar[int]
    TARGET_QUEUE_ID_FIELD_NUMBER: _ClassVar[int]
    LAST_ID_FIELD_NUMBER: _ClassVar[int]
    FAILED_FROM_NS_FIELD_NUMBER: _ClassVar[int]
    FAILED_UNTIL_NS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_CONTAINS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NS_FIELD_NUMBER: _ClassVar[int]
    NEXT_ID_FIELD_NUMBER: _ClassVar[int]
    MOVED_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMAINING_IS_PARTIAL_FIELD_NUMBER: _ClassVar[int]
    redrive_id: int
    target_queue: str
    target_queue_id: int
    last_id: int
    failed_from_ns: int
    failed_until_ns: int
    failure_contains: str
    limit: int
    rate_per_s: int
    started_ns: int
    next_ns: int
    next_id: int
    moved_count: int
    skipped_count: int
    remaining_count: int
    remaining_is_partial: bool
    def __init__(self, redrive_id: _Optional[int] = ..., target_queue: _Optional[str] = ..., target_queue_id: _Optional[int] = ..., last_id: _Optional[int] = ..., failed_from_ns: _Optional[int] = ..., failed_until_ns: _Optional[int] = ..., failure_contains: _Optional[str] = ..., limit: _Optional[int] = ..., rate_per_s: _Optional[int] = ..., started_ns: _Optional[int] = ..., next_ns: _Optional[int] = ..., next_id: _Optional[int] = ..., moved_count: _Optional[int] = ..., skipped_count: _Optional[int] = ..., remaining_count: _Optional[int] = ..., remaining_is_partial: _Optional[bool] = ...) -> None: ...

class CreateScheduleRequest(_message.Message):
    __slots__ = ("namespace", "queue", "cron", "message", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    cron: str
    message: NewMessage
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., cron: _Optional[str] = ..., message: _Optional[_Union[NewMessage, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CreateScheduleResponse(_message.Message):
    __slots__ = ("header", "schedule_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    schedule_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., schedule_id: _Optional[int] = ...) -> None: ...

class DeleteScheduleRequest(_message.Message):
    __slots__ = ("namespace", "queue", "schedule_id", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    schedule_id: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., schedule_id: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteScheduleResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class ListSchedulesRequest(_message.Message):
    __slots__ = ("namespace", "queue", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class ListSchedulesResponse(_message.Message):
    __slots__ = ("header", "schedules")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SCHEDULES_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    schedules: _containers.RepeatedCompositeFieldContainer[Schedule]
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., schedules: _Optional[_Iterable[_Union[Schedule, _Mapping]]] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("schedule_id", "cron", "next_ns")
    SCHEDULE_ID_FIELD_NUMBER: _ClassVar[int]
    CRON_FIELD_NUMBER: _ClassVar[int]
    NEXT_NS_FIELD_NUMBER: _ClassVar[int]
    schedule_id: int
    cron: str
    next_ns: int
    def __init__(self, schedule_id: _Optional[int] = ..., cron: _Optional[str] = ..., next_ns: _Optional[int] = ...) -> None: ...
