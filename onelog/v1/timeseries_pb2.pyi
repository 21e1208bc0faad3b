from onelog.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DuplicatePolicy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DUPLICATE_POLICY_UNSPECIFIED: _ClassVar[DuplicatePolicy]
    DUPLICATE_POLICY_LAST: _ClassVar[DuplicatePolicy]
    DUPLICATE_POLICY_FIRST: _ClassVar[DuplicatePolicy]
    DUPLICATE_POLICY_REJECT: _ClassVar[DuplicatePolicy]

class FieldType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FIELD_TYPE_UNSPECIFIED: _ClassVar[FieldType]
    FIELD_TYPE_F64: _ClassVar[FieldType]
    FIELD_TYPE_I64: _ClassVar[FieldType]
    FIELD_TYPE_BOOL: _ClassVar[FieldType]

class MatchOperator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MATCH_OPERATOR_UNSPECIFIED: _ClassVar[MatchOperator]
    MATCH_OPERATOR_EQUAL: _ClassVar[MatchOperator]
    MATCH_OPERATOR_NOT_EQUAL: _ClassVar[MatchOperator]
    MATCH_OPERATOR_REGEX: _ClassVar[MatchOperator]
    MATCH_OPERATOR_NOT_REGEX: _ClassVar[MatchOperator]

class Aggregate(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    AGGREGATE_UNSPECIFIED: _ClassVar[Aggregate]
    AGGREGATE_MEAN: _ClassVar[Aggregate]
    AGGREGATE_SUM: _ClassVar[Aggregate]
    AGGREGATE_COUNT: _ClassVar[Aggregate]
    AGGREGATE_MIN: _ClassVar[Aggregate]
    AGGREGATE_MAX: _ClassVar[Aggregate]
    AGGREGATE_FIRST: _ClassVar[Aggregate]
    AGGREGATE_LAST: _ClassVar[Aggregate]
    AGGREGATE_STDDEV: _ClassVar[Aggregate]
    AGGREGATE_PERCENTILE: _ClassVar[Aggregate]
    AGGREGATE_RATE: _ClassVar[Aggregate]
    AGGREGATE_DELTA: _ClassVar[Aggregate]
DUPLICATE_POLICY_UNSPECIFIED: DuplicatePolicy
DUPLICATE_POLICY_LAST: DuplicatePolicy
DUPLICATE_POLICY_FIRST: DuplicatePolicy
DUPLICATE_POLICY_REJECT: DuplicatePolicy
FIELD_TYPE_UNSPECIFIED: FieldType
FIELD_TYPE_F64: FieldType
FIELD_TYPE_I64: FieldType
FIELD_TYPE_BOOL: FieldType
MATCH_OPERATOR_UNSPECIFIED: MatchOperator
MATCH_OPERATOR_EQUAL: MatchOperator
MATCH_OPERATOR_NOT_EQUAL: MatchOperator
MATCH_OPERATOR_REGEX: MatchOperator
MATCH_OPERATOR_NOT_REGEX: MatchOperator
AGGREGATE_UNSPECIFIED: Aggregate
AGGREGATE_MEAN: Aggregate
AGGREGATE_SUM: Aggregate
AGGREGATE_COUNT: Aggregate
AGGREGATE_MIN: Aggregate
AGGREGATE_MAX: Aggregate
AGGREGATE_FIRST: Aggregate
AGGREGATE_LAST: Aggregate
AGGREGATE_STDDEV: Aggregate
AGGREGATE_PERCENTILE: Aggregate
AGGREGATE_RATE: Aggregate
AGGREGATE_DELTA: Aggregate

class MeasurementConfig(_message.Message):
    __slots__ = ("duplicates", "retention_ms", "series_max")
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    SERIES_MAX_FIELD_NUMBER: _ClassVar[int]
    duplicates: DuplicatePolicy
    retention_ms: int
    series_max: int
    def __init__(self, duplicates: _Optional[_Union[DuplicatePolicy, str]] = ..., retention_ms: _Optional[int] = ..., series_max: _Optional[int] = ...) -> None: ...

class Field(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: FieldType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[FieldType, str]] = ...) -> None: ...

class CreateMeasurementRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    config: MeasurementConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., config: _Optional[_Union[MeasurementConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class CreateMeasurementResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class ConfigureMeasurementRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "config", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    config: MeasurementConfig
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., config: _Optional[_Union[MeasurementConfig, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ConfigureMeasurementResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteMeasurementRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteMeasurementResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class GetMeasurementRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class GetMeasurementResponse(_message.Message):
    __slots__ = ("header", "measurement")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    measurement: MeasurementInfo
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., measurement: _Optional[_Union[MeasurementInfo, _Mapping]] = ...) -> None: ...

class MeasurementInfo(_message.Message):
    __slots__ = ("namespace", "measurement", "config", "fields", "series_count", "rules")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    SERIES_COUNT_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    config: MeasurementConfig
    fields: _containers.RepeatedCompositeFieldContainer[Field]
    series_count: int
    rules: _containers.RepeatedCompositeFieldContainer[Rule]
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., config: _Optional[_Union[MeasurementConfig, _Mapping]] = ..., fields: _Optional[_Iterable[_Union[Field, _Mapping]]] = ..., series_count: _Optional[int] = ..., rules: _Optional[_Iterable[_Union[Rule, _Mapping]]] = ...) -> None: ...

class ListMeasurementsRequest(_message.Message):
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

class ListMeasurementsResponse(_message.Message):
    __slots__ = ("measurements", "next_page_token", "cost")
    MEASUREMENTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    measurements: _containers.RepeatedCompositeFieldContainer[MeasurementInfo]
    next_page_token: bytes
    cost: _common_pb2.Cost
    def __init__(self, measurements: _Optional[_Iterable[_Union[MeasurementInfo, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("field", "doubles", "integers", "bools")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    DOUBLES_FIELD_NUMBER: _ClassVar[int]
    INTEGERS_FIELD_NUMBER: _ClassVar[int]
    BOOLS_FIELD_NUMBER: _ClassVar[int]
    field: str
    doubles: DoubleValues
    integers: IntegerValues
    bools: BoolValues
    def __init__(self, field: _Optional[str] = ..., doubles: _Optional[_Union[DoubleValues, _Mapping]] = ..., integers: _Optional[_Union[IntegerValues, _Mapping]] = ..., bools: _Optional[_Union[BoolValues, _Mapping]] = ...) -> None: ...

class DoubleValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class IntegerValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class BoolValues(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, values: _Optional[_Iterable[bool]] = ...) -> None: ...

class SeriesPoints(_message.Message):
    __slots__ = ("tags", "times_ns", "columns")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    TIMES_NS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.ScalarMap[str, str]
    times_ns: _containers.RepeatedScalarFieldContainer[int]
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    def __init__(self, tags: _Optional[_Mapping[str, str]] = ..., times_ns: _Optional[_Iterable[int]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ...) -> None: ...

class WritePointsRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "series", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    series: _containers.RepeatedCompositeFieldContainer[SeriesPoints]
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., series: _Optional[_Iterable[_Union[SeriesPoints, _Mapping]]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class WritePointsResponse(_message.Message):
    __slots__ = ("header", "written_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    written_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., written_count: _Optional[int] = ...) -> None: ...

class Matcher(_message.Message):
    __slots__ = ("tag", "operator", "value")
    TAG_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    tag: str
    operator: MatchOperator
    value: str
    def __init__(self, tag: _Optional[str] = ..., operator: _Optional[_Union[MatchOperator, str]] = ..., value: _Optional[str] = ...) -> None: ...

class ListSeriesRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "matchers", "page_size", "page_token", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    matchers: _containers.RepeatedCompositeFieldContainer[Matcher]
    page_size: int
    page_token: bytes
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., matchers: _Optional[_Iterable[_Union[Matcher, _Mapping]]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[bytes] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class ListSeriesResponse(_message.Message):
    __slots__ = ("header", "series", "next_page_token")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    series: _containers.RepeatedCompositeFieldContainer[Series]
    next_page_token: bytes
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., series: _Optional[_Iterable[_Union[Series, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class Series(_message.Message):
    __slots__ = ("tags",)
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.ScalarMap[str, str]
    def __init__(self, tags: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DeletePointsRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "matchers", "first_ns", "last_ns", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    FIRST_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_NS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    matchers: _containers.RepeatedCompositeFieldContainer[Matcher]
    first_ns: int
    last_ns: int
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., matchers: _Optional[_Iterable[_Union[Matcher, _Mapping]]] = ..., first_ns: _Optional[int] = ..., last_ns: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeletePointsResponse(_message.Message):
    __slots__ = ("header", "series_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERIES_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    series_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ..., series_count: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "field", "matchers", "from_ns", "to_ns", "aggregate", "parameter", "window_ns", "group_by", "by_series", "top", "limit", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    MATCHERS_FIELD_NUMBER: _ClassVar[int]
    FROM_NS_FIELD_NUMBER: _ClassVar[int]
    TO_NS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATE_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    BY_SERIES_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    field: str
    matchers: _containers.RepeatedCompositeFieldContainer[Matcher]
    from_ns: int
    to_ns: int
    aggregate: Aggregate
    parameter: float
    window_ns: int
    group_by: _containers.RepeatedScalarFieldContainer[str]
    by_series: bool
    top: int
    limit: int
    options: _common_pb2.ReadOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., field: _Optional[str] = ..., matchers: _Optional[_Iterable[_Union[Matcher, _Mapping]]] = ..., from_ns: _Optional[int] = ..., to_ns: _Optional[int] = ..., aggregate: _Optional[_Union[Aggregate, str]] = ..., parameter: _Optional[float] = ..., window_ns: _Optional[int] = ..., group_by: _Optional[_Iterable[str]] = ..., by_series: _Optional[bool] = ..., top: _Optional[int] = ..., limit: _Optional[int] = ..., options: _Optional[_Union[_common_pb2.ReadOptions, _Mapping]] = ...) -> None: ...

class QueryResponse(_message.Message):
    __slots__ = ("header", "groups", "scanned_count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SCANNED_COUNT_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.ReadHeader
    groups: _containers.RepeatedCompositeFieldContainer[SeriesPoints]
    scanned_count: int
    def __init__(self, header: _Optional[_Union[_common_pb2.ReadHeader, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[SeriesPoints, _Mapping]]] = ..., scanned_count: _Optional[int] = ...) -> None: ...

class Rule(_message.Message):
    __slots__ = ("name", "window_ns", "aggregates", "target_measurement")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WINDOW_NS_FIELD_NUMBER: _ClassVar[int]
    AGGREGATES_FIELD_NUMBER: _ClassVar[int]
    TARGET_MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    window_ns: int
    aggregates: _containers.RepeatedScalarFieldContainer[Aggregate]
    target_measurement: str
    def __init__(self, name: _Optional[str] = ..., window_ns: _Optional[int] = ..., aggregates: _Optional[_Iterable[_Union[Aggregate, str]]] = ..., target_measurement: _Optional[str] = ...) -> None: ...

class SetRuleRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "rule", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    rule: Rule
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., rule: _Optional[_Union[Rule, _Mapping]] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class SetRuleResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...

class DeleteRuleRequest(_message.Message):
    __slots__ = ("namespace", "measurement", "rule", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    MEASUREMENT_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    measurement: str
    rule: str
    options: _common_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., measurement: _Optional[str] = ..., rule: _Optional[str] = ..., options: _Optional[_Union[_common_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class DeleteRuleResponse(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: _common_pb2.WriteHeader
    def __init__(self, header: _Optional[_Union[_common_pb2.WriteHeader, _Mapping]] = ...) -> None: ...
