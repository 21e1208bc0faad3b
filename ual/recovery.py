"""Recovery: find out what a shard's segment files hold after any crash, tidy up, open the log.

``open_log`` is the one way to a writable log, after a clean stop and after any crash: survey, carry
out the actions, make everything durable, and only then say what is durable.

``survey`` only reads. It opens sealed files by their tables, scans unsealed ones entry by entry,
and returns the segments together with the ``Action`` list that makes the directory match them.
``open_log`` carries the list out; ``onelog log verify`` reports it, and ``repair`` shows it before
doing the same. If carrying it out is interrupted, the next survey makes the list again; afterwards
a survey finds the same log and nothing to do.

Torn or corrupt? Pages reach the disk in any order, so after a power loss a hole in unsynced bytes
may be followed by intact entries. Damage is the harmless tail of interrupted writes unless the
bytes were reported as safe, and there are four signs of that:

* the damaged index is at or below one recorded as durable (MANIFEST, or the hint in RAFT);
* a file follows this one: it has its name only after this one was synced to its end;
* an intact entry lies more than ``unsynced_bytes_max`` after the damage: never are more bytes
  unsynced than that, so the damaged ones were synced;
* the header is bad and bytes follow it: a header is synced before the first entry.

Then it is ``CorruptFile``. Otherwise the file is cut after its last whole group.

A successor that has not got its name yet (``.flseg.next``) belongs to the log if it continues where
the last file ends. If that file has lost its end, the successor is useless and is removed too.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from onelog.ual.directory import ShardPaths
from onelog.ual.entry import (
    FLAGS_KNOWN,
    OWNER_COUNT_MAX,
    PAYLOAD_SIZE_MAX,
    check_entry,
    check_group,
)
from onelog.ual.entry import HEADER_SIZE as ENTRY_HEADER_SIZE
from onelog.ual.errors import CorruptFile, EntryError, ForeignShard, MissingSegment
from onelog.ual.files import Files
from onelog.ual.hard_state import HardStateFile, Hint
from onelog.ual.log import Log
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import Base, Install, Manifest, SnapshotRecord
from onelog.ual.manifest import load as load_manifest
from onelog.ual.segments.chain import Segment, SegmentSet, check_touching
from onelog.ual.segments.format import (
    HEADER_SIZE,
    SegmentHeader,
    SegmentKind,
    parse_segment_name,
    segment_name,
    successor_name,
)
from onelog.ual.segments.notes import ApplyNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.tables import ENTRY_DTYPE
from onelog.ual.segments.unsealed import UnsealedSegment


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file that is not part of the log."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut a file to ``size`` bytes."""

    path: Path
    size: int
    size_before: int
    why: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Give a successor its name; the file ``behind`` which it comes must be durable first."""

    path: Path
    behind: Path
    why: str = "an interrupted change to the next file"

    @property
    def target(self) -> Path:
        """The new path."""
        return self.path.with_suffix(Path(SegmentKind.UNSEALED.value).suffix)


Action = Remove | Cut | Adopt


def carry_out(files: Files, directory: Path, actions: Sequence[Action]) -> None:
    """Carry out the actions of a survey; after an interruption, survey and carry out again.

    Tombstones are listed last. They are removed only once the removals before them are durable, or
    a crash could bring a dropped file back without its tombstone.
    """
    data = [action for action in actions if not _is_tombstone(action)]
    for action in data:
        match action:
            case Remove(path):
                files.remove(path)
            case Cut(path, size):
                file = files.open(path)
                file.truncate(size)
                file.sync()
            case Adopt(path, behind):
                files.open(behind).sync()
                files.open(path).sync()
                files.rename(path, action.target)
    if data:
        files.sync_directory(directory)
    tombstones = [action for action in actions if _is_tombstone(action)]
    for action in tombstones:
        files.remove(action.path)
    if tombstones:
        files.sync_directory(directory)


def _is_tombstone(action: Action) -> bool:
    parsed = parse_segment_name(action.path.name)
    return parsed is not None and parsed[1] is SegmentKind.TOMBSTONE


# Recovery

# The search for an intact entry after damage tries every byte offset, in pieces, so that the
# columns it compares stay small.
SEARCH_SIZE = 4 << 20

# Bytes that look like a header cost the checksum of a payload. Few do by chance, but a file made of
# them would keep the search busy for hours.
SEARCH_CHECKSUM_FACTOR = 8

ORPHAN = "begun behind something that was not synced and is gone"


@dataclass(frozen=True, slots=True)
class Known:
    """What MANIFEST and the hint in RAFT record about the segments."""

    first_index: int | None  # the first index that must be there; None: not recorded
    first_proposal: int
    durable_index: int  # every entry up to here was synced
    generation: int  # suffix cuts so far
    cut_from_index: int | None  # an interrupted cut: nothing from here on may stay
    unsynced_bytes_max: int
    install: Install | None = None  # an interrupted install: these files count as renamed
    base: Base | None = None
    commit_index: int = 0  # every entry up to here was committed


@dataclass(slots=True)
class Survey:
    """The segments of a shard and the actions to tidy up; ``foreign`` names are left alone."""

    segments: list[Segment]
    actions: list[Action]
    foreign: list[str]


def survey(
    files: Files,
    directory: Path,
    known: Known,
    *,
    allow_damaged: bool = False,
    allow_missing: bool = False,
) -> Survey:
    """Read a shard's segment directory; raise a ``DataError`` for anything but a torn tail.

    With ``allow_damaged``, a sealed file that cannot be opened is replaced by a ``DamagedSegment``
    that serves nothing, if its header or its neighbours show what it must hold. With
    ``allow_missing``, so is a range that has no file, if it is known to be committed.
    """
    found = _read_files(files, directory, known, allow_damaged=allow_damaged)
    found.segments = _bridge(files, directory, found.segments, known, allow_missing=allow_missing)
    for segment in found.segments:
        if isinstance(segment, DamagedSegment) and not segment.first_proposal:
            raise CorruptFile(str(segment.path), segment.rule, segment.offset)
    _check_range(directory, found.segments, known)
    return found


def survey_damage(files: Files, directory: Path, known: Known) -> list[Segment]:
    """Read the segment directory of a log that cannot be opened; return what it has of the log.

    As ``survey`` with everything allowed. Besides, a ``DamagedSegment`` whose first proposal is 0
    has a place and no number: what is before it has to be repaired first.
    """
    found = _read_files(files, directory, known, allow_damaged=True)
    segments = _bridge(files, directory, found.segments, known, allow_missing=True)
    last_index = segments[-1].last_index if segments else 0
    if last_index < known.durable_index:
        raise MissingSegment(str(directory), last_index + 1, known.durable_index)
    return segments


def _read_files(files: Files, directory: Path, known: Known, *, allow_damaged: bool) -> Survey:
    """Return the segments that there are; sealed ones that cannot be opened know only a place."""
    names, found = sort_names(files, directory)
    found.actions.extend(finish_deletions(directory, names, known))
    gone = {action.path.name for action in found.actions if isinstance(action, Remove)}
    sealed: list[Segment] = []
    for first, name in names[SegmentKind.SEALED].items():
        if name in gone:
            continue
        try:
            sealed.append(SealedSegment.open(files, directory / name))
        except CorruptFile as error:
            if not allow_damaged:
                raise
            place = SegmentHeader(0, 0, first, 0)
            sealed.append(DamagedSegment(directory / name, place, error.rule, error.offset))
    unsealed = {
        first: directory / name
        for first, name in names[SegmentKind.UNSEALED].items()
        if name not in gone
    }
    for segment in sealed:
        if segment.first_index in unsealed:
            raise CorruptFile(str(segment.path), "stands beside an unsealed file of the same name")
    scanned = _scan_unsealed(files, unsealed, known, found.actions)
    for name in names[SegmentKind.SUCCESSOR].values():
        if name not in gone:
            _adopt(files, directory / name, scanned, known, found.actions)
    found.segments = [*sealed, *scanned]
    return found


NO_FILE = "no file holds these entries"


def _bridge(
    files: Files, directory: Path, parts: Sequence[Segment], known: Known, *, allow_missing: bool
) -> list[Segment]:
    """Return the segments, with a stand-in for each damaged and each lost file.

    A file that is damaged reaches up to the next name. A range before an unsealed file may have
    been an unsealed file itself, so there only what is known to be committed gets a stand-in.
    """
    chain: list[Segment] = []
    shard = next((part.header.shard for part in parts if not isinstance(part, DamagedSegment)), 0)
    for at, each in enumerate(parts, start=1):
        part, after = each, parts[at] if at < len(parts) else None
        expected = chain[-1].last_index + 1 if chain else known.first_index
        if allow_missing and expected is not None and part.first_index > expected:
            is_sealed = not isinstance(part, UnsealedSegment)
            if is_sealed or part.first_index - 1 <= known.commit_index:
                path = directory / segment_name(expected)
                header = _stand_in(chain, shard, expected, part.first_index - 1, known)
                chain.append(DamagedSegment(path, header, NO_FILE))
        if isinstance(part, DamagedSegment):
            if after is None:  # its end is unknown
                raise CorruptFile(str(part.path), part.rule, part.offset)
            last_index = after.first_index - 1
            header = _stand_in(chain, shard, part.first_index, last_index, known)
            with suppress(CorruptFile):
                data = files.open_read(part.path).read(HEADER_SIZE, 0)
                own = SegmentHeader.decode_identity(str(part.path), data)
                if (own.shard, own.first_index) == (shard, part.first_index):
                    header = replace(
                        header, segment_id=own.segment_id, first_proposal=own.first_proposal
                    )
            part = DamagedSegment(part.path, header, part.rule, part.offset)
        chain.append(part)
    return chain


def _stand_in(
    chain: Sequence[Segment], shard: int, first_index: int, last_index: int, known: Known
) -> SegmentHeader:
    """Derive the header of a lost file from what is before it; proposal 0 if that is lost, too."""
    before = chain[-1] if chain else None
    proposal = time_ns = segment_id = 0
    if before is None:
        if first_index == known.first_index:
            proposal, segment_id = known.first_proposal, 1
    else:
        time_ns, segment_id = before.last_timestamp_ns, before.header.segment_id + 1
        if isinstance(before, SealedSegment) and not before.is_compacted:
            with suppress(CorruptFile):
                proposal = before.first_proposal + before.proposal_count()
    return SegmentHeader(
        shard,
        segment_id,
        first_index,
        proposal,
        last_index=last_index,
        first_timestamp_ns=time_ns,
        last_timestamp_ns=time_ns,
        entry_count=last_index - first_index + 1,
    )


def sort_names(files: Files, directory: Path) -> tuple[dict[SegmentKind, dict[int, str]], Survey]:
    """Return the names by kind, then by first index in numeric order; and an empty survey."""
    names: dict[SegmentKind, dict[int, str]] = {kind: {} for kind in SegmentKind}
    foreign: list[str] = []
    for name in files.list(directory):
        parsed = parse_segment_name(name)
        if parsed is None:
            foreign.append(name)
        else:
            names[parsed[1]][parsed[0]] = name
    ordered = {kind: dict(sorted(group.items())) for kind, group in names.items()}
    return ordered, Survey([], [], foreign)


def finish_deletions(
    directory: Path, names: dict[SegmentKind, dict[int, str]], known: Known
) -> list[Remove]:
    """List what interrupted drops, compactions, cuts and transfers left behind.

    During an install, files that a peer sent count as sealed under their temporary names.
    """
    actions: list[Remove] = []
    received = names[SegmentKind.RECEIVED]
    if known.install is None:
        actions.extend(
            Remove(directory / name, "an interrupted transfer") for name in received.values()
        )
    else:
        actions.extend(settle_install(directory, names, known.install))
    tombs = names[SegmentKind.TOMBSTONE]
    actions.extend(
        Remove(directory / name, "an interrupted compaction")
        for name in names[SegmentKind.COMPACTING].values()
    )
    sealed = names[SegmentKind.SEALED]
    # A segment ends where the next one starts, so the next one shows whether all of it is below
    # the recorded start of the log.
    firsts = sorted([*sealed, *names[SegmentKind.UNSEALED]])
    successors = dict(pairwise(firsts))
    for first, name in sealed.items():
        dropped = (
            known.first_index is not None
            and first in successors
            and successors[first] <= known.first_index
        )
        if first in tombs or dropped:
            actions.append(Remove(directory / name, "dropped from the log"))
    if known.cut_from_index is not None:
        actions.extend(
            Remove(directory / name, "an interrupted cut")
            for first, name in names[SegmentKind.UNSEALED].items()
            if first > known.cut_from_index
        )
        actions.extend(
            Remove(directory / name, "an interrupted cut")
            for name in names[SegmentKind.SUCCESSOR].values()
        )
    actions.extend(
        Remove(directory / name, "the tombstone of a dropped segment") for name in tombs.values()
    )
    return actions


def settle_install(
    directory: Path, names: dict[SegmentKind, dict[int, str]], install: Install
) -> list[Remove]:
    """List the files that an install replaces, and reduce ``names`` to those that it keeps.

    All unsealed files go: nothing is appended after a new base before the intent is cleared.
    """
    sealed, received = names[SegmentKind.SEALED], names[SegmentKind.RECEIVED]
    taken = {segment.first_index for segment in install.segments}
    replaced = [*names[SegmentKind.UNSEALED].values(), *names[SegmentKind.SUCCESSOR].values()]
    replaced += [name for first, name in received.items() if first not in taken]
    for first in list(sealed):
        if first > install.keep_through and first not in taken:
            replaced.append(sealed.pop(first))
    sealed.update((first, name) for first, name in received.items() if first in taken)
    names[SegmentKind.SEALED] = dict(sorted(sealed.items()))
    names[SegmentKind.UNSEALED] = {}
    names[SegmentKind.SUCCESSOR] = {}
    names[SegmentKind.RECEIVED] = {}
    return [Remove(directory / name, "replaced by what a peer sent") for name in replaced]


def finish_install(files: Files, directory: Path, install: Install) -> None:
    """Carry out an install that MANIFEST has decided on; may be repeated after a crash."""
    names, _ = sort_names(files, directory)
    received = names[SegmentKind.RECEIVED]
    for action in settle_install(directory, names, install):
        files.remove(action.path)
    for segment in install.segments:
        if segment.first_index in received:
            name = received[segment.first_index]
            files.rename(directory / name, directory / segment_name(segment.first_index))
    files.sync_directory(directory)


def _scan_unsealed(
    files: Files, paths: dict[int, Path], known: Known, actions: list[Action]
) -> list[UnsealedSegment]:
    """Scan the unsealed files in order; everything after their whole groups is to be cut."""
    segments: list[UnsealedSegment] = []
    firsts = list(paths)
    for number, (first, path) in enumerate(paths.items()):
        successor = firsts[number + 1] if number + 1 < len(firsts) else None
        file = files.open_read(path)
        size = file.size()
        header_bytes = file.read(HEADER_SIZE, 0)
        try:
            header = SegmentHeader.decode_identity(str(path), header_bytes)
        except CorruptFile:
            if size > HEADER_SIZE or successor is not None:
                raise
            actions.append(Remove(path, "created by a crash before its header was written"))
            continue
        if header.first_index != first:
            raise CorruptFile(str(path), f"the header says first index {header.first_index}")
        segment = UnsealedSegment(path, file, header)
        limits = [successor - 1] if successor is not None else []
        if known.cut_from_index is not None:
            limits.append(known.cut_from_index - 1)
        damage = scan_file(files, segment, size, min(limits, default=None))
        if successor is not None:
            if segment.last_index != successor - 1:
                why = "no file holds them" if damage is None else damage
                rule = f"entries {segment.last_index + 1} to {successor - 1} are damaged: {why}"
                raise CorruptFile(str(path), rule, segment.end)
        elif damage is not None:
            refuse_corruption(files, segment, size, damage, known)
        if size > segment.end:
            why = "an interrupted seal" if successor is not None else f"a torn write: {damage}"
            if damage is None and successor is None:
                why = "an interrupted cut"
            actions.append(Cut(path, segment.end, size, why))
        segments.append(segment)
    return segments


def _adopt(
    files: Files,
    path: Path,
    segments: list[UnsealedSegment],
    known: Known,
    actions: list[Action],
) -> None:
    """Adopt a successor that continues where the last file ends; remove any other."""
    last = segments[-1] if segments else None
    header = None
    if last is not None:
        follows = SegmentHeader(last.header.shard, 0, last.last_index + 1, last.last_proposal + 1)
        header = successor_header(files, path, follows)
    if last is None or header is None:
        actions.append(Remove(path, ORPHAN))
        return
    file = files.open_read(path)
    size = file.size()
    segment = UnsealedSegment(path, file, header)
    damage = scan_file(files, segment, size, None)
    if damage is not None:
        refuse_corruption(files, segment, size, damage, known)
        actions.append(Cut(path, segment.end, size, f"a torn write: {damage}"))
    adopted = Adopt(path, last.path)
    actions.append(adopted)
    segment.path = adopted.target
    segments.append(segment)


def successor_header(files: Files, path: Path, expected: SegmentHeader) -> SegmentHeader | None:
    """Return the header of a successor if it matches the expected one, else None."""
    try:
        header = SegmentHeader.decode_identity(
            str(path), files.open_read(path).read(HEADER_SIZE, 0)
        )
    except CorruptFile:
        return None
    is_next = path.name == successor_name(header.first_index) and (
        (header.shard, header.first_index, header.first_proposal)
        == (expected.shard, expected.first_index, expected.first_proposal)
    )
    return header if is_next else None


def scan_file(
    files: Files, segment: UnsealedSegment, size: int, last_index_max: int | None
) -> EntryError | None:
    """Add the file's whole groups to ``segment``; return the error that ended the scan early."""
    if size <= HEADER_SIZE:
        return None
    view = files.map(segment.path)
    while segment.end < size:
        if last_index_max is not None and segment.last_index >= last_index_max:
            return None
        try:
            group = check_group(
                view, segment.end, segment.last_index + 1, segment.last_timestamp_ns
            )
        except EntryError as error:
            # Without its traceback, which would keep the mapping of a file that is cut next.
            return error.with_traceback(None)
        if last_index_max is not None and group.last_index > last_index_max:
            raise CorruptFile(
                str(segment.path), f"a group crosses index {last_index_max}", segment.end
            )
        segment.add(group)
    return None


