"""One unsealed segment, judged as recovery would judge it.

Recovery stops at the first damaged file; verification must go on. So this takes the same steps for
a single file and turns what recovery would raise or do into findings.
"""

from pathlib import Path

from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.offline import findings as found
from onelog.ual.offline.findings import Finding, Level
from onelog.ual.recovery import Known, refuse_corruption, scan_file
from onelog.ual.segments.check import Part, identity_problems
from onelog.ual.segments.format import HEADER_SIZE, SUMMARY_OFFSET, SUMMARY_SIZE, SegmentHeader
from onelog.ual.segments.unsealed import UnsealedSegment
from onelog.ual.tidying import Cut, Remove


def check_unsealed(
    files: Files, path: Path, successor: int | None, known: Known, shard: int
) -> tuple[Part | None, list[Finding]]:
    """Check an unsealed file; ``successor`` is the first index of the unsealed file behind it.

    Without a ``Part`` it cannot be told what the file holds.
    """
    file = files.open_read(path)
    size = file.size()
    header_data = file.read(HEADER_SIZE, 0)
    try:
        header = SegmentHeader.decode_identity(str(path), header_data)
    except UnknownVersion as error:
        message = f"format version {error.version}"
        return None, [_error(path, 0, error.reason, message, found.ADVICE_UPGRADE)]
    except CorruptFile as error:
        if size > HEADER_SIZE or successor is not None:
            return None, [_error(path, error.offset, "HEADER_DAMAGED", error.rule)]
        remedy = Remove(path, "created by a crash before its header was written")
        leftover = Finding(
            Level.LEFTOVER, path, 0, "NO_HEADER", remedy.why, found.ADVICE_OPENING, remedy
        )
        return None, [leftover]
    misplaced = identity_problems(path, header, shard)
    if misplaced:
        return None, [_error(path, item.offset, item.reason, item.rule) for item in misplaced]
    segment = UnsealedSegment(path, file, header)
    try:
        tail = _scan_entries(files, segment, size, successor, known)
    except CorruptFile as error:
        return None, [_error(path, error.offset, "ENTRY_DAMAGED", error.rule)]
    findings = [] if tail is None else [tail]
    summary = header_data[SUMMARY_OFFSET : SUMMARY_OFFSET + SUMMARY_SIZE]
    if any(summary) and tail is None:
        message = "the header has a summary, as an interrupted seal leaves it; it is not used"
        findings.append(
            Finding(Level.NOTE, path, SUMMARY_OFFSET, "UNUSED_SUMMARY", message, "nothing to do")
        )
    return _part(segment), findings


def _scan_entries(
    files: Files, segment: UnsealedSegment, size: int, successor: int | None, known: Known
) -> Finding | None:
    """Read the file's groups; return what stands behind them, raise for corruption."""
    path = segment.path
    limits = [] if successor is None else [successor - 1]
    if known.cut_from_index is not None:
        limits.append(known.cut_from_index - 1)
    damage = scan_file(files, segment, size, min(limits, default=None))
    if successor is not None and damage is None and size <= segment.end:
        return None  # whole as far as it goes; whether a file is missing behind it shows the chain
    if successor is not None and segment.last_index != successor - 1:
        lost = f"entries {segment.last_index + 1} to {successor - 1} are damaged: {damage}"
        raise CorruptFile(str(path), lost, segment.end)
    if successor is None and damage is not None:
        refuse_corruption(files, segment, size, damage, known)
    if size <= segment.end:
        return None
    if successor is not None:
        reason, why = "INTERRUPTED_SEAL", "an interrupted seal"
    elif damage is not None:
        reason, why = "TORN_TAIL", f"a torn write: {damage}"
    else:
        reason, why = "INTERRUPTED_CUT", "an interrupted cut"
    message = f"{size - segment.end} bytes behind entry {segment.last_index}: {why}"
    remedy = Cut(path, segment.end, size, why)
    return Finding(Level.TAIL, path, segment.end, reason, message, found.ADVICE_OPENING, remedy)


def _part(segment: UnsealedSegment) -> Part:
    terms = timestamps_ns = None
    if segment.entry_count:
        first = segment.read(segment.first_index)
        last = segment.read(segment.last_index)
        terms = first.term, last.term
        timestamps_ns = first.timestamp_ns, last.timestamp_ns
    return Part(
        segment.path,
        segment.first_index,
        segment.last_index,
        segment.first_proposal,
        len(segment.group_firsts),
        terms,
        timestamps_ns,
    )


def _error(
    path: Path, offset: int | None, reason: str, message: str, advice: str = found.ADVICE_PEER
) -> Finding:
    return Finding(Level.ERROR, path, offset, reason, message, advice)
