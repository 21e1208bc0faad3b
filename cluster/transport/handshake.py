"""Handshakes: whether two processes may talk, checked before anything else is trusted. No I/O.

Both sides check the other's ``Hello`` with the same rules. The side that finds a difference says so
before it closes, so that both can report it. With TLS the certificate is checked first
(cluster/transport/certificate.py): a process that is not a node of the cluster learns nothing else.

Before there is a cluster, nodes exchange an ``Introduction``. It is checked in full before it
becomes a value: sizes, counts, ids, ranges. ``node/membership/peer_port.py`` decides whether it
fits this node.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.cluster.transport.wire import (
    DETAIL_SIZE_MAX,
    ENDPOINT_SIZE_MAX,
    NAME_SIZE_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    REASON_SIZE_MAX,
    Hello,
    Reason,
    Refused,
    WireError,
    checked_endpoints,
    printable,
)
from onelog.ual.directory import PARTITIONS_MAX, SHARDS_MAX
from onelog.v1 import peer_pb2


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this process is and which cluster it belongs to."""

    cluster_id: UUID
    node_id: UUID
    shards: int
    partitions: int
    incarnation: int  # a random number for the life of the process
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX
    node_name: str = ""
    endpoints: tuple[str, ...] = ()  # where clients call this node, by worker
    cluster_name: str = ""  # as certificates have it

    def hello(self, target_id: UUID, session: int) -> Hello:
        """Return the hello for a peer."""
        return Hello(
            self.protocol_min,
            self.protocol_max,
            self.cluster_id,
            self.node_id,
            target_id,
            self.shards,
            self.partitions,
            self.incarnation,
            session,
            self.node_name,
            self.endpoints,
        )


def dials(self_id: UUID, peer_id: UUID) -> bool:
    """Return whether this side of a pair opens the stream: the one with the smaller id."""
    return self_id < peer_id


def check_hello(ours: Identity, theirs: Hello, known: Container[UUID]) -> int:
    """Return the protocol version to speak, or raise a ``WireError`` that says what differs.

    The version comes first: another version may give the other fields another meaning.
    """
    if theirs.protocol_max < ours.protocol_min:
        raise WireError(
            Reason.PROTOCOL_TOO_OLD,
            f"it speaks up to {theirs.protocol_max}, the oldest here is {ours.protocol_min}",
        )
    if theirs.protocol_min > ours.protocol_max:
        raise WireError(
            Reason.PROTOCOL_TOO_NEW,
            f"it speaks from {theirs.protocol_min} on, the newest here is {ours.protocol_max}",
        )
    if theirs.cluster_id != ours.cluster_id:
        raise WireError(
            Reason.CLUSTER_MISMATCH, f"its cluster is {theirs.cluster_id}, ours {ours.cluster_id}"
        )
    if (theirs.shards, theirs.partitions) != (ours.shards, ours.partitions):
        raise WireError(
            Reason.TOPOLOGY_MISMATCH,
            f"it has {theirs.shards} shards and {theirs.partitions} partitions, "
            f"here are {ours.shards} and {ours.partitions}",
        )
    if theirs.target_id != ours.node_id:
        raise WireError(
            Reason.WRONG_TARGET, f"it looks for node {theirs.target_id}, this is {ours.node_id}"
        )
    if theirs.node_id == ours.node_id or theirs.node_id not in known:
        raise WireError(Reason.UNKNOWN_NODE, f"node {theirs.node_id} is not a peer of this one")
    return min(theirs.protocol_max, ours.protocol_max)


def check_caller(ours: Identity, theirs: Hello, last: Hello | None) -> None:
    """Refuse a caller that should be called, or whose stream is older than the one in use."""
    if not dials(theirs.node_id, ours.node_id):
        raise WireError(
            Reason.WRONG_DIRECTION, f"node {theirs.node_id} is called by {ours.node_id}"
        )
    if (
        last is not None
        and last.incarnation == theirs.incarnation
        and last.session >= theirs.session
    ):
        raise WireError(
            Reason.STALE_SESSION, f"session {theirs.session} after session {last.session}"
        )


# Introduction

INTRODUCTION_SIZE_MAX = 256 << 10
FOUNDERS_MAX = 64
WORKERS_MAX = 256
_ID_SIZE = 16


@dataclass(frozen=True, slots=True)
class Introduction:
    """See ``PeerIntroduction``."""

    cluster_name: str
    node_name: str
    node_id: UUID
    shards: int
    partitions: int
    workers: int
    worker: int = 0
    target_name: str = ""
    cluster_id: UUID | None = None
    is_joining: bool = False
    # By name: the id, if it is known, and the address of its peer service.
    founders: Mapping[str, tuple[UUID | None, str]] = field(default_factory=dict)
    endpoints: tuple[str, ...] = ()
    protocol_min: int = PROTOCOL_MIN
    protocol_max: int = PROTOCOL_MAX

    @property
    def is_founded(self) -> bool:
        """Whether the sender's cluster exists."""
        return self.cluster_id is not None

    @property
    def agreed(self) -> dict[str, UUID] | None:
        """The ids of all founders by name; None while one is not known."""
        ids = {name: node_id for name, (node_id, _) in self.founders.items() if node_id}
        return ids if len(ids) == len(self.founders) else None