def refuse_corruption(
    files: Files, segment: UnsealedSegment, size: int, damage: EntryError, known: Known
) -> None:
    """Raise if the damage at the segment's end cannot be the tail of interrupted writes."""
    path = str(segment.path)
    if segment.last_index < known.durable_index:
        rule = (
            f"entries {segment.last_index + 1} to {known.durable_index} were durable "
            f"and are damaged: {damage}"
        )
        raise CorruptFile(path, rule, segment.end)
    beyond = segment.end + known.unsynced_bytes_max
    if beyond < size:
        intact = _find_entry(files.map(segment.path), beyond, segment.last_index + 1)
        if intact is not None:
            rule = f"damaged, with an intact entry at offset {intact} behind it: {damage}"
            raise CorruptFile(path, rule, segment.end)


def _find_entry(view: memoryview, start: int, index_min: int) -> int | None:
    """Return the offset of an intact entry at or after ``start``, of ``index_min`` or later."""
    index_max = index_min + len(view) // ENTRY_HEADER_SIZE
    budget = SEARCH_CHECKSUM_FACTOR * len(view)
    while start + ENTRY_HEADER_SIZE <= len(view):
        stop = min(start + SEARCH_SIZE, len(view) - ENTRY_HEADER_SIZE + 1)
        # One header per byte of the piece, as if an entry began at each.
        headers = np.ndarray((stop - start,), ENTRY_DTYPE, view, start, (1,))
        plausible = (headers["index"] >= index_min) & (headers["index"] <= index_max)
        plausible &= headers["flags"] <= FLAGS_KNOWN
        plausible &= headers["entry_type"] < OWNER_COUNT_MAX << 8
        plausible &= headers["payload_len"] <= PAYLOAD_SIZE_MAX
        for at in np.flatnonzero(plausible).tolist():
            offset = start + at
            index = int.from_bytes(view[offset + 16 : offset + 24], "little")
            budget -= ENTRY_HEADER_SIZE + int(headers["payload_len"][at])
            if budget < 0:
                return offset  # made to look like entries, so not a torn write
            try:
                check_entry(view, offset, index)
            except EntryError:
                continue
            return offset
        start = stop
    return None


