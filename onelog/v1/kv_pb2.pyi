from onelog.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Comparison(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPARISON_UNSPECIFIED: _ClassVar[Comparison]
    COMPARISON_EQUAL: _ClassVar[Comparison]
    COMPARISON_NOT_EQUAL: _ClassVar[Comparison]
    COMPARISON_LESS: _ClassVar[Comparison]
    COMPARISON_LESS_OR_EQUAL: _ClassVar[Comparison]
    COMPARISON_GREATER: _ClassVar[Comparison]
    COMPARISON_GREATER_OR_EQUAL: _ClassVar[Comparison]
COMPARISON_UNSPECIFIED: Comparison
COMPARISON_EQUAL: Comparison
COMPARISON_NOT_EQUAL: Comparison
COMPARISON_LESS: Comparison
COMPARISON_LESS_OR_EQUAL: Comparison
COMPARISON_GREATER: Comparison
COMPARISON_GREATER_OR_EQUAL: Comparison

class KeyValue(_message.Message):
    __slots__ = ("key", "value", "version", "expires_ns", "lease_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    version: int
    expires_ns: int
    lease_id: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., version: _Optional[int] = ..., expires_ns: _Optional[int] = ..., lease_id: _Optional[int] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("namespace", "key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("header", "item")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ITEM_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    item: KeyValue
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., item: _Optional[_Union[KeyValue, _Mapping]] = ...) -> None: ...

class BatchGetRequest(_message.Message):
    __slots__ = ("namespace", "keys", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class BatchGetResponse(_message.Message):
    __slots__ = ("headers", "items")
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ReadHeader]
    items: _containers.RepeatedCompositeFieldContainer[KeyValue]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.ReadHeader, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("namespace", "key", "value", "ttl_ms", "lease_id", "expected_version", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    value: bytes
    ttl_ms: int
    lease_id: int
    expected_version: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., ttl_ms: _Optional[int] = ..., lease_id: _Optional[int] = ..., expected_version: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class BatchPutRequest(_message.Message):
    __slots__ = ("namespace", "keys", "values", "ttl_ms", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    ttl_ms: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., ttl_ms: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class BatchPutResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("namespace", "key", "expected_version", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    expected_version: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., expected_version: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ("header", "deleted")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    deleted: bool
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., deleted: _Optional[bool] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start", "end", "prefix")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    prefix: bytes
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., prefix: _Optional[bytes] = ...) -> None: ...

class DeleteRangeRequest(_message.Message):
    __slots__ = ("namespace", "range", "limit", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    range: KeyRange
    limit: int
    routing_key: bytes
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., limit: _Optional[int] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteRangeResponse(_message.Message):
    __slots__ = ("headers", "deleted_count", "has_more")
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DELETED_COUNT_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    deleted_count: int
    has_more: bool
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ..., deleted_count: _Optional[int] = ..., has_more: _Optional[bool] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("namespace", "key", "ttl_ms", "expected_version", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    ttl_ms: int
    expected_version: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., ttl_ms: _Optional[int] = ..., expected_version: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class TouchResponse(_message.Message):
    __slots__ = ("header", "version")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    version: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class CountRequest(_message.Message):
    __slots__ = ("namespace", "key", "add", "lower_to", "raise_to", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ADD_FIELD_NUMBER: _ClassVar[int]
    LOWER_TO_FIELD_NUMBER: _ClassVar[int]
    RAISE_TO_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    add: int
    lower_to: int
    raise_to: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., add: _Optional[int] = ..., lower_to: _Optional[int] = ..., raise_to: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CountResponse(_message.Message):
    __slots__ = ("header", "number")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    number: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("namespace", "key", "data", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    data: bytes
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., data: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("header", "size")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    size: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., size: _Optional[int] = ...) -> None: ...

class JsonPath(_message.Message):
    __slots__ = ("steps",)
    STEPS_FIELD_NUMBER: _ClassVar[int]
    steps: _containers.RepeatedCompositeFieldContainer[JsonStep]
    def __init__(self, steps: _Optional[_Iterable[_Union[JsonStep, _Mapping]]] = ...) -> None: ...

class JsonStep(_message.Message):
    __slots__ = ("member", "element")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    ELEMENT_FIELD_NUMBER: _ClassVar[int]
    member: str
    element: int
    def __init__(self, member: _Optional[str] = ..., element: _Optional[int] = ...) -> None: ...

class GetJsonRequest(_message.Message):
    __slots__ = ("namespace", "key", "path", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    path: JsonPath
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., path: _Optional[_Union[JsonPath, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetJsonResponse(_message.Message):
    __slots__ = ("header", "json", "version")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    json: bytes
    version: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., json: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class SetJsonRequest(_message.Message):
    __slots__ = ("namespace", "key", "path", "json", "create_parents", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    CREATE_PARENTS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    path: JsonPath
    json: bytes
    create_parents: bool
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., path: _Optional[_Union[JsonPath, _Mapping]] = ..., json: _Optional[bytes] = ..., create_parents: _Optional[bool] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class SetJsonResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("namespace", "range", "limit", "reverse", "page_token", "keys_only", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    KEYS_ONLY_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    range: KeyRange
    limit: int
    reverse: bool
    page_token: bytes
    keys_only: bool
    routing_key: bytes
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., range: _Optional[_Union[KeyRange, _Mapping]] = ..., limit: _Optional[int] = ..., reverse: _Optional[bool] = ..., page_token: _Optional[bytes] = ..., keys_only: _Optional[bool] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("headers", "items", "next_page_token")
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.ReadHeader]
    items: _containers.RepeatedCompositeFieldContainer[KeyValue]
    next_page_token: bytes
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.ReadHeader, _Mapping]]] = ..., items: _Optional[_Iterable[_Union[KeyValue, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class GetHistoryRequest(_message.Message):
    __slots__ = ("namespace", "key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    key: bytes
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetHistoryResponse(_message.Message):
    __slots__ = ("header", "versions", "complete_from")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FROM_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    versions: _containers.RepeatedCompositeFieldContainer[PastVersion]
    complete_from: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., versions: _Optional[_Iterable[_Union[PastVersion, _Mapping]]] = ..., complete_from: _Optional[int] = ...) -> None: ...

class PastVersion(_message.Message):
    __slots__ = ("version", "value", "expired")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    version: int
    value: bytes
    expired: bool
    def __init__(self, version: _Optional[int] = ..., value: _Optional[bytes] = ..., expired: _Optional[bool] = ...) -> None: ...

class Condition(_message.Message):
    __slots__ = ("key", "exists", "version", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    exists: bool
    version: VersionTest
    value: ValueTest
    def __init__(self, key: _Optional[bytes] = ..., exists: _Optional[bool] = ..., version: _Optional[_Union[VersionTest, _Mapping]] = ..., value: _Optional[_Union[ValueTest, _Mapping]] = ...) -> None: ...

class VersionTest(_message.Message):
    __slots__ = ("comparison", "version")
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    comparison: Comparison
    version: int
    def __init__(self, comparison: _Optional[_Union[Comparison, str]] = ..., version: _Optional[int] = ...) -> None: ...

class ValueTest(_message.Message):
    __slots__ = ("comparison", "value")
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    comparison: Comparison
    value: bytes
    def __init__(self, comparison: _Optional[_Union[Comparison, str]] = ..., value: _Optional[bytes] = ...) -> None: ...

class TxnOperation(_message.Message):
    __slots__ = ("get", "put", "delete", "delete_range", "touch", "count", "append", "set_json")
    GET_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_FIELD_NUMBER: _ClassVar[int]
    TOUCH_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    SET_JSON_FIELD_NUMBER: _ClassVar[int]
    get: GetRequest
    put: PutRequest
    delete: DeleteRequest
    delete_range: DeleteRangeRequest
    touch: TouchRequest
    count: CountRequest
    append: AppendRequest
    set_json: SetJsonRequest
    def __init__(self, get: _Optional[_Union[GetRequest, _Mapping]] = ..., put: _Optional[_Union[PutRequest, _Mapping]] = ..., delete: _Optional[_Union[DeleteRequest, _Mapping]] = ..., delete_range: _Optional[_Union[DeleteRangeRequest, _Mapping]] = ..., touch: _Optional[_Union[TouchRequest, _Mapping]] = ..., count: _Optional[_Union[CountRequest, _Mapping]] = ..., append: _Optional[_Union[AppendRequest, _Mapping]] = ..., set_json: _Optional[_Union[SetJsonRequest, _Mapping]] = ...) -> None: ...

class TxnRequest(_message.Message):
    __slots__ = ("namespace", "conditions", "then", "otherwise", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    CONDITIONS_FIELD_NUMBER: _ClassVar[int]
    THEN_FIELD_NUMBER: _ClassVar[int]
    OTHERWISE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    conditions: _containers.RepeatedCompositeFieldContainer[Condition]
    then: _containers.RepeatedCompositeFieldContainer[TxnOperation]
    otherwise: _containers.RepeatedCompositeFieldContainer[TxnOperation]
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., conditions: _Optional[_Iterable[_Union[Condition, _Mapping]]] = ..., then: _Optional[_Iterable[_Union[TxnOperation, _Mapping]]] = ..., otherwise: _Optional[_Iterable[_Union[TxnOperation, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class TxnResponse(_message.Message):
    __slots__ = ("header", "succeeded", "results")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    succeeded: bool
    results: _containers.RepeatedCompositeFieldContainer[TxnResult]
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., succeeded: _Optional[bool] = ..., results: _Optional[_Iterable[_Union[TxnResult, _Mapping]]] = ...) -> None: ...

class TxnResult(_message.Message):
    __slots__ = ("item", "number")
    ITEM_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    item: KeyValue
    number: int
    def __init__(self, item: _Optional[_Union[KeyValue, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class GrantLeaseRequest(_message.Message):
    __slots__ = ("namespace", "ttl_ms", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    ttl_ms: int
    routing_key: bytes
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., ttl_ms: _Optional[int] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class GrantLeaseResponse(_message.Message):
    __slots__ = ("header", "lease_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    lease_id: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., lease_id: _Optional[int] = ...) -> None: ...

class KeepLeaseRequest(_message.Message):
    __slots__ = ("namespace", "lease_id", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    lease_id: int
    routing_key: bytes
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., lease_id: _Optional[int] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class KeepLeaseResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class RevokeLeaseRequest(_message.Message):
    __slots__ = ("namespace", "lease_id", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    lease_id: int
    routing_key: bytes
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., lease_id: _Optional[int] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class RevokeLeaseResponse(_message.Message):
    __slots__ = ("header", "deleted_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DELETED_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    deleted_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., deleted_count: _Optional[int] = ...) -> None: ...

class GetLeaseRequest(_message.Message):
    __slots__ = ("namespace", "lease_id", "routing_key", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ROUTING_KEY_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    lease_id: int
    routing_key: bytes
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., lease_id: _Optional[int] = ..., routing_key: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetLeaseResponse(_message.Message):
    __slots__ = ("header", "ttl_ms", "expires_ns", "keys")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    ttl_ms: int
    expires_ns: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., ttl_ms: _Optional[int] = ..., expires_ns: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...
