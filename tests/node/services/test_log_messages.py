"""Messages of the Log service, from logs that no server would have on demand."""

from itertools import pairwise
from random import Random

import numpy as np
import pytest

from onelog.node.services.log import (
    FRAME_OVERHEAD_MAX,
    VOID_BYTES_MAX,
    Wanted,
    describe,
    encode_frame,
    frame_limits,
    next_frame,
)
from onelog.snapshot.store import SnapshotStore
from onelog.ual.entry import HEADER_SIZE
from onelog.ual.frames import Checked, Frame
from onelog.ual.log_config import LogConfig
from onelog.v1 import log_pb2
from tests.simulation.disk import SimDisk
from tests.ual.shards import (
    SECOND,
    append_one,
    fill,
    make_shard,
    open_shard,
    seal_closed,
    settle_to,
)

ROOMY = LogConfig(segment_bytes_max=8 << 20, unsynced_bytes_max=8 << 20, free_bytes_min=0)
TOP = (1 << 64) - 1


@pytest.mark.parametrize("cut", [1, 40, 119])
def test_a_description_ends_at_the_cut_wherever_files_end(cut: int) -> None:
    """Behind the cut a leader has entries that may never be committed."""
    disk = SimDisk()
    paths = make_shard(disk)
    log, _ = open_shard(disk, paths)
    for number in range(120):
        log.append([(0x0101, bytes(30), 0)], term=1, timestamp_ns=(number + 1) * SECOND)
    settle_to(log, cut)
    seal_closed(log)
    files = len(log.segments.segments)
    assert files > 3
    answer = log_pb2.DescribeLogResponse(cut_index=cut, cut_timestamp_ns=cut * SECOND)
    store = SnapshotStore(disk, paths, log)

    data = describe(answer, log.segments, store, ())

    spans = log_pb2.DescribeLogResponse.FromString(data).spans
    assert spans[0].first_index == 1
    assert spans[-1].last_index == cut
    assert spans[-1].last_timestamp_ns == cut * SECOND
    for before, after in pairwise(spans):
        assert before.last_index + 1 == after.first_index
    for span in spans:
        assert span.entry_count == span.last_index - span.first_index + 1
        assert span.first_timestamp_ns == span.first_index * SECOND
        assert span.last_timestamp_ns == span.last_index * SECOND
        if not span.sealed:
            segment = log.segments.covering(span.first_index)
            assert len(disk.contents(segment.path)) >= span.size
            assert span.size == 64 + span.entry_count * (HEADER_SIZE + 30)


def test_a_full_frame_fits_in_a_message_of_any_size() -> None:
    for limit in (64 << 10, 100_000, 1 << 20, 16 << 20, 1 << 30):
        bytes_max, voids_max = frame_limits(limit)
        count = bytes_max // HEADER_SIZE
        frame = Frame(
            TOP, TOP, np.zeros(count, "<u4"), np.full((voids_max, 2), TOP, np.uint64),
            bytes(bytes_max),
        )  # fmt: skip
        data = encode_frame(frame)
        assert len(data) <= limit
        message = log_pb2.LogFrame.FromString(data)
        assert (message.first_index, message.last_index) == (TOP, TOP)
        assert message.data == frame.data
        assert len(message.voids) == voids_max
        assert len(message.offsets) == 4 * count
    one = log_pb2.LogFrame(voids=[log_pb2.VoidRange(first_index=TOP, last_index=TOP)])
    assert one.ByteSize() <= VOID_BYTES_MAX


def test_an_entry_that_just_fits_in_a_message_is_sent() -> None:
    disk = SimDisk()
    log, _ = open_shard(disk, make_shard(disk), ROOMY)
    limit = 1 << 20
    bytes_max, voids_max = frame_limits(limit)
    append_one(log, Random(1).randbytes(limit - FRAME_OVERHEAD_MAX - HEADER_SIZE))
    fill(log, 1)
    settle_to(log, log.last_index)
    log.notes.add_void(1, 1)
    wanted = Wanted(0, log.last_index, frozenset(), bytes_max, voids_max, limit)

    last, size, data = next_frame(log, 1, wanted, bytes_max, Checked())

    assert (last, size) == (1, limit - FRAME_OVERHEAD_MAX)
    assert len(data) <= limit