def _check_range(directory: Path, segments: list[Segment], known: Known) -> None:
    """Refuse a log that lacks a file, at its start, inside or at its end."""
    if segments:
        lowest = segments[0].first_index
        expected = lowest if known.first_index is None else known.first_index
        # The start may be lower than recorded: a drop was recorded but not carried out yet.
        check_touching(directory, segments, min(lowest, expected))
    last_index = segments[-1].last_index if segments else (known.first_index or 1) - 1
    if last_index < known.durable_index:
        raise MissingSegment(str(directory), last_index + 1, known.durable_index)


# Opening


def open_log(
    files: Files,
    paths: ShardPaths,
    hard_state: HardStateFile,
    *,
    shard: int,
    config: LogConfig | None = None,
    allow_damaged: bool = False,
    allow_missing: bool = False,
    snapshots: tuple[SnapshotRecord, ...] = (),
    base: Base | None = None,
) -> tuple[Log, Survey]:
    """Recover a shard's log; also return the survey that was carried out.

    Interrupted cuts, drops and seals are finished, a torn tail is cut, a missing MANIFEST is made
    again; anything worse is a ``DataError`` and the directory is left as it was.

    ``allow_damaged`` and ``allow_missing``: damaged and missing sealed files are tolerated, see
    ``survey``. ``snapshots`` and ``base`` are what a new MANIFEST has of them.
    """
    config = config or LogConfig()
    manifest, known = read_known(files, paths, hard_state, config)
    if manifest is None:
        known = replace(known, base=base)
    found = survey(
        files, paths.segments, known, allow_damaged=allow_damaged, allow_missing=allow_missing
    )
    for segment in found.segments:
        if segment.header.shard != shard:
            theirs = f"shard {segment.header.shard}"
            raise ForeignShard(str(segment.path), theirs, f"shard {shard}")
    carry_out(files, paths.segments, found.actions)
    parts = tuple(_open_for_append(files, paths.segments, shard, found.segments, known))
    segments = SegmentSet(parts, ApplyNotes())
    log = Log(
        files,
        paths,
        hard_state,
        config,
        segments,
        # Sealed entries were applied, hence committed, whatever an older record says.
        commit_index=max(segments.sealed_index, min(known.commit_index, segments.last_index)),
        generation=known.generation,
        snapshots=manifest.snapshots if manifest else snapshots,
        cold=manifest.cold if manifest else (),
        base=known.base,
        identity=manifest.identity if manifest else None,
    )
    log.checkpoint()
    return log, found


