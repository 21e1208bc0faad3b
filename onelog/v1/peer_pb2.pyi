from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PeerFrame(_message.Message):
    __slots__ = ("session", "hello", "refusal", "messages", "fragment")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    FRAGMENT_FIELD_NUMBER: _ClassVar[int]
    session: int
    hello: PeerHello
    refusal: PeerRefusal
    messages: _containers.RepeatedCompositeFieldContainer[PeerMessage]
    fragment: PeerFragment
    def __init__(self, session: _Optional[int] = ..., hello: _Optional[_Union[PeerHello, _Mapping]] = ..., refusal: _Optional[_Union[PeerRefusal, _Mapping]] = ..., messages: _Optional[_Iterable[_Union[PeerMessage, _Mapping]]] = ..., fragment: _Optional[_Union[PeerFragment, _Mapping]] = ...) -> None: ...

class PeerHello(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "cluster_id", "node_id", "target_id", "shards", "partitions", "incarnation", "session", "node_name", "api_endpoints")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    API_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    cluster_id: bytes
    node_id: bytes
    target_id: bytes
    shards: int
    partitions: int
    incarnation: int
    session: int
    node_name: str
    api_endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., cluster_id: _Optional[bytes] = ..., node_id: _Optional[bytes] = ..., target_id: _Optional[bytes] = ..., shards: _Optional[int] = ..., partitions: _Optional[int] = ..., incarnation: _Optional[int] = ..., session: _Optional[int] = ..., node_name: _Optional[str] = ..., api_endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class PeerIntroduction(_message.Message):
    __slots__ = ("protocol_min", "protocol_max", "cluster_name", "cluster_id", "node_name", "node_id", "target_name", "shards", "partitions", "workers", "worker", "is_joining", "founders", "api_endpoints")
    PROTOCOL_MIN_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_MAX_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_NAME_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    IS_JOINING_FIELD_NUMBER: _ClassVar[int]
    FOUNDERS_FIELD_NUMBER: _ClassVar[int]
    API_ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    protocol_min: int
    protocol_max: int
    cluster_name: str
    cluster_id: bytes
    node_name: str
    node_id: bytes
    target_name: str
    shards: int
    partitions: int
    workers: int
    worker: int
    is_joining: bool
    founders: _containers.RepeatedCompositeFieldContainer[PeerFounder]
    api_endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, protocol_min: _Optional[int] = ..., protocol_max: _Optional[int] = ..., cluster_name: _Optional[str] = ..., cluster_id: _Optional[bytes] = ..., node_name: _Optional[str] = ..., node_id: _Optional[bytes] = ..., target_name: _Optional[str] = ..., shards: _Optional[int] = ..., partitions: _Optional[int] = ..., workers: _Optional[int] = ..., worker: _Optional[int] = ..., is_joining: _Optional[bool] = ..., founders: _Optional[_Iterable[_Union[PeerFounder, _Mapping]]] = ..., api_endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class PeerFounder(_message.Message):
    __slots__ = ("name", "node_id", "address")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    name: str
    node_id: bytes
    address: str
    def __init__(self, name: _Optional[str] = ..., node_id: _Optional[bytes] = ..., address: _Optional[str] = ...) -> None: ...

class PeerIntroductionAnswer(_message.Message):
    __slots__ = ("refusal", "introduction")
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    INTRODUCTION_FIELD_NUMBER: _ClassVar[int]
    refusal: PeerRefusal
    introduction: PeerIntroduction
    def __init__(self, refusal: _Optional[_Union[PeerRefusal, _Mapping]] = ..., introduction: _Optional[_Union[PeerIntroduction, _Mapping]] = ...) -> None: ...

class PeerLeadersRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    def __init__(self, node_id: _Optional[bytes] = ...) -> None: ...

class PeerLeaders(_message.Message):
    __slots__ = ("leaders",)
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    leaders: _containers.RepeatedCompositeFieldContainer[PeerLeader]
    def __init__(self, leaders: _Optional[_Iterable[_Union[PeerLeader, _Mapping]]] = ...) -> None: ...

