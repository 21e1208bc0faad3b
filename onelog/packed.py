"""Packed protobuf fields as plain bytes, so that arrays need no loop over their values.

A packed field of fixed-size numbers is a tag, a size and the bytes of the array, little-endian.
Client and server add and strip the tag and the size themselves. Points of many series are encoded
as a whole (``PointsPacker``): a message of protobuf for each takes three times as long.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from onelog.v1 import timeseries_pb2

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Tags: the field's number and the wire type "length-delimited".
TAGS = b"\x0a"  # SeriesPoints.tags = 1
TIMES = b"\x12"  # SeriesPoints.times_ns = 2
COLUMNS = b"\x1a"  # SeriesPoints.columns = 3
FIELD = b"\x0a"  # Column.field = 1
VALUES = b"\x0a"  # DoubleValues.values = 1, and of integers and bools
GROUPS = b"\x12"  # QueryResponse.groups = 2
SERIES = b"\x1a"  # WritePointsRequest.series = 3
MAP_KEY, MAP_VALUE = b"\x0a", b"\x12"  # of an entry of any map
KINDS = {"f": b"\x12", "i": b"\x1a", "b": b"\x22"}  # Column.doubles = 2, integers = 3, bools = 4


def size_head(tag: bytes, size: int) -> bytes:
    """Encode what stands before the bytes of a length-delimited field: its tag and their size."""
    head = bytearray(tag)
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    return bytes(head)


def sized(tag: bytes, data: bytes) -> bytes:
    """Encode a length-delimited field: its tag, the size as a varint, the bytes."""
    return size_head(tag, len(data)) + data


def unsized(field: bytes) -> bytes:
    """Return the content of a message that has one length-delimited field, or none."""
    if not field:
        return b""
    at = 1
    while field[at] & 0x80:
        at += 1
    return field[at + 1 :]


def join_times(several: "Iterable[timeseries_pb2.SeriesPoints]") -> tuple[bytes, list[int]]:
    """Return the times of some points, one series after the other, and how many each has."""
    joined, sizes = timeseries_pb2.SeriesPoints(), []
    for points in several:
        times = points.times_ns
        joined.times_ns.MergeFrom(times)
        sizes.append(len(times))
    return unsized(joined.SerializeToString()), sizes


class PointsPacker:
    """Encodes the points of one series after the other, each as a field of type ``SeriesPoints``.

    What stands before the values of a tag and the numbers of a column only depends on their names
    and sizes, which recur: it is made once.
    """

    __slots__ = ("_columns", "_field", "_tags")

    def __init__(self, field: bytes = b"") -> None:
        self._field = field  # the tag of that field; empty: the message alone
        self._tags: dict[tuple[str, int], bytes] = {}
        self._columns: dict[tuple[str, str, int], bytes] = {}

    def pack(
        self,
        tags: Iterable[tuple[str, str]],
        times: "NDArray[np.int64]",
        columns: "Iterable[tuple[str, NDArray[Any]]]",
    ) -> bytes:
        """Encode the points of a series; values are float64, int64 or bool."""
        parts: list[bytes] = []
        for tag, value in tags:
            text = value.encode()
            head = self._tags.get((tag, len(text)))
            parts += (head or self._add_tag(tag, len(text)), text)
        raw = times.tobytes()
        parts += (size_head(TIMES, len(raw)), raw)
        for name, values in columns:
            kind, raw = values.dtype.kind, values.tobytes()
            head = self._columns.get((name, kind, len(raw)))
            parts += (head or self._add_column(name, kind, len(raw)), raw)
        data = b"".join(parts)
        return sized(self._field, data) if self._field else data

    def _add_tag(self, tag: str, size: int) -> bytes:
        head = sized(MAP_KEY, tag.encode()) + size_head(MAP_VALUE, size)
        head = self._tags[tag, size] = size_head(TAGS, len(head) + size) + head
        return head

    def _add_column(self, name: str, kind: str, size: int) -> bytes:
        head = size_head(VALUES, size)
        head = size_head(KINDS[kind], len(head) + size) + head
        head = sized(FIELD, name.encode()) + head
        head = self._columns[name, kind, size] = size_head(COLUMNS, len(head) + size) + head
        return head
