"""Messages of the Log service, made beside the loop: descriptions, frames, chunks of snapshots.

All of it may touch a disk and runs on the threads that read the log. What comes out are bytes, as
they are sent: a frame is a megabyte, and the loop should not have to copy it once more.
"""

from dataclasses import dataclass

from onelog.node.public_errors import answer_too_large
from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import HEADER_SIZE, SnapshotHeader
from onelog.snapshot.store import SnapshotStore
from onelog.ual.errors import UalError
from onelog.ual.files import File
from onelog.ual.frames import FRAME_BYTES_MAX, FRAME_VOIDS_MAX, Frame, read_frame
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.damaged import DamagedSegment
from onelog.ual.segments.sealed import SealedSegment
from onelog.v1 import log_pb2

CHUNK_BYTES_MAX = 1 << 20
# A void range as a message, at most: two numbers of ten bytes, their tags, its own tag and size.
VOID_BYTES_MAX = 24
# What a frame has besides entries, offsets and voids, at most.
FRAME_OVERHEAD_MAX = 64

_DATA_TAG = bytes((log_pb2.LogFrame.DESCRIPTOR.fields_by_name["data"].number << 3 | 2,))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader of frames has asked for, and what one message may hold."""

    shard: int
    last_index: int
    owners: frozenset[int]
    bytes_max: int
    voids_max: int
    message_bytes_max: int


def frame_limits(message_bytes_max: int) -> tuple[int, int]:
    """Return how many bytes of entries and how many void ranges fit in one message."""
    # Entries have at least 40 bytes and 4 of an offset: with half of a message for their bytes and
    # three eighths for ranges, both fit.
    bytes_max = min(FRAME_BYTES_MAX, message_bytes_max // 2)
    return bytes_max, min(FRAME_VOIDS_MAX, message_bytes_max * 3 // 8 // VOID_BYTES_MAX)


def next_frame(
    log: Log, first_index: int, wanted: Wanted, bytes_max: int
) -> tuple[int, int, bytes]:
    """Return the last index of the next frame, how many bytes of entries it has, and itself."""
    frame = read_frame(
        log,
        first_index,
        wanted.last_index,
        owners=wanted.owners,
        bytes_max=bytes_max,
        voids_max=wanted.voids_max,
    )
    size = len(frame.data)
    if size > bytes_max and size + FRAME_OVERHEAD_MAX > wanted.message_bytes_max:
        limit = wanted.message_bytes_max
        raise answer_too_large(
            f"entry {first_index} of shard {wanted.shard} has {size} bytes, and a message {limit}; "
            "continue behind it, or raise limits.message_bytes_max",
            limit,
            index=first_index,
            size=size,
        )
    return frame.last_index, size, encode_frame(frame)


def encode_frame(frame: Frame) -> bytes:
    """Return a LogFrame as bytes.

    The data is its last field and is put behind the others here: as a field of a message it would
    be copied twice more.
    """
    head = log_pb2.LogFrame(
        first_index=frame.first_index,
        last_index=frame.last_index,
        offsets=frame.offsets.tobytes(),
        voids=[
            log_pb2.VoidRange(first_index=first, last_index=last)
            for first, last in frame.voids.tolist()
        ],
    ).SerializeToString()
    return b"".join((head, _DATA_TAG, _varint(len(frame.data)), frame.data))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def next_chunk(record: SnapshotRecord, file: File, position: int) -> tuple[int, bytes]:
    """Return where the next chunk of a snapshot's file ends, and the chunk."""
    data = file.read(min(CHUNK_BYTES_MAX, record.size - position), position)
    if not data:
        raise CorruptSnapshot(record.file, "the file is shorter than what was written", position)
    chunk: bytes = log_pb2.SnapshotChunk(data=data, size=record.size).SerializeToString()
    return position + len(data), chunk


def describe(
    answer: log_pb2.DescribeLogResponse,
    segments: SegmentSet,
    store: SnapshotStore,
    records: tuple[SnapshotRecord, ...],
) -> bytes:
    """Fill in the files and snapshots of a shard, up to the answer's cut; return it as bytes."""
    for segment in segments.segments:
        if segment.first_index <= min(segment.last_index, answer.cut_index):
            _fill_span(answer.spans.add(), segment, answer)
    for record in records:
        answer.snapshots.add(
            index=record.index,
            term=record.term,
            size=record.size,
            state_hash=int(record.state_hash, 16),
            timestamp_ns=_timestamp_ns(store, record),
        )
    data: bytes = answer.SerializeToString()
    return data


def _fill_span(
    span: log_pb2.LogSpan, segment: Segment, answer: log_pb2.DescribeLogResponse
) -> None:
    span.first_index = segment.first_index
    span.last_index = segment.last_index
    span.first_timestamp_ns = segment.first_timestamp_ns
    span.last_timestamp_ns = segment.last_timestamp_ns
    span.entry_count = segment.entry_count
    if isinstance(segment, DamagedSegment):
        span.sealed = span.damaged = True
    elif isinstance(segment, SealedSegment):
        span.sealed = True
        span.size = segment.size_bytes
        span.owner_counts.extend(segment.owner_counts)
    else:
        # It grows while this looks at it, and has entries that may never be committed.
        span.last_index = min(segment.last_index, answer.cut_index)
        span.entry_count = span.last_index - segment.first_index + 1
        span.size = segment.bounds[span.entry_count]
        if span.last_index == answer.cut_index:
            span.last_timestamp_ns = answer.cut_timestamp_ns


def _timestamp_ns(store: SnapshotStore, record: SnapshotRecord) -> int:
    """Return the log time of a snapshot; 0 if its file is gone by now, or damaged."""
    try:
        head = store.open_file(record).read(HEADER_SIZE, 0)
        return SnapshotHeader.decode(record.file, head).timestamp_ns
    except (OSError, UalError):
        return 0