class PeerLeader(_message.Message):
    __slots__ = ("shard", "term", "leader_id", "members")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    term: int
    leader_id: bytes
    members: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, shard: _Optional[int] = ..., term: _Optional[int] = ..., leader_id: _Optional[bytes] = ..., members: _Optional[_Iterable[bytes]] = ...) -> None: ...

class PeerMembershipRequest(_message.Message):
    __slots__ = ("cluster_id", "node_id", "node_name")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    cluster_id: bytes
    node_id: bytes
    node_name: str
    def __init__(self, cluster_id: _Optional[bytes] = ..., node_id: _Optional[bytes] = ..., node_name: _Optional[str] = ...) -> None: ...

class PeerMembership(_message.Message):
    __slots__ = ("shards",)
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[PeerShardMembership]
    def __init__(self, shards: _Optional[_Iterable[_Union[PeerShardMembership, _Mapping]]] = ...) -> None: ...

class PeerShardMembership(_message.Message):
    __slots__ = ("shard", "applied", "is_member")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    IS_MEMBER_FIELD_NUMBER: _ClassVar[int]
    shard: int
    applied: int
    is_member: bool
    def __init__(self, shard: _Optional[int] = ..., applied: _Optional[int] = ..., is_member: _Optional[bool] = ...) -> None: ...

