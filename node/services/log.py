"""The Log service: bulk reads of the log and of snapshots, as they are stored.

``DescribeLog`` is a linearizable read, answered by the shard's leader. The two streams are answered
by any replica from its own files, so followers can take that load off the leader. They send what is
committed and applied here, which is the same on every replica.

Streams may take hours and must not slow down other calls. A step reads at most a megabyte, on the
threads that read the log, and encodes it there: a frame is a megabyte, and the loop should not copy
it once more. The next step begins when the client has taken the last one. The number of streams is
limited (``limits.log_streams_max``), and each may ask for a limit of bytes per second.

Bulk reads give way to writes. While entries are applied, all streams of a process together send at
most ``limits.log_bytes_per_s_beside_writes``; without writes they send as fast as they can. Without
a limit, two readers on the nodes' own machine cut the rate of puts to 0.19 to 0.41
(docs/performance/2026-11-18.md).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from onelog.errors import NotFound, ResourceExhausted, Unavailable
from onelog.node.edge.calls import DEADLINE_DEFAULT_S, LEADER_WAIT_S, Call, Elsewhere
from onelog.node.edge.shards import Edge, invalid
from onelog.node.public_errors import answer_too_large, error_of_reason
from onelog.node.replica.driver import ShardDriver
from onelog.node.snapshots.past import first_as_of_index
from onelog.projections.reasons import Reason
from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.store import SnapshotStore
from onelog.ual.entry import Unreadable
from onelog.ual.errors import EntriesDamaged
from onelog.ual.files import File
from onelog.ual.frames import FRAME_BYTES_MAX, FRAME_VOIDS_MAX, Checked, Frame, read_frame
from onelog.ual.log import Log
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.chain import Segment, SegmentSet
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.v1 import common_pb2, log_pb2

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
    log: Log, first_index: int, wanted: Wanted, bytes_max: int, checked: Checked
) -> tuple[int, int, bytes]:
    """Return the last index of the next frame, how many bytes of entries it has, and itself."""
    frame = read_frame(
        log,
        first_index,
        wanted.last_index,
        checked,
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
            timestamp_ns=store.log_time_ns(record),
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
        # It grows while it is read, and has entries that may never be committed.
        span.last_index = min(segment.last_index, answer.cut_index)
        span.entry_count = span.last_index - segment.first_index + 1
        span.size = segment.bounds[span.entry_count]
        if span.last_index == answer.cut_index:
            span.last_timestamp_ns = answer.cut_timestamp_ns


# Log

# A call that waits is answered this long before its deadline.
MARGIN_S = 0.25
RETRY_S = 1.0
RETRY_BEHIND_S = 0.1
# A paced stream sends about this many frames a second, as long as they do not get too small.
PACED_FRAMES_PER_S = 8
PACED_FRAME_BYTES_MIN = 16 << 10
# Beside writes frames are smaller: what a reader does with one delays whatever shares its cores.
BESIDE_WRITES_FRAME_BYTES_MAX = 256 << 10
_LINEARIZABLE = common_pb2.ReadOptions()


class LogService:
    """See ``log.proto``."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge
        self._streams = 0
        limits = edge.context.config.limits
        self._streams_max = limits.log_streams_max
        self._beside_writes = _Pace(limits.log_bytes_per_s_beside_writes)

    async def describe_log(self, request: log_pb2.DescribeLogRequest, call: Call) -> bytes:
        """Describe a shard's log where it is led, behind a read."""
        edge = self._edge
        number = edge.check_shard(request.shard)
        view = await edge.read_live(number, _LINEARIZABLE, call)
        # Before anything else is waited for: all of this is of one moment. A group is applied as a
        # whole, so the applied index closes one.
        shard, topology = edge.replica(number).shard, edge.context.topology
        answer = log_pb2.DescribeLogResponse(
            cluster_id=str(topology.cluster_id),
            shard=number,
            shard_count=topology.shards,
            first_index=shard.log.first_index,
            cut_index=view.applied_index,
            cut_timestamp_ns=shard.router.log_time_ns,
            first_as_of_index=first_as_of_index(shard),
        )
        store = shard.snapshots
        return await asyncio.get_running_loop().run_in_executor(
            edge.readers, describe, answer, shard.log.segments, store, store.records
        )

    async def read_log_frames(
        self, request: log_pb2.ReadLogFramesRequest, call: Call
    ) -> AsyncIterator[bytes]:
        """Send the entries of a range as they are stored, from this replica."""
        edge, loop = self._edge, asyncio.get_running_loop()
        wanted = self._wanted(request)
        driver = edge.replica(wanted.shard)
        at, pace = request.first_index, _Pace(request.bytes_per_second_max)
        waited_at, checked = 0, Checked()  # where a repair has been waited for
        with self._turn():
            while at <= wanted.last_index:
                await self._reach(driver, wanted.shard, wanted.last_index, call)
                shard, applied = driver.shard, self._applied_count()
                bytes_max = wanted.bytes_max
                if self._beside_writes.is_behind:
                    bytes_max = min(bytes_max, BESIDE_WRITES_FRAME_BYTES_MAX)
                make = partial(next_frame, shard.log, at, wanted, bytes_max, checked)
                try:
                    last_index, size, frame = await loop.run_in_executor(edge.readers, make)
                except EntriesDamaged as error:
                    if waited_at == at or not await self._until_repaired(wanted.shard, error):
                        raise
                    waited_at = at
                    continue
                await pace.wait()
                await self._beside_writes.wait()
                yield frame
                pace.sent(size)
                self._give_way(size, applied)
                at = last_index + 1

    async def read_snapshot(
        self, request: log_pb2.ReadSnapshotRequest, _call: Call
    ) -> AsyncIterator[bytes]:
        """Send the file of a snapshot that this replica keeps."""
        edge, loop = self._edge, asyncio.get_running_loop()
        driver = edge.replica(edge.check_shard(request.shard))
        with self._turn():
            # The open file holds the bytes: retention removes the name, and nothing else.
            record, file = await loop.run_in_executor(
                edge.readers, _open_snapshot, driver.shard.snapshots, request.index
            )
            position = 0
            while position < record.size:
                applied = self._applied_count()
                read = partial(next_chunk, record, file, position)
                position, chunk = await loop.run_in_executor(edge.readers, read)
                await self._beside_writes.wait()
                yield chunk
                self._give_way(len(chunk), applied)

    def _wanted(self, request: log_pb2.ReadLogFramesRequest) -> Wanted:
        """Return the requested range; refuse one that makes no sense."""
        shard = self._edge.check_shard(request.shard)
        first, last = request.first_index, request.last_index
        if not first or not last:
            raise invalid("RANGE_INVALID", "first_index and last_index are needed, from 1")
        if last < first:
            raise invalid("RANGE_INVALID", f"a range from {first} to {last} goes backwards")
        owners = frozenset(request.owners)
        if not owners <= set(log_pb2.Owner.values()):
            raise invalid("OWNER_INVALID", f"there is no owner {max(owners)}")
        message_bytes_max = self._edge.context.config.limits.message_bytes_max
        bytes_max, voids_max = frame_limits(message_bytes_max)
        if rate := request.bytes_per_second_max:
            bytes_max = min(bytes_max, max(rate // PACED_FRAMES_PER_S, PACED_FRAME_BYTES_MIN))
        return Wanted(shard, last, owners, bytes_max, voids_max, message_bytes_max)

    async def _reach(self, driver: ShardDriver, shard: int, index: int, call: Call) -> None:
        """Wait until this replica has applied an index, for as long as the caller has."""
        edge, log = self._edge, driver.shard.log
        if log.applied_index >= index:
            return
        clock = edge.context.clock
        # Without a deadline the caller decides by itself when to ask another replica.
        until_s = clock.now_s() + LEADER_WAIT_S
        if call.client_deadline_s is not None:
            until_s = min(call.client_deadline_s - MARGIN_S, clock.now_s() + DEADLINE_DEFAULT_S)
        if await self._leads(shard, until_s):
            # Behind a read a leader has applied everything that was acknowledged.
            if log.applied_index < index:
                raise error_of_reason(Reason.INDEX_IN_FUTURE, log.applied_index)
            return
        left_s = until_s - clock.now_s()
        if not await edge.waits(shard).until(lambda: log.applied_index >= index, left_s):
            raise Unavailable(
                f"this replica has applied {log.applied_index}, and {index} is asked for; "
                "ask another one, or later",
                reason="REPLICA_BEHIND",
                metadata={"applied_index": str(log.applied_index)},
                retry_after_s=RETRY_BEHIND_S,
            )

    async def _leads(self, shard: int, until_s: float) -> bool:
        """Tell whether this replica leads for certain, which takes a majority."""
        try:
            return await self._edge.leading(shard).read(until_s) is None
        except Elsewhere:
            return False

    async def _until_repaired(self, shard: int, error: EntriesDamaged) -> bool:
        """Wait for a peer's copy; tell whether it is worth reading again."""
        entries = (Unreadable(error.first_index, error.last_index),)
        return await self._edge.until_repaired(shard, entries, float("inf"))

    def _applied_count(self) -> int:
        """Return how many entries this process has applied, of all shards."""
        return sum(each.shard.log.applied_index for each in self._edge.context.drivers.values())

    def _give_way(self, size: int, applied_before: int) -> None:
        """Count bytes against the rate beside writes, if entries were applied meanwhile."""
        if self._applied_count() != applied_before:
            self._beside_writes.sent(size)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Count a stream, or refuse it."""
        if self._streams >= self._streams_max:
            raise ResourceExhausted(
                f"{self._streams_max} streams of the log are under way, which is the limit",
                reason="TOO_MANY_LOG_STREAMS",
                metadata={"limit": str(self._streams_max)},
                retry_after_s=RETRY_S,
            )
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


class _Pace:
    """When the next frame may be sent, so that the bytes of all are within a rate."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._due_s = 0.0

    @property
    def is_behind(self) -> bool:
        """Whether the frames before still have to have their time."""
        return self._due_s > asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """Wait until the frames before have had their time."""
        wait_s = self._due_s - asyncio.get_running_loop().time()
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def sent(self, size: int) -> None:
        """Count a frame that was sent; time that was not used is not made up for later."""
        if self._bytes_per_s:
            now_s = asyncio.get_running_loop().time()
            self._due_s = max(self._due_s, now_s) + size / self._bytes_per_s


def _open_snapshot(store: SnapshotStore, index: int) -> tuple[SnapshotRecord, File]:
    """Open a kept snapshot, on a thread; the newest for index 0."""
    while True:
        records = store.records
        wanted = [each for each in records if each.index == index] if index else records[-1:]
        if not wanted:
            kept = ",".join(str(each.index) for each in records)
            raise NotFound(
                f"no snapshot is kept at index {index}" if index else "no snapshot was taken yet",
                reason="SNAPSHOT_UNKNOWN",
                metadata={"indexes": kept},
            )
        try:
            return wanted[0], store.open_file(wanted[0])
        except FileNotFoundError:
            # Retention took it meanwhile: look again what is kept. A listed file is always there.
            if store.records == records:
                raise
