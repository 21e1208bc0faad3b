from onelog.v1 import common_pb2 as _common_pb2
from onelog.v1 import log_pb2 as _log_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_FOLLOWER: _ClassVar[Role]
    ROLE_CANDIDATE: _ClassVar[Role]
    ROLE_LEADER: _ClassVar[Role]
    ROLE_LEARNER: _ClassVar[Role]

class HoldCause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    HOLD_CAUSE_UNSPECIFIED: _ClassVar[HoldCause]
    HOLD_CAUSE_BYTES: _ClassVar[HoldCause]
    HOLD_CAUSE_TIME: _ClassVar[HoldCause]
    HOLD_CAUSE_DISK: _ClassVar[HoldCause]
ROLE_UNSPECIFIED: Role
ROLE_FOLLOWER: Role
ROLE_CANDIDATE: Role
ROLE_LEADER: Role
ROLE_LEARNER: Role
HOLD_CAUSE_UNSPECIFIED: HoldCause
HOLD_CAUSE_BYTES: HoldCause
HOLD_CAUSE_TIME: HoldCause
HOLD_CAUSE_DISK: HoldCause

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("cluster_id", "node_id", "node_name", "version", "uptime_ms", "shards", "peers", "alarms", "cost")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    ALARMS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    node_id: str
    node_name: str
    version: str
    uptime_ms: int
    shards: _containers.RepeatedCompositeFieldContainer[ShardStatus]
    peers: _containers.RepeatedCompositeFieldContainer[PeerStatus]
    alarms: _containers.RepeatedCompositeFieldContainer[Alarm]
    cost: _common_pb2.Cost
    def __init__(self, cluster_id: _Optional[str] = ..., node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., version: _Optional[str] = ..., uptime_ms: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShardStatus, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[PeerStatus, _Mapping]]] = ..., alarms: _Optional[_Iterable[_Union[Alarm, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class ShardStatus(_message.Message):
    __slots__ = ("shard", "role", "term", "leader_id", "first_index", "last_index", "durable_index", "commit_index", "applied_index", "snapshot_index", "log_time_ns", "lags", "counts", "memory", "snapshots", "holds", "states")
    class CountsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class MemoryEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SHARD_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    DURABLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    APPLIED_INDEX_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_INDEX_FIELD_NUMBER: _ClassVar[int]
    LOG_TIME_NS_FIELD_NUMBER: _ClassVar[int]
    LAGS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    role: Role
    term: int
    leader_id: str
    first_index: int
    last_index: int
    durable_index: int
    commit_index: int
    applied_index: int
    snapshot_index: int
    log_time_ns: int
    lags: _containers.RepeatedCompositeFieldContainer[PeerLag]
    counts: _containers.ScalarMap[str, int]
    memory: _containers.ScalarMap[str, int]
    snapshots: SnapshotStatus
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    states: StateComparison
    def __init__(self, shard: _Optional[int] = ..., role: _Optional[_Union[Role, str]] = ..., term: _Optional[int] = ..., leader_id: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., durable_index: _Optional[int] = ..., commit_index: _Optional[int] = ..., applied_index: _Optional[int] = ..., snapshot_index: _Optional[int] = ..., log_time_ns: _Optional[int] = ..., lags: _Optional[_Iterable[_Union[PeerLag, _Mapping]]] = ..., counts: _Optional[_Mapping[str, int]] = ..., memory: _Optional[_Mapping[str, int]] = ..., snapshots: _Optional[_Union[SnapshotStatus, _Mapping]] = ..., holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ..., states: _Optional[_Union[StateComparison, _Mapping]] = ...) -> None: ...

class StateComparison(_message.Message):
    __slots__ = ("compared_index", "agreed_index", "comparisons", "difference")
    COMPARED_INDEX_FIELD_NUMBER: _ClassVar[int]
    AGREED_INDEX_FIELD_NUMBER: _ClassVar[int]
    COMPARISONS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    compared_index: int
    agreed_index: int
    comparisons: int
    difference: StateDifference
    def __init__(self, compared_index: _Optional[int] = ..., agreed_index: _Optional[int] = ..., comparisons: _Optional[int] = ..., difference: _Optional[_Union[StateDifference, _Mapping]] = ...) -> None: ...

class StateDifference(_message.Message):
    __slots__ = ("index", "projections", "replicas", "has_majority")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PROJECTIONS_FIELD_NUMBER: _ClassVar[int]
    REPLICAS_FIELD_NUMBER: _ClassVar[int]
    HAS_MAJORITY_FIELD_NUMBER: _ClassVar[int]
    index: int
    projections: _containers.RepeatedScalarFieldContainer[_log_pb2.Owner]
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    has_majority: bool
    def __init__(self, index: _Optional[int] = ..., projections: _Optional[_Iterable[_Union[_log_pb2.Owner, str]]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ..., has_majority: _Optional[bool] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("node_id", "node_name", "hashes", "has_stopped")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    HAS_STOPPED_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_name: str
    hashes: _containers.RepeatedScalarFieldContainer[int]
    has_stopped: bool
    def __init__(self, node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., hashes: _Optional[_Iterable[int]] = ..., has_stopped: _Optional[bool] = ...) -> None: ...

class SnapshotStatus(_message.Message):
    __slots__ = ("size", "age_ms", "first_as_of_index", "taken", "build_ms", "failures", "failure", "trimmed_segments", "first_as_of_ns", "kept", "kept_bytes")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AS_OF_INDEX_FIELD_NUMBER: _ClassVar[int]
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    BUILD_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_AS_OF_NS_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    size: int
    age_ms: int
    first_as_of_index: int
    taken: int
    build_ms: int
    failures: int
    failure: str
    trimmed_segments: int
    first_as_of_ns: int
    kept: int
    kept_bytes: int
    def __init__(self, size: _Optional[int] = ..., age_ms: _Optional[int] = ..., first_as_of_index: _Optional[int] = ..., taken: _Optional[int] = ..., build_ms: _Optional[int] = ..., failures: _Optional[int] = ..., failure: _Optional[str] = ..., trimmed_segments: _Optional[int] = ..., first_as_of_ns: _Optional[int] = ..., kept: _Optional[int] = ..., kept_bytes: _Optional[int] = ...) -> None: ...

class PeerLag(_message.Message):
    __slots__ = ("node_id", "proposals", "shipped_bytes", "shipping_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    SHIPPED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHIPPING_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    proposals: int
    shipped_bytes: int
    shipping_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., proposals: _Optional[int] = ..., shipped_bytes: _Optional[int] = ..., shipping_bytes: _Optional[int] = ...) -> None: ...

class PeerStatus(_message.Message):
    __slots__ = ("node_id", "address", "connected", "last_error", "sent_bytes", "received_bytes")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    connected: bool
    last_error: str
    sent_bytes: int
    received_bytes: int
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., connected: _Optional[bool] = ..., last_error: _Optional[str] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ...) -> None: ...

class Alarm(_message.Message):
    __slots__ = ("reason", "shard", "message", "since_ns")
    REASON_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_NS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    shard: int
    message: str
    since_ns: int
    def __init__(self, reason: _Optional[str] = ..., shard: _Optional[int] = ..., message: _Optional[str] = ..., since_ns: _Optional[int] = ...) -> None: ...

class GetTopologyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetTopologyResponse(_message.Message):
    __slots__ = ("cluster_id", "shard_count", "partition_count", "shards", "nodes", "cost")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    SHARD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTITION_COUNT_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    cluster_id: str
    shard_count: int
    partition_count: int
    shards: _containers.RepeatedCompositeFieldContainer[ShardTopology]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeTopology]
    cost: _common_pb2.Cost
    def __init__(self, cluster_id: _Optional[str] = ..., shard_count: _Optional[int] = ..., partition_count: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShardTopology, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[NodeTopology, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class ShardTopology(_message.Message):
    __slots__ = ("shard", "leader_id", "leader_endpoint", "endpoints", "term")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    shard: int
    leader_id: str
    leader_endpoint: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    term: int
    def __init__(self, shard: _Optional[int] = ..., leader_id: _Optional[str] = ..., leader_endpoint: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ..., term: _Optional[int] = ...) -> None: ...

class NodeTopology(_message.Message):
    __slots__ = ("node_id", "node_name", "endpoints")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_name: str
    endpoints: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., endpoints: _Optional[_Iterable[str]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "node_name", "peer_address", "is_learner")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_name: str
    peer_address: str
    is_learner: bool
    def __init__(self, node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., peer_address: _Optional[str] = ..., is_learner: _Optional[bool] = ...) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("shards", "cost")
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    shards: _containers.RepeatedCompositeFieldContainer[ShardMembers]
    cost: _common_pb2.Cost
    def __init__(self, shards: _Optional[_Iterable[_Union[ShardMembers, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class ShardMembers(_message.Message):
    __slots__ = ("shard", "members")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    shard: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, shard: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class AddMemberRequest(_message.Message):
    __slots__ = ("node_id", "node_name", "peer_address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    PEER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    node_name: str
    peer_address: str
    def __init__(self, node_id: _Optional[str] = ..., node_name: _Optional[str] = ..., peer_address: _Optional[str] = ...) -> None: ...

class AddMemberResponse(_message.Message):
    __slots__ = ("cost",)
    COST_FIELD_NUMBER: _ClassVar[int]
    cost: _common_pb2.Cost
    def __init__(self, cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class PromoteMemberRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class PromoteMemberResponse(_message.Message):
    __slots__ = ("cost",)
    COST_FIELD_NUMBER: _ClassVar[int]
    cost: _common_pb2.Cost
    def __init__(self, cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class RemoveMemberRequest(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class RemoveMemberResponse(_message.Message):
    __slots__ = ("cost",)
    COST_FIELD_NUMBER: _ClassVar[int]
    cost: _common_pb2.Cost
    def __init__(self, cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class TransferLeadershipRequest(_message.Message):
    __slots__ = ("shard", "node_id")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    shard: int
    node_id: str
    def __init__(self, shard: _Optional[int] = ..., node_id: _Optional[str] = ...) -> None: ...

class TransferLeadershipResponse(_message.Message):
    __slots__ = ("leader_id", "cost")
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    leader_id: str
    cost: _common_pb2.Cost
    def __init__(self, leader_id: _Optional[str] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class TakeSnapshotRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class TakeSnapshotResponse(_message.Message):
    __slots__ = ("index", "size", "state_hash", "cost")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    index: int
    size: int
    state_hash: int
    cost: _common_pb2.Cost
    def __init__(self, index: _Optional[int] = ..., size: _Optional[int] = ..., state_hash: _Optional[int] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class GetStateHashRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class GetStateHashResponse(_message.Message):
    __slots__ = ("index", "state_hash", "by_owner", "cost")
    class ByOwnerEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    INDEX_FIELD_NUMBER: _ClassVar[int]
    STATE_HASH_FIELD_NUMBER: _ClassVar[int]
    BY_OWNER_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    index: int
    state_hash: int
    by_owner: _containers.ScalarMap[int, int]
    cost: _common_pb2.Cost
    def __init__(self, index: _Optional[int] = ..., state_hash: _Optional[int] = ..., by_owner: _Optional[_Mapping[int, int]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class ListLogRangesRequest(_message.Message):
    __slots__ = ("shard",)
    SHARD_FIELD_NUMBER: _ClassVar[int]
    shard: int
    def __init__(self, shard: _Optional[int] = ...) -> None: ...

class ListLogRangesResponse(_message.Message):
    __slots__ = ("ranges", "commit_index", "cost")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    COMMIT_INDEX_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[LogRange]
    commit_index: int
    cost: _common_pb2.Cost
    def __init__(self, ranges: _Optional[_Iterable[_Union[LogRange, _Mapping]]] = ..., commit_index: _Optional[int] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class LogRange(_message.Message):
    __slots__ = ("first_index", "last_index", "first_timestamp_ns", "last_timestamp_ns", "size", "tier", "entry_count")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    LAST_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ENTRY_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    last_index: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    size: int
    tier: _common_pb2.Tier
    entry_count: int
    def __init__(self, first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., first_timestamp_ns: _Optional[int] = ..., last_timestamp_ns: _Optional[int] = ..., size: _Optional[int] = ..., tier: _Optional[_Union[_common_pb2.Tier, str]] = ..., entry_count: _Optional[int] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("shard", "first_index", "last_index", "owners", "follow", "with_voids", "pass_damage")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    WITH_VOIDS_FIELD_NUMBER: _ClassVar[int]
    PASS_DAMAGE_FIELD_NUMBER: _ClassVar[int]
    shard: int
    first_index: int
    last_index: int
    owners: _containers.RepeatedScalarFieldContainer[_log_pb2.Owner]
    follow: bool
    with_voids: bool
    pass_damage: bool
    def __init__(self, shard: _Optional[int] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., owners: _Optional[_Iterable[_Union[_log_pb2.Owner, str]]] = ..., follow: _Optional[bool] = ..., with_voids: _Optional[bool] = ..., pass_damage: _Optional[bool] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("entries", "last_index", "cost")
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[_log_pb2.Entry]
    last_index: int
    cost: _common_pb2.Cost
    def __init__(self, entries: _Optional[_Iterable[_Union[_log_pb2.Entry, _Mapping]]] = ..., last_index: _Optional[int] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class ListDamageRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListDamageResponse(_message.Message):
    __slots__ = ("segments", "cost")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    segments: _containers.RepeatedCompositeFieldContainer[DamagedSegment]
    cost: _common_pb2.Cost
    def __init__(self, segments: _Optional[_Iterable[_Union[DamagedSegment, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class DamagedSegment(_message.Message):
    __slots__ = ("shard", "path", "first_index", "last_index", "rule", "found_by", "no_copy", "unreadable", "messages")
    SHARD_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    FOUND_BY_FIELD_NUMBER: _ClassVar[int]
    NO_COPY_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    shard: int
    path: str
    first_index: int
    last_index: int
    rule: str
    found_by: str
    no_copy: bool
    unreadable: _containers.RepeatedCompositeFieldContainer[_log_pb2.UnreadableRange]
    messages: _containers.RepeatedCompositeFieldContainer[UnreadableMessage]
    def __init__(self, shard: _Optional[int] = ..., path: _Optional[str] = ..., first_index: _Optional[int] = ..., last_index: _Optional[int] = ..., rule: _Optional[str] = ..., found_by: _Optional[str] = ..., no_copy: _Optional[bool] = ..., unreadable: _Optional[_Iterable[_Union[_log_pb2.UnreadableRange, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[UnreadableMessage, _Mapping]]] = ...) -> None: ...

class UnreadableMessage(_message.Message):
    __slots__ = ("namespace", "queue", "message_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    queue: str
    message_id: int
    def __init__(self, namespace: _Optional[str] = ..., queue: _Optional[str] = ..., message_id: _Optional[int] = ...) -> None: ...

class NamespaceLimits(_message.Message):
    __slots__ = ("versions_max", "value_size_max", "keys_max", "tombstones_max")
    VERSIONS_MAX_FIELD_NUMBER: _ClassVar[int]
    VALUE_SIZE_MAX_FIELD_NUMBER: _ClassVar[int]
    KEYS_MAX_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_MAX_FIELD_NUMBER: _ClassVar[int]
    versions_max: int
    value_size_max: int
    keys_max: int
    tombstones_max: int
    def __init__(self, versions_max: _Optional[int] = ..., value_size_max: _Optional[int] = ..., keys_max: _Optional[int] = ..., tombstones_max: _Optional[int] = ...) -> None: ...

class CreateNamespaceRequest(_message.Message):
    __slots__ = ("namespace", "limits")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    limits: NamespaceLimits
    def __init__(self, namespace: _Optional[str] = ..., limits: _Optional[_Union[NamespaceLimits, _Mapping]] = ...) -> None: ...

class CreateNamespaceResponse(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ...) -> None: ...

class ConfigureNamespaceRequest(_message.Message):
    __slots__ = ("namespace", "limits")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    limits: NamespaceLimits
    def __init__(self, namespace: _Optional[str] = ..., limits: _Optional[_Union[NamespaceLimits, _Mapping]] = ...) -> None: ...

class ConfigureNamespaceResponse(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ...) -> None: ...

class DeleteNamespaceRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class DeleteNamespaceResponse(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "cost")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    cost: _common_pb2.Cost
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class NamespaceInfo(_message.Message):
    __slots__ = ("namespace", "limits")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    limits: NamespaceLimits
    def __init__(self, namespace: _Optional[str] = ..., limits: _Optional[_Union[NamespaceLimits, _Mapping]] = ...) -> None: ...

class SetHoldRequest(_message.Message):
    __slots__ = ("name", "move", "indexes", "from_start", "ttl_ms", "bytes_max", "validate_only")
    class IndexesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    FROM_START_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    name: str
    move: bool
    indexes: _containers.ScalarMap[int, int]
    from_start: bool
    ttl_ms: int
    bytes_max: int
    validate_only: bool
    def __init__(self, name: _Optional[str] = ..., move: _Optional[bool] = ..., indexes: _Optional[_Mapping[int, int]] = ..., from_start: _Optional[bool] = ..., ttl_ms: _Optional[int] = ..., bytes_max: _Optional[int] = ..., validate_only: _Optional[bool] = ...) -> None: ...

class SetHoldResponse(_message.Message):
    __slots__ = ("headers", "indexes")
    class IndexesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    indexes: _containers.ScalarMap[int, int]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ..., indexes: _Optional[_Mapping[int, int]] = ...) -> None: ...

class ListHoldsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListHoldsResponse(_message.Message):
    __slots__ = ("holds", "cost")
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[Hold]
    cost: _common_pb2.Cost
    def __init__(self, holds: _Optional[_Iterable[_Union[Hold, _Mapping]]] = ..., cost: _Optional[_Union[_common_pb2.Cost, _Mapping]] = ...) -> None: ...

class Hold(_message.Message):
    __slots__ = ("name", "shard", "index", "kept_index", "bytes", "bytes_max", "age_ms", "ttl_ms", "expires_ns", "cause", "broken_index", "broken_ns", "created_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KEPT_INDEX_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_NS_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    BROKEN_INDEX_FIELD_NUMBER: _ClassVar[int]
    BROKEN_NS_FIELD_NUMBER: _ClassVar[int]
    CREATED_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    shard: int
    index: int
    kept_index: int
    bytes: int
    bytes_max: int
    age_ms: int
    ttl_ms: int
    expires_ns: int
    cause: HoldCause
    broken_index: int
    broken_ns: int
    created_index: int
    def __init__(self, name: _Optional[str] = ..., shard: _Optional[int] = ..., index: _Optional[int] = ..., kept_index: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_max: _Optional[int] = ..., age_ms: _Optional[int] = ..., ttl_ms: _Optional[int] = ..., expires_ns: _Optional[int] = ..., cause: _Optional[_Union[HoldCause, str]] = ..., broken_index: _Optional[int] = ..., broken_ns: _Optional[int] = ..., created_index: _Optional[int] = ...) -> None: ...

class ReleaseHoldRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReleaseHoldResponse(_message.Message):
    __slots__ = ("headers",)
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    headers: _containers.RepeatedCompositeFieldContainer[_common_pb2.WriteHeader]
    def __init__(self, headers: _Optional[_Iterable[_Union[_common_pb2.WriteHeader, _Mapping]]] = ...) -> None: ...