@dataclass(frozen=True, slots=True)
class IntroductionAnswer:
    """The introduction of the answering node, and why it refuses, if it does.

    There is no introduction for a caller whose certificate the node does not know.
    """

    introduction: Introduction | None
    refusal: Refused | None = None


def encode_introduction(value: Introduction) -> bytes:
    """Return an introduction as bytes."""
    return bytes(_message(value).SerializeToString())


def encode_answer(value: Introduction | None, refusal: WireError | None) -> bytes:
    """Return an answer as bytes."""
    assert value is not None or refusal is not None, "an answer says something"
    answer = peer_pb2.PeerIntroductionAnswer()
    if value is not None:
        answer.introduction.CopyFrom(_message(value))
    if refusal is not None:
        answer.refusal.reason = refusal.reason
        answer.refusal.detail = printable(refusal.detail, DETAIL_SIZE_MAX)
    return bytes(answer.SerializeToString())


def decode_introduction(data: bytes) -> Introduction:
    """Decode an introduction; ``WireError`` if it breaks a rule."""
    message = peer_pb2.PeerIntroduction()
    _parse(message, data)
    return _value(message)


def decode_answer(data: bytes) -> IntroductionAnswer:
    """Decode an answer; ``WireError`` if it breaks a rule."""
    message = peer_pb2.PeerIntroductionAnswer()
    _parse(message, data)
    refusal = None
    if message.HasField("refusal"):
        refusal = Refused(
            printable(message.refusal.reason, REASON_SIZE_MAX),
            printable(message.refusal.detail, DETAIL_SIZE_MAX),
        )
        if not message.HasField("introduction"):
            return IntroductionAnswer(None, refusal)
    return IntroductionAnswer(_value(message.introduction), refusal)


def _message(value: Introduction) -> peer_pb2.PeerIntroduction:
    return peer_pb2.PeerIntroduction(
        protocol_min=value.protocol_min,
        protocol_max=value.protocol_max,
        cluster_name=value.cluster_name,
        cluster_id=b"" if value.cluster_id is None else value.cluster_id.bytes,
        node_name=value.node_name,
        node_id=value.node_id.bytes,
        target_name=value.target_name,
        shards=value.shards,
        partitions=value.partitions,
        workers=value.workers,
        worker=value.worker,
        is_joining=value.is_joining,
        founders=[
            peer_pb2.PeerFounder(
                name=name, node_id=node_id.bytes if node_id else b"", address=address
            )
            for name, (node_id, address) in sorted(value.founders.items())
        ],
        api_endpoints=value.endpoints,
    )


def _parse(message: object, data: bytes) -> None:
    if len(data) > INTRODUCTION_SIZE_MAX:
        raise WireError(
            Reason.MESSAGE_TOO_LARGE, f"{len(data)} bytes, limit {INTRODUCTION_SIZE_MAX}"
        )
    try:
        message.ParseFromString(data)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise WireError(Reason.UNREADABLE, "these bytes are not protobuf") from error


def _value(message: peer_pb2.PeerIntroduction) -> Introduction:
    if not 1 <= message.protocol_min <= message.protocol_max:
        raise WireError(
            Reason.BAD_NUMBER, f"protocols {message.protocol_min} to {message.protocol_max}"
        )
    if (
        message.shards > SHARDS_MAX
        or message.partitions > PARTITIONS_MAX
        or not 1 <= message.workers <= WORKERS_MAX
        or message.worker >= message.workers
    ):
        raise WireError(
            Reason.BAD_NUMBER,
            f"{message.shards} shards, {message.partitions} partitions, "
            f"worker {message.worker} of {message.workers}",
        )
    if len(message.founders) > FOUNDERS_MAX:
        raise WireError(Reason.BAD_NUMBER, f"{len(message.founders)} founders")
    founders = {
        _name(each.name): (
            _id(each.node_id) if each.node_id else None,
            printable(each.address, ENDPOINT_SIZE_MAX),
        )
        for each in message.founders
    }
    if len(founders) != len(message.founders):
        raise WireError(Reason.BAD_NUMBER, "a founder is named twice")
    return Introduction(
        printable(message.cluster_name, NAME_SIZE_MAX),
        _name(message.node_name),
        _id(message.node_id),
        message.shards,
        message.partitions,
        message.workers,
        message.worker,
        printable(message.target_name, NAME_SIZE_MAX),
        _id(message.cluster_id) if message.cluster_id else None,
        message.is_joining,
        founders,
        checked_endpoints(message.api_endpoints),
        message.protocol_min,
        message.protocol_max,
    )


def _name(name: str) -> str:
    if not 1 <= len(name) <= NAME_SIZE_MAX or not name.isprintable():
        raise WireError(Reason.BAD_ID, f"a name of {len(name)} characters")
    return name


def _id(data: bytes) -> UUID:
    if len(data) != _ID_SIZE:
        raise WireError(Reason.BAD_ID, f"an id of {len(data)} bytes")
    return UUID(bytes=data)