class PeerRefusal(_message.Message):
    __slots__ = ("reason", "detail")
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    detail: str
    def __init__(self, reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("shard", "term", "vote_request", "vote", "append", "ack", "stale", "timeout_now", "offer", "fetch", "chunk", "unavailable", "state_report")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    UNAVAILABLE_FIELD_NUMBER: _ClassVar[int]
    STATE_REPORT_FIELD_NUMBER: _ClassVar[int]
    shard: int
    term: int
    vote_request: PeerVoteRequest
    vote: PeerVote
    append: PeerAppend
    ack: PeerAck
    stale: PeerStale
    timeout_now: PeerTimeoutNow
    offer: PeerOffer
    fetch: PeerFetch
    chunk: PeerChunk
    unavailable: PeerUnavailable
    state_report: PeerStateReport
    def __init__(self, shard: _Optional[int] = ..., term: _Optional[int] = ..., vote_request: _Optional[_Union[PeerVoteRequest, _Mapping]] = ..., vote: _Optional[_Union[PeerVote, _Mapping]] = ..., append: _Optional[_Union[PeerAppend, _Mapping]] = ..., ack: _Optional[_Union[PeerAck, _Mapping]] = ..., stale: _Optional[_Union[PeerStale, _Mapping]] = ..., timeout_now: _Optional[_Union[PeerTimeoutNow, _Mapping]] = ..., offer: _Optional[_Union[PeerOffer, _Mapping]] = ..., fetch: _Optional[_Union[PeerFetch, _Mapping]] = ..., chunk: _Optional[_Union[PeerChunk, _Mapping]] = ..., unavailable: _Optional[_Union[PeerUnavailable, _Mapping]] = ..., state_report: _Optional[_Union[PeerStateReport, _Mapping]] = ...) -> None: ...

class PeerVoteRequest(_message.Message):
    __slots__ = ("last_proposal", "last_term", "pre_vote", "is_handed")
    LAST_PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    IS_HANDED_FIELD_NUMBER: _ClassVar[int]
    last_proposal: int
    last_term: int
    pre_vote: bool
    is_handed: bool
    def __init__(self, last_proposal: _Optional[int] = ..., last_term: _Optional[int] = ..., pre_vote: _Optional[bool] = ..., is_handed: _Optional[bool] = ...) -> None: ...

class PeerVote(_message.Message):
    __slots__ = ("pre_vote",)
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    pre_vote: bool
    def __init__(self, pre_vote: _Optional[bool] = ...) -> None: ...

class PeerAppend(_message.Message):
    __slots__ = ("round", "previous", "previous_term", "commit", "echo", "groups", "log_time_ns")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    round: int
    previous: int
    previous_term: int
    commit: int
    echo: int
    groups: _containers.RepeatedScalarFieldContainer[bytes]
    log_time_ns: int
    def __init__(self, round: _Optional[int] = ..., previous: _Optional[int] = ..., previous_term: _Optional[int] = ..., commit: _Optional[int] = ..., echo: _Optional[int] = ..., groups: _Optional[_Iterable[bytes]] = ..., log_time_ns: _Optional[int] = ...) -> None: ...

class PeerAck(_message.Message):
    __slots__ = ("round", "next", "success", "reset", "received", "stamp", "promise_ms")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    STAMP_FIELD_NUMBER: _ClassVar[int]
    PROMISE_MS_FIELD_NUMBER: _ClassVar[int]
    round: int
    next: int
    success: bool
    reset: bool
    received: int
    stamp: int
    promise_ms: int
    def __init__(self, round: _Optional[int] = ..., next: _Optional[int] = ..., success: _Optional[bool] = ..., reset: _Optional[bool] = ..., received: _Optional[int] = ..., stamp: _Optional[int] = ..., promise_ms: _Optional[int] = ...) -> None: ...

class PeerStale(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PeerTimeoutNow(_message.Message):
    __slots__ = ("hold_ms",)
    HOLD_MS_FIELD_NUMBER: _ClassVar[int]
    hold_ms: int
    def __init__(self, hold_ms: _Optional[int] = ...) -> None: ...

class PeerOffer(_message.Message):
    __slots__ = ("round", "index", "proposal", "snapshot_term", "size", "state_hash", "log_bytes", "commit")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_TERM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    round: int
    index: int
    proposal: int
    snapshot_term: int
    size: int
    state_hash: int
    log_bytes: int
    commit: int
    def __init__(self, round: _Optional[int] = ..., index: _Optional[int] = ..., proposal: _Optional[int] = ..., snapshot_term: _Optional[int] = ..., size: _Optional[int] = ..., state_hash: _Optional[int] = ..., log_bytes: _Optional[int] = ..., commit: _Optional[int] = ...) -> None: ...

class PeerFetch(_message.Message):
    __slots__ = ("is_snapshot", "first_index", "last_index", "proposal", "offset", "length")
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    is_snapshot: bool
    first_index: int
    last_index: int
    proposal: int
    offset: int
    length: int
    def __init__(self, is_snapshot: _Optional[bool] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., proposal: _Optional[int] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class PeerChunk(_message.Message):
    __slots__ = ("is_snapshot", "first_index", "last_index", "offset", "piece_first", "piece_last", "size", "tag", "data")
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    PIECE_FIRST_FIELD_NUMBER: _ClassVar[int]
    PIECE_LAST_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    is_snapshot: bool
    first_index: int
    last_index: int
    offset: int
    piece_first: int
    piece_last: int
    size: int
    tag: int
    data: bytes
    def __init__(self, is_snapshot: _Optional[bool] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., offset: _Optional[int] = ..., piece_first: _Optional[int] = ..., piece_last: _Optional[int] = ..., size: _Optional[int] = ..., tag: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class PeerUnavailable(_message.Message):
    __slots__ = ("is_snapshot", "first_index", "last_index", "reason")
    IS_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    is_snapshot: bool
    first_index: int
    last_index: int
    reason: str
    def __init__(self, is_snapshot: _Optional[bool] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PeerStateReport(_message.Message):
    __slots__ = ("index", "rows")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    index: int
    rows: _containers.RepeatedCompositeFieldContainer[PeerStateRow]
    def __init__(self, index: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[PeerStateRow, _Mapping]]] = ...) -> None: ...

class PeerStateRow(_message.Message):
    __slots__ = ("node_id", "hashes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    node_id: bytes
    hashes: _containers.RepeatedCompositeFieldContainer[PeerStateHash]
    def __init__(self, node_id: _Optional[bytes] = ..., hashes: _Optional[_Iterable[_Union[PeerStateHash, _Mapping]]] = ...) -> None: ...

class PeerStateHash(_message.Message):
    __slots__ = ("owner", "hash")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    HASH_FIELD_NUMBER: _ClassVar[int]
    owner: int
    hash: int
    def __init__(self, owner: _Optional[int] = ..., hash: _Optional[int] = ...) -> None: ...

class PeerFragment(_message.Message):
    __slots__ = ("number", "offset", "total_size", "data")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SIZE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    number: int
    offset: int
    total_size: int
    data: bytes
    def __init__(self, number: _Optional[int] = ..., offset: _Optional[int] = ..., total_size: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
