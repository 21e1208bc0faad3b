"""Inspection: what a data directory holds, as plain values for tables, scripts and people.

Nothing is verified beyond what it takes to read a file's header, footer and small tables, and to
see whether the files hold the range that was promised (``OfflineLog.losses``); what cannot be read
or is missing is reported as a problem among the rest. Works on a directory in use.
Counts by entry type need every entry's header. They are there for unsealed files, which are read
anyway, and for sealed ones on request.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from onelog.ual.directory import Node, System, read_node, read_system
from onelog.ual.entry import OWNER_NAMES
from onelog.ual.errors import CorruptFile, DataError, UalError
from onelog.ual.files import Files
from onelog.ual.offline.reader import OfflineFile, OfflineLog, ReadOnlyFiles, list_root
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.tables import gather_headers
from onelog.ual.segments.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True)
class FileReport:
    """One file of a shard's segs/. None: does not apply, or unknown."""

    name: str
    kind: str  # sealed, unsealed, compacting, tombstone
    size_bytes: int
    is_dropped: bool
    problem: str | None
    first_index: int
    last_index: int | None = None
    entry_count: int | None = None
    first_proposal: int | None = None
    proposal_count: int | None = None
    first_timestamp_ns: int | None = None
    last_timestamp_ns: int | None = None
    entries_by_owner: dict[str, int] | None = None
    entries_by_type: dict[str, int] | None = None
    stream_count: int | None = None
    void_range_count: int | None = None
    void_index_count: int | None = None
    is_compacted: bool | None = None
    tail_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ShardReport:
    """One shard."""

    shard: int
    first_index: int
    last_index: int
    entry_count: int
    size_bytes: int
    durable_index: int
    commit_index: int
    generation: int
    cut_from_index: int | None
    voted_term: int | None  # by RAFT; entries may be of older terms
    vote: str | None
    snapshot_count: int
    cold_range_count: int
    files: tuple[FileReport, ...]
    foreign: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DirectoryReport:
    """A data directory."""

    path: str
    cluster_id: str | None
    node_id: str | None
    node_name: str | None
    created_at: str | None
    shard_count: int | None
    partition_count: int | None
    shards: tuple[ShardReport, ...]
    problems: tuple[str, ...]

    @property
    def has_problems(self) -> bool:
        """Whether anything here, in a shard or in a file is a problem."""
        return bool(self.problems) or any(
            shard.problems or any(file.problem for file in shard.files) for shard in self.shards
        )


def inspect_directory(
    files: Files, data_dir: Path, *, shard: int | None = None, count_types: bool = False
) -> DirectoryReport:
    """Report a data directory, or one shard of it."""
    reader = ReadOnlyFiles(files)
    root = list_root(reader, data_dir)
    problems: list[str] = []
    system: System | None = None
    node: Node | None = None
    try:
        system = read_system(reader, data_dir)
    except (UalError, OSError) as error:
        problems.append(shown_error(error))
    try:
        node = read_node(reader, data_dir)
    except (UalError, OSError) as error:
        problems.append(shown_error(error))
    shards: list[ShardReport] = []
    for number in root.choose(shard, system.topology.shards if system else None):
        try:
            shards.append(_inspect_shard(reader, data_dir, number, count_types=count_types))
        except OSError as error:
            problems.append(shown_error(error))
    return DirectoryReport(
        path=str(data_dir),
        cluster_id=str(system.cluster_id) if system else None,
        node_id=str(node.node_id) if node else None,
        node_name=node.name if node else None,
        created_at=system.created_at if system else None,
        shard_count=system.topology.shards if system else None,
        partition_count=system.topology.partitions if system else None,
        shards=tuple(shards),
        problems=tuple(problems),
    )


def _inspect_shard(
    files: ReadOnlyFiles, data_dir: Path, shard: int, *, count_types: bool
) -> ShardReport:
    log = OfflineLog(files, data_dir, shard)
    after = _proposals_after(log.parts)
    reports = [
        _inspect_file(file, after.get(file.path), count_types=count_types) for file in log.files
    ]
    states = [] if log.hard_state is None else [slot.state for slot in log.hard_state.slots]
    state = max(filter(None, states), key=lambda item: item.sequence, default=None)
    manifest = log.manifest
    return ShardReport(
        shard=shard,
        first_index=log.first_index,
        last_index=log.last_index,
        entry_count=sum(file.segment.entry_count for file in log.parts if file.segment),
        size_bytes=sum(file.size_bytes for file in log.files),
        durable_index=log.durable_index,
        commit_index=log.commit_index,
        generation=log.generation,
        cut_from_index=manifest.cut_from_index if manifest else None,
        voted_term=state.term if state else None,
        vote=str(state.vote) if state and state.vote else None,
        snapshot_count=len(manifest.snapshots) if manifest else 0,
        cold_range_count=len(manifest.cold) if manifest else 0,
        files=tuple(reports),
        foreign=log.foreign,
        problems=tuple(shown_error(error) for error in _shard_problems(log)),
    )


