"""What of the log must stay although snapshots cover it: what the state refers to or readers hold.

Bodies of queued messages, records of streams within their retention and blocks of series are in the
log alone; the state keeps their indexes. A sealed segment may go when it holds none of them. The
log is only cut at its start, so one message that waits keeps what follows it; compaction of what
lies behind is another matter. A hold (projections/system/holds.py) keeps everything from its index
on.
"""

import numpy as np

from onelog.projections.shard_state import Projections
from onelog.ual.errors import CorruptFile
from onelog.ual.log import Log
from onelog.ual.segments.damaged import DamagedSegment
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.unsealed import UnsealedSegment


def droppable_before(
    log: Log,
    state: Projections,
    keep_index: int,
    needless_before: int = 0,
    *,
    ignores_holds: bool = False,
) -> int:
    """Return the index below which no entry is needed, ``keep_index`` at most.

    ``needless_before``: what another member has dropped already (node/replica/repair.py).
    """
    held_from = None if ignores_holds else state.system.holds.first_index()
    if held_from is not None:
        keep_index = min(keep_index, held_from)
    kept_from = state.stream.kept_streams()
    for segment in log.segments.segments:
        if segment.last_index >= keep_index or isinstance(segment, UnsealedSegment):
            break
        if segment.last_index < needless_before:
            continue
        # What is damaged is repaired first: until then nobody can tell what it holds.
        if isinstance(segment, DamagedSegment) or _is_needed(segment, state, kept_from):
            return segment.first_index
    return keep_index


def _is_needed(segment: SealedSegment, state: Projections, kept_from: dict[int, int]) -> bool:
    if state.router.pinned(segment.first_index, segment.last_index):
        return True
    try:
        for stream_id in segment.stream_ids().tolist():
            first = kept_from.get(stream_id)
            if first is not None:
                records = segment.stream_records(stream_id)
                if len(records) and records[-1] >= np.uint64(first):
                    return True
    except CorruptFile:
        return True  # rotted just now
    return False


def log_bytes_behind(log: Log, index: int) -> int:
    """Return about how many bytes of the log lie behind an index."""
    total = 0
    for segment in reversed(log.segments.segments):
        if segment.last_index <= index:
            break
        size = 0
        if isinstance(segment, SealedSegment):
            size = segment.size_bytes
        elif isinstance(segment, UnsealedSegment):
            size = segment.end
        if segment.first_index <= index:  # the part of it that is behind, by its entries
            span = segment.last_index - segment.first_index + 1
            size = size * (segment.last_index - index) // span
        total += size
    return total
