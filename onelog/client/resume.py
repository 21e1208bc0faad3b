"""Where a reader of several shards is: a cursor of the server, and what was taken after it.

A server sends a cursor with each answer: everything up to it was sent. Users take one event after
the other, and may stop in the middle of an answer. So a resume point is the cursor of the answer
before, and for each shard how many of its events were taken since; a reader that resumes there
skips so many. Within a shard the order is always the same, so none is lost and none comes twice.
"""

import struct
from collections.abc import Mapping

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from onelog.errors import InvalidArgument
from onelog.v1 import common_pb2

# version, number of shards; then for each of these the shard and how many to skip; then the cursor
_HEAD = struct.Struct("<BH")
_SKIP = struct.Struct("<IQ")
_VERSION = 1


def token_at(indexes: Mapping[int, int]) -> bytes:
    """Return a token for what follows an index of each shard; 0: everything that is kept."""
    point = ResumePoint()
    positions = [common_pb2.Position(shard=shard, index=at) for shard, at in indexes.items()]
    point.arrive(common_pb2.Cursor(positions=positions))
    return point.token()


class ResumePoint:
    """See the module's text."""

    def __init__(self, token: bytes | None = None) -> None:
        self._cursor = common_pb2.Cursor()
        self._taken: dict[int, int] = {}
        self._skip: dict[int, int] = {}
        if token is not None:
            self._read(token)

    @property
    def has_cursor(self) -> bool:
        """Whether there is a place to go on from."""
        return bool(self._cursor.positions)

    def reopen(self, cursor: common_pb2.Cursor) -> None:
        """Write the cursor of a request that goes on here."""
        cursor.CopyFrom(self._cursor)
        # The server sends all that follows its cursor again.
        self._skip = dict(self._taken)

    def is_new(self, shard: int) -> bool:
        """Tell whether the next event of a shard is one that was not taken yet, and take it."""
        left = self._skip.get(shard, 0)
        if left:
            self._skip[shard] = left - 1
            return False
        self._taken[shard] = self._taken.get(shard, 0) + 1
        return True

    def arrive(self, cursor: common_pb2.Cursor) -> None:
        """All events of an answer were taken."""
        if cursor.positions:
            self._cursor.CopyFrom(cursor)
            # What was taken before the stream broke and has not come again is behind the cursor.
            self._taken = {shard: left for shard, left in self._skip.items() if left}

    def token(self) -> bytes:
        """Return it as bytes, to be stored."""
        taken = sorted(self._taken.items())
        skips = b"".join(_SKIP.pack(shard, count) for shard, count in taken)
        cursor: bytes = self._cursor.SerializeToString()
        return _HEAD.pack(_VERSION, len(taken)) + skips + cursor

    def _read(self, token: bytes) -> None:
        try:
            version, count = _HEAD.unpack_from(token)
            end = _HEAD.size + count * _SKIP.size
            self._taken = dict(_SKIP.iter_unpack(token[_HEAD.size : end]))
            self._cursor = common_pb2.Cursor.FromString(token[end:])
        except (struct.error, DecodeError) as error:
            raise InvalidArgument("this is no cursor", reason="CURSOR_INVALID") from error
        if version != _VERSION or len(self._taken) != count:
            raise InvalidArgument("this is no cursor", reason="CURSOR_INVALID")
        self._skip = dict(self._taken)