def _shard_problems(log: OfflineLog) -> Iterator[DataError | OSError]:
    """Yield what is wrong with a shard, except the problems in the reports of its files."""
    yield from log.errors
    if log.files and not log.has_hard_state:
        yield CorruptFile(str(log.paths.hard_state), "missing beside a log; its vote is lost")
    has_entries = any(file.segment is None or file.segment.entry_count for file in log.parts)
    if has_entries and not log.has_manifest:
        yield CorruptFile(str(log.paths.manifest), "missing beside segments")
    of_files = {id(file.error or file.damage) for file in log.parts}
    yield from (loss.error for loss in log.losses if id(loss.error) not in of_files)


def _proposals_after(parts: Sequence[OfflineFile]) -> dict[Path, int]:
    """Return, by file, the number of the first proposal after it, from the next file's header."""
    return {
        before.path: after.segment.first_proposal
        for before, after in pairwise(parts)
        if after.segment is not None
        and before.segment is not None
        and before.segment.last_index + 1 == after.first_index
    }


def _inspect_file(
    file: OfflineFile, proposal_after: int | None, *, count_types: bool
) -> FileReport:
    segment, error = file.segment, file.error or file.damage
    report = FileReport(
        file.path.name,
        file.kind.name.lower(),
        file.size_bytes,
        file.is_dropped,
        # A file that opening removes does no harm.
        None if error is None or file.is_dropped else shown_error(error),
        file.first_index,
    )
    if segment is None:
        return report
    report = replace(
        report,
        last_index=segment.last_index,
        entry_count=segment.entry_count,
        first_proposal=segment.first_proposal,
        first_timestamp_ns=segment.first_timestamp_ns if segment.entry_count else None,
        last_timestamp_ns=segment.last_timestamp_ns if segment.entry_count else None,
    )
    try:
        if isinstance(segment, SealedSegment):
            return _add_sealed(report, segment, proposal_after, count_types=count_types)
        if isinstance(segment, UnsealedSegment):
            return _add_unsealed(report, segment, file.tail_bytes)
        segment.refuse()
    except (DataError, OSError) as raised:
        return replace(report, problem=shown_error(raised))


def _add_sealed(
    report: FileReport, segment: SealedSegment, proposal_after: int | None, *, count_types: bool
) -> FileReport:
    report = replace(
        report,
        entries_by_owner=_by_owner(dict(enumerate(segment.owner_counts))),
        stream_count=segment.footer.streams.count,
        void_range_count=len(segment.voids),
        void_index_count=sum(last - first + 1 for first, last in segment.voids.tolist()),
        is_compacted=segment.is_compacted,
    )
    if proposal_after is not None and not segment.is_compacted:
        report = replace(report, proposal_count=proposal_after - segment.first_proposal)
    if count_types:
        columns = segment.columns(segment.first_index, segment.last_index)
        report = replace(report, entries_by_type=_by_type(columns.entry_type))
        segment.unmap()
    return report


def _add_unsealed(report: FileReport, segment: UnsealedSegment, tail_bytes: int) -> FileReport:
    data = segment.file.read(segment.end, 0)
    if len(data) < segment.end:
        raise CorruptFile(str(segment.path), "was cut while it was read", len(data))
    types = gather_headers(data, np.array(segment.offsets, np.int64))["entry_type"]
    owners, counts = np.unique(types >> np.uint16(8), return_counts=True)
    return replace(
        report,
        proposal_count=len(segment.group_firsts),
        entries_by_owner=_by_owner(dict(zip(owners.tolist(), counts.tolist(), strict=True))),
        entries_by_type=_by_type(types),
        tail_bytes=tail_bytes,
    )


def _by_owner(counts: dict[int, int]) -> dict[str, int]:
    return {
        OWNER_NAMES.get(owner, f"0x{owner:02x}"): count for owner, count in counts.items() if count
    }


def _by_type(types: NDArray[np.uint16]) -> dict[str, int]:
    values, counts = np.unique(types, return_counts=True)
    pairs = zip(values.tolist(), counts.tolist(), strict=True)
    return {f"0x{value:04x}": count for value, count in pairs}


def shown_error(error: UalError | OSError) -> str:
    """Return an error as the commands print it: the stable reason, then the text."""
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    return f"{error_reason(error)}: {text}"


def error_reason(error: UalError | OSError) -> str:
    """Return the stable reason of an error; for an ``OSError``, its errno name."""
    if isinstance(error, UalError):
        return error.reason
    return errno.errorcode.get(error.errno or 0, "OS_ERROR")
