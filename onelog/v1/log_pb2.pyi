from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

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
    __slots__ = ("shard", "index", "term", "timestamp_ns", "entry_type", "group_left", "payload")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_TYPE_FIELD_NUMBER: _ClassVar[int]
    GROUP_LEFT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    index: int
    term: int
    timestamp_ns: int
    entry_type: int
    group_left: int
    payload: bytes
    def __init__(self, shard: _Optional[int] = ..., index: _Optional[int] = ..., term: _Optional[int] = ..., timestamp_ns: _Optional[int] = ..., entry_type: _Optional[int] = ..., group_left: _Optional[int] = ..., payload: _Optional[bytes] = ...) -> None: ...