def read_known(
    files: Files, paths: ShardPaths, hard_state: HardStateFile, config: LogConfig
) -> tuple[Manifest | None, Known]:
    """Return MANIFEST, after finishing an install that it decided on, and what is known with it."""
    manifest = load_manifest(files, paths.manifest)
    if manifest is not None and manifest.install is not None:
        finish_install(files, paths.segments, manifest.install)
        manifest = replace(manifest, install=None)
    return manifest, combine_known(manifest, hard_state.hint, config.unsynced_bytes_max)


def open_hard_state(files: Files, paths: ShardPaths) -> HardStateFile:
    """Open a shard's RAFT file.

    This comes before anything else is opened, so it is where the directory of another shard, node
    or cluster is refused: its vote is another's.
    """
    manifest = load_manifest(files, paths.manifest, durable=False)
    theirs, ours = manifest.identity if manifest else None, paths.identity
    if theirs is not None and ours is not None and theirs != ours:
        raise ForeignShard(str(paths.root), str(theirs), str(ours))
    return HardStateFile.open(files, paths.hard_state)


def combine_known(manifest: Manifest | None, hint: Hint | None, unsynced_bytes_max: int) -> Known:
    """Combine what MANIFEST and the hint record about a log."""
    if manifest is None:
        durable_index, generation = (hint.durable_index, hint.generation) if hint else (0, 0)
        commit_index = hint.commit_index if hint else 0
        return Known(
            None, 1, durable_index, generation, None, unsynced_bytes_max, commit_index=commit_index
        )
    checkpoint = manifest.checkpoint
    durable_index = checkpoint.durable_index
    # A hint from before the last cut is about entries that are gone.
    if hint is not None and hint.generation == checkpoint.generation:
        durable_index = max(durable_index, hint.durable_index)
    return Known(
        checkpoint.first_index,
        checkpoint.first_proposal,
        durable_index,
        checkpoint.generation,
        manifest.cut_from_index,
        unsynced_bytes_max,
        manifest.install,
        manifest.base,
        max(checkpoint.commit_index, hint.commit_index if hint is not None else 0),
    )


