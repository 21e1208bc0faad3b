"""What the requests of the Stream service have in common: names, places and times that can be.

All of it is looked at before anything is written, and refused for the reason that apply has for it.
"""

from collections.abc import Sequence
from typing import Any

from onelog.node.public_errors import error_of_reason
from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.reasons import Reason
from onelog.projections.stream import commands
from onelog.projections.stream import group_commands as groups
from onelog.projections.stream.limits import (
    GROUP_NAME_SIZE_MAX,
    OFFSETS_MAX,
    PARTITION_ANY,
    PARTITIONS_MAX,
    STREAM_NAME_SIZE_MAX,
)
from onelog.ual.entry import Draft
from onelog.v1 import stream_pb2


def check_stream(name: str) -> str:
    """Return a name that a stream can have."""
    size = len(name.encode())
    if not 0 < size <= STREAM_NAME_SIZE_MAX or ":" in name:
        raise error_of_reason(Reason.STREAM_NAME_INVALID, size)
    return name


def check_group(name: str) -> str:
    """Return a name that a group can have."""
    size = len(name.encode())
    if not 0 < size <= GROUP_NAME_SIZE_MAX:
        raise error_of_reason(Reason.GROUP_NAME_INVALID, size)
    return name


def names_of(request: Any) -> tuple[str, str]:
    """Return the names of stream and group that a request holds."""
    return check_stream(request.stream), check_group(request.group)


def ns_of(milliseconds: int, reason: Reason, limit_ns: int = TTL_NS_MAX) -> int:
    """Return a time in nanoseconds; absurd ones are refused."""
    if milliseconds * 1_000_000 > limit_ns:
        raise error_of_reason(reason, milliseconds * 1_000_000)
    return milliseconds * 1_000_000


def partition_of(request: Any) -> int:
    """Return the partition that a request names, or all of them."""
    if not request.HasField("partition"):
        return PARTITION_ANY
    if request.partition >= PARTITIONS_MAX:
        raise error_of_reason(Reason.PARTITION_UNKNOWN, request.partition)
    return int(request.partition)


def limit_of(limit: int, default: int, limit_max: int) -> int:
    """Return how many are wanted."""
    if limit > limit_max:
        raise error_of_reason(Reason.LIMIT_INVALID, limit)
    return limit or default


def places_of(places: Sequence[stream_pb2.Place]) -> tuple[groups.Place, ...]:
    """Return the places of a request in order."""
    if not 0 < len(places) <= OFFSETS_MAX:
        raise error_of_reason(Reason.LIMIT_INVALID, len(places))
    for place in places:
        if place.partition >= PARTITIONS_MAX:
            raise error_of_reason(Reason.PARTITION_UNKNOWN, place.partition)
    return tuple(sorted((place.partition, place.offset) for place in places))


def by_stream(request: Any) -> tuple[bytes, ...]:
    """Return the name that says in which shard a request belongs."""
    return (check_stream(request.stream).encode(),)


def encode_checked(
    command: commands.Command, namespace: str, session: SessionRef | None = None
) -> Draft:
    """Return the entry of a command; refuse one that apply would find unsound."""
    draft = commands.encode_command(command, namespace, session)
    _, reader = read_prefix(draft.payload)
    commands.decode_command(draft.entry_type & 0xFF, reader)
    return draft