def _open_for_append(
    files: Files, directory: Path, shard: int, segments: list[Segment], known: Known
) -> Iterator[Segment]:
    """Yield the surveyed segments, unsealed ones writable and durable, with an active one last.

    A killed process leaves written bytes and names in the page cache. They look complete and would
    be lost with the power, so they are synced before anything is reported as durable.
    """
    for segment in segments:
        if isinstance(segment, UnsealedSegment):
            segment.file = files.open(segment.path)
            segment.file.sync()
        yield segment
    files.sync_directory(directory)
    last = segments[-1] if segments else None
    if last is None:
        header = SegmentHeader(shard, 1, known.first_index or 1, known.first_proposal)
        yield UnsealedSegment.create(files, directory, header)
    elif known.base is not None and last.last_index == known.base.index:
        base, segment_id = known.base, last.header.segment_id + 1
        if not isinstance(last, UnsealedSegment):
            header = SegmentHeader(shard, segment_id, base.index + 1, base.proposal + 1)
            yield UnsealedSegment.create(files, directory, header)
    elif isinstance(last, DamagedSegment):
        last.refuse()
    elif not isinstance(last, UnsealedSegment):
        if last.is_compacted:  # only old segments are compacted, so others followed it
            raise MissingSegment(str(directory), last.last_index + 1, last.last_index + 1)
        first_proposal = last.first_proposal + last.proposal_count()
        header = SegmentHeader(shard, last.segment_id + 1, last.last_index + 1, first_proposal)
        yield UnsealedSegment.create(files, directory, header)
