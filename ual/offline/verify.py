"""Verification of a whole data directory: every file, every checksum, every promise.

It only reads, takes no lock and continues past damage: the result is a list of findings, empty for
an undamaged directory. If a shard changed while it was read, it is read once more; what a running
server has written in part at that moment may still be reported as a tail.

A ``Finding`` is one fact about one file. Its level says who has to act:

* ``error``: data or a promise is damaged; the log will not open, or must not be trusted.
* ``tail``: what an interrupted write leaves; opening the log cuts or rewrites it by itself.
* ``leftover``: a file of an interrupted job; opening the log, or the next such job, removes it.
* ``foreign``: a name that is not onelog's; it is left alone.
* ``note``: worth knowing, nothing to do.

``reason`` is stable and meant for programs; ``message`` and ``advice`` are for people. ``remedy``
is what ``onelog log repair`` can do without a guess; an error without one cannot be repaired here.

One damaged file never hides another. ``ShardCheck`` judges each file by itself, then checks that
neighbours touch (``check_chain``), then that the whole chain holds what MANIFEST and the hint in
RAFT promise. If a file cannot be read, checks that depend on its content are skipped: one damaged
file is one finding, not five. Unsealed files (``check_unsealed``) follow the rules of recovery
(ual/recovery.py), so a tail here is what opening would cut; but where recovery would raise,
verification reports and continues.

Some remedies are safe only in company, and ``_withhold_remedies`` removes the others: nothing is
cut from a log that lacks a file, nothing that a newer onelog wrote is touched, no snapshot leaves
MANIFEST without which the state could not be rebuilt, and a directory that was copied from another
shard, node or cluster is left as it is.

What snapshots hold is known to another package, which registers its checks: a verifier for each
kind of file in snaps/, and ``FindSnapshots``, by which a lost MANIFEST is made again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType

from onelog.ual.directory import (
    NODE_NAME,
    SYSTEM_NAME,
    Node,
    ShardIdentity,
    ShardPaths,
    System,
    read_node,
    read_system,
    shard_paths,
)
from onelog.ual.entry import GROUP_SIZE_MAX
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.hard_state import (
    FILE_SIZE,
    HINT_OFFSET,
    HardStateReport,
    Hint,
    inspect_hard_state,
)
from onelog.ual.manifest import Base, Manifest, SnapshotRecord
from onelog.ual.manifest import load as load_manifest
from onelog.ual.offline.reader import Progress, ReadOnlyFiles, Root, list_root
from onelog.ual.offline.rebuild import rebuild_sealed
from onelog.ual.recovery import (
    ORPHAN,
    Adopt,
    Cut,
    Known,
    Remove,
    combine_known,
    finish_deletions,
    refuse_corruption,
    scan_file,
    sort_names,
    successor_header,
)
from onelog.ual.segments.check import Part, check_sealed, identity_problems
from onelog.ual.segments.format import (
    HEADER_SIZE,
    SUMMARY_OFFSET,
    SUMMARY_SIZE,
    SegmentHeader,
    SegmentKind,
)
from onelog.ual.segments.unsealed import UnsealedSegment

ADVICE_PEER = "restore the file from a backup, or rebuild this replica from a peer"
ADVICE_REPAIR = "run onelog log repair"
ADVICE_OPENING = "nothing to do: opening the log puts it right, and so does onelog log repair"
ADVICE_LEAVE = "nothing to do; move it away if it is not meant to be here"
ADVICE_UPGRADE = "use the onelog that wrote it, or a newer one"
ADVICE_DISK = "check the disk and the permissions, then verify again"


class Level(Enum):
    """Who has to act; see the module."""

    ERROR = "error"
    TAIL = "tail"
    LEFTOVER = "leftover"
    FOREIGN = "foreign"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class RebuildTables:
    """Write a sealed segment again from its intact entries, streams and voids."""

    path: Path
    shard: int


@dataclass(frozen=True, slots=True)
class RewriteHardState:
    """Write a RAFT file's bad slot from the good one, and blank a bad hint."""

    path: Path


@dataclass(frozen=True, slots=True)
class FoundSnapshot:
    """A snapshot that was read completely: its entry in MANIFEST, and a base that follows it."""

    record: SnapshotRecord
    base: Base


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rename a damaged snapshot and take it out of MANIFEST, if it is there."""

    path: Path
    manifest: Path


@dataclass(frozen=True, slots=True)
class RebuildManifest:
    """Make a shard's MANIFEST again from its segments, the hint in RAFT and its snapshots."""

    path: Path
    shard: int
    identity: ShardIdentity | None = None
    snapshots: tuple[SnapshotRecord, ...] = ()
    base: Base | None = None


Remedy = Cut | Remove | Adopt | SetAside | RebuildTables | RewriteHardState | RebuildManifest


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about one file."""

    level: Level
    path: Path
    offset: int | None
    reason: str
    message: str
    advice: str
    remedy: Remedy | None = None


# Chain check

_RANGE_ADVICE = "restore the missing files from a backup, or rebuild this replica from a peer"
_ORDER_ADVICE = "find out who added or renamed the file; keep the right one and move the other away"


@dataclass(frozen=True, slots=True)
class Link:
    """A segment file in the chain; ``part`` is None if its content is unknown."""

    first_index: int
    path: Path
    is_sealed: bool
    part: Part | None


def check_chain(directory: Path, links: Sequence[Link], known: Known) -> Iterator[Finding]:
    """Yield what is wrong between the files, which are in order of their first index."""
    expected = known.first_index
    if links:
        lowest = links[0].first_index
        # Lower than recorded is fine: a drop was recorded and is not carried out yet.
        expected = lowest if expected is None else min(lowest, expected)
    for link in links:
        if expected is not None and link.first_index > expected:
            yield _missing(directory, "MISSING_RANGE", expected, link.first_index - 1)
        elif expected is not None and link.first_index < expected:
            rule = f"starts at {link.first_index}, but the file before ends at {expected - 1}"
            yield Finding(Level.ERROR, link.path, None, "OVERLAP", rule, _ORDER_ADVICE)
        expected = None if link.part is None else link.part.last_index + 1
    if not links:
        expected = known.first_index or 1
    if expected is not None and expected <= known.durable_index:
        yield _missing(directory, "MISSING_END", expected, known.durable_index)
    for before, after in pairwise(links):
        if after.is_sealed and not before.is_sealed:
            rule = "a sealed file behind an unsealed one: files are sealed in order"
            yield Finding(Level.ERROR, after.path, None, "OVERLAP", rule, _ORDER_ADVICE)
        if before.part is not None and after.part is not None:
            yield from _compare(before.part, after.part)
    first = links[0].part if links else None
    if first is None or first.first_index != known.first_index:
        return
    if first.first_proposal != known.first_proposal:
        rule = f"first proposal {first.first_proposal}, MANIFEST says {known.first_proposal}"
        yield Finding(Level.ERROR, first.path, 0, "WRONG_PROPOSAL", rule, ADVICE_PEER)


def _missing(directory: Path, reason: str, first_index: int, last_index: int) -> Finding:
    message = f"no file holds entries {first_index} to {last_index}"
    return Finding(Level.ERROR, directory, None, reason, message, _RANGE_ADVICE)


def _compare(before: Part, after: Part) -> Iterator[Finding]:
    """Compare two neighbours that touch."""
    if before.last_index + 1 != after.first_index:
        return
    if before.proposal_count is not None:
        proposal = before.first_proposal + before.proposal_count
        if after.first_proposal != proposal:
            rule = f"first proposal {after.first_proposal} where {proposal} belongs"
            yield Finding(Level.ERROR, after.path, 0, "WRONG_PROPOSAL", rule, ADVICE_PEER)
    for name, earlier, later in (
        ("term", before.terms, after.terms),
        ("timestamp", before.timestamps_ns, after.timestamps_ns),
    ):
        if earlier is not None and later is not None and later[0] < earlier[1]:
            rule = f"starts with {name} {later[0]}, the file before ends with {earlier[1]}"
            yield Finding(Level.ERROR, after.path, None, "WRONG_ORDER", rule, ADVICE_PEER)


# Unsealed check


def check_unsealed(
    files: Files, path: Path, successor: int | None, known: Known, shard: int
) -> tuple[Part | None, list[Finding]]:
    """Check an unsealed file; ``successor`` is the first index of the next unsealed file.

    Without a ``Part``, the content of the file is unknown.
    """
    file = files.open_read(path)
    size = file.size()
    header_data = file.read(HEADER_SIZE, 0)
    try:
        header = SegmentHeader.decode_identity(str(path), header_data)
    except UnknownVersion as error:
        message = f"format version {error.version}"
        return None, [_unsealed_check_error(path, 0, error.reason, message, ADVICE_UPGRADE)]
    except CorruptFile as error:
        if size > HEADER_SIZE or successor is not None:
            return None, [_unsealed_check_error(path, error.offset, "HEADER_DAMAGED", error.rule)]
        remedy = Remove(path, "created by a crash before its header was written")
        leftover = Finding(Level.LEFTOVER, path, 0, "NO_HEADER", remedy.why, ADVICE_OPENING, remedy)
        return None, [leftover]
    misplaced = identity_problems(path, header, shard)
    if misplaced:
        return None, [
            _unsealed_check_error(path, item.offset, item.reason, item.rule) for item in misplaced
        ]
    segment = UnsealedSegment(path, file, header)
    try:
        tail = _scan_entries(files, segment, size, successor, known)
    except CorruptFile as error:
        return None, [_unsealed_check_error(path, error.offset, "ENTRY_DAMAGED", error.rule)]
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
    """Read the file's groups; return a finding for bytes after them, raise for corruption."""
    path = segment.path
    limits = [] if successor is None else [successor - 1]
    if known.cut_from_index is not None:
        limits.append(known.cut_from_index - 1)
    damage = scan_file(files, segment, size, min(limits, default=None))
    if successor is not None and damage is None and size <= segment.end:
        return None  # whole as far as it goes; check_chain finds a missing file after it
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
    return Finding(Level.TAIL, path, segment.end, reason, message, ADVICE_OPENING, remedy)


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


def _unsealed_check_error(
    path: Path, offset: int | None, reason: str, message: str, advice: str = ADVICE_PEER
) -> Finding:
    return Finding(Level.ERROR, path, offset, reason, message, advice)


# Shard check

# Verifies a file of another package; registered by the end of the name.
FileVerifier = Callable[[Files, Path], list[Finding]]
# Returns the whole snapshots of a shard in a directory, ascending by index.
FindSnapshots = Callable[[Files, Path, int], Sequence[FoundSnapshot]]

_KNOWN_NAMES = frozenset(("MANIFEST", "RAFT", "cold.fcold", "segs", "snaps", "spill.lmdb"))
_LEFTOVER_NAMES = frozenset(("MANIFEST.tmp", "RAFT.tmp"))
# What follows from the rest of a sealed file. Entries, streams and voids do not.
_DERIVED = frozenset(("HEADER_DAMAGED", "FOOTER_DAMAGED", "TABLE_DAMAGED", "FILE_CHECKSUM"))
_CHAIN_BROKEN = frozenset(("MISSING_RANGE", "MISSING_END", "OVERLAP"))
_FOREIGN_SHARD = frozenset(("FOREIGN_SHARD", "WRONG_SHARD"))

_VOTE_ADVICE = (
    "it could vote twice in one term: remove this node from the cluster and add it as a new one "
    "with an empty directory"
)
_FOREIGN_ADVICE = (
    "it was copied or moved here: put the directory back that belongs here, or remove this node "
    "from the cluster and add it as a new one with an empty directory"
)
_ONLY_SNAPSHOT_ADVICE = (
    "without it nothing leads to the state: restore it from a backup, or rebuild this replica from "
    "a peer"
)
_NOTES_ADVICE = (
    "streams and voids follow only from a replay: rebuild this replica from a peer, or restore the "
    "file from a backup"
)


@dataclass(slots=True)
class ShardCheck:
    """The check of one shard, with its findings so far."""

    files: Files
    paths: ShardPaths
    shard: int
    unsynced_bytes_max: int
    verifiers: Mapping[str, FileVerifier]
    find_snapshots: FindSnapshots
    identity: ShardIdentity | None  # None: SYSTEM or NODE cannot be read
    is_used: bool  # by the worker whose directory this is, as far as SYSTEM says
    findings: list[Finding] = field(default_factory=list)
    has_changed: bool = False  # a listed file was gone: a process is using the directory
    _manifest: Manifest | None = None
    _found: Sequence[FoundSnapshot] | None = None
    _hard_state: HardStateReport | None = None
    _links: list[Link] = field(default_factory=list)

    def run(self) -> None:
        """Check everything, once."""
        for directory in (self.paths.root, self.paths.segments, self.paths.snapshots):
            if not self.files.exists(directory):
                advice = "mount its volume or restore it from a backup, or rebuild this replica"
                self._add_error(directory, "SHARD_MISSING", "the directory is missing", advice)
                return
        for check in (
            self._check_names,
            self._check_hard_state,
            self._check_manifest,
            self._check_segments,
            self._check_manifest_is_there,
            self._check_snapshots,
        ):
            try:
                check()
            except OSError as error:  # a directory; files are caught one by one
                path = Path(error.filename) if error.filename else self.paths.root
                self._add_unreadable(path, error)
        self._withhold_remedies()

    # Small files

    def _check_names(self) -> None:
        for name in self.files.list(self.paths.root):
            path = self.paths.root / name
            if name in _LEFTOVER_NAMES:
                self._add_leftover(Remove(path, "left by an interrupted write"))
            elif name not in _KNOWN_NAMES:
                self._add(Level.FOREIGN, path, "FOREIGN", "not onelog's", ADVICE_LEAVE)

    def _check_manifest(self) -> None:
        path = self.paths.manifest
        try:
            self._manifest = load_manifest(self.files, path, durable=False)
            theirs = self._manifest.identity if self._manifest else None
            if theirs is not None and not self._is_ours(theirs):
                ours = self.identity or f"shard {self.shard}"
                message = f"the directory is of {theirs}, but this is {ours}"
                self._add_error(path, "FOREIGN_SHARD", message, _FOREIGN_ADVICE)
        except UnknownVersion as error:
            self._add_error(path, error.reason, str(error), ADVICE_UPGRADE)
        except CorruptFile as error:
            remedy = RebuildManifest(path, self.shard)
            self._add_error(
                path, "MANIFEST_DAMAGED", error.rule, ADVICE_REPAIR, error.offset, remedy
            )
        except OSError as error:
            self._add_unreadable(path, error)

    def _is_ours(self, theirs: ShardIdentity) -> bool:
        return theirs == self.identity if self.identity else theirs.shard == self.shard

    def _check_manifest_is_there(self) -> None:
        path = self.paths.manifest
        if self.files.exists(path) or not self._links:
            return
        # The first opening makes a segment, then MANIFEST: no crash leaves entries without one.
        parts = [link.part for link in self._links]
        has_entries = any(part is None or part.last_index >= part.first_index for part in parts)
        level = Level.ERROR if has_entries else Level.TAIL
        advice = ADVICE_REPAIR if has_entries else ADVICE_OPENING
        remedy = RebuildManifest(path, self.shard)
        self._add(level, path, "MANIFEST_MISSING", "missing beside segments", advice, None, remedy)

    def _check_hard_state(self) -> None:
        path = self.paths.hard_state
        if not self.files.exists(path):
            if self.is_used or self.files.list(self.paths.segments):
                self._add_error(path, "RAFT_LOST", "missing", _VOTE_ADVICE)
            return
        try:
            data = self._read_hard_state(path)
        except OSError as error:
            self._add_unreadable(path, error)
            return
        report = self._hard_state = inspect_hard_state(data)
        if report.hint.problem is not None:
            message = f"the hint is not readable: {report.hint.problem}"
            advice = "nothing to do: the next sync writes it again"
            self._add(Level.NOTE, path, "RAFT_HINT", message, advice, HINT_OFFSET)
        problems = [item for item in report.problems if not item.startswith("slot 2")]
        message = "; ".join(problems)
        states = {slot.state for slot in report.slots if slot.state is not None}
        sequences = {state.sequence for state in states}
        remedy = RewriteHardState(path)
        if any(slot.version_newer is not None for slot in report.slots):
            self._add_error(path, "UNKNOWN_VERSION", message, ADVICE_UPGRADE)
        elif not states or len(sequences) < len(states):
            self._add_error(path, "RAFT_LOST", f"no slot to trust: {message}", _VOTE_ADVICE)
        elif len(data) > FILE_SIZE:
            self._add_error(path, "RAFT_SLOT", message, ADVICE_REPAIR, None, remedy)
        elif problems:
            advice = ADVICE_OPENING
            self._add(Level.TAIL, path, "RAFT_SLOT", message, advice, None, remedy)

    def _read_hard_state(self, path: Path) -> bytes:
        """Read the file; once more if it looks damaged, which a write in progress can cause."""
        data = self.files.open_read(path).read(2 * FILE_SIZE, 0)
        if inspect_hard_state(data).problems:
            data = self.files.open_read(path).read(2 * FILE_SIZE, 0)
        return data

    # Segments

    def _check_segments(self) -> None:
        directory = self.paths.segments
        known = combine_known(self._manifest, self._hint, self.unsynced_bytes_max)
        if self._manifest is None and (found := self._whole_snapshots):
            # A snapshot is made of durable entries.
            durable_index = max(known.durable_index, found[-1].record.index)
            known = replace(known, durable_index=durable_index)
        names, listing = sort_names(self.files, directory)
        for name in listing.foreign:
            path = directory / name
            self._add(Level.FOREIGN, path, "FOREIGN", "not a segment's name", ADVICE_LEAVE)
        gone: set[str] = set()
        for action in finish_deletions(directory, names, known):
            gone.add(action.path.name)
            self._add_leftover(action)
        sealed, unsealed = (
            {first: directory / name for first, name in names[kind].items() if name not in gone}
            for kind in (SegmentKind.SEALED, SegmentKind.UNSEALED)
        )
        for first, path in sealed.items():
            self._links.append(Link(first, path, True, self._check_sealed(path)))
        behind = dict(zip(unsealed, [*unsealed, None][1:], strict=True))
        for first, path in unsealed.items():
            self._check_unsealed(first, path, behind[first], known)
        for first, name in names[SegmentKind.SUCCESSOR].items():
            if name not in gone:
                self._check_successor(first, directory / name, known)
        self._links.sort(key=lambda link: link.first_index)
        self.findings += check_chain(directory, self._links, known)
        self._check_commit_index()

    def _check_unsealed(self, first: int, path: Path, behind: int | None, known: Known) -> None:
        try:
            part, findings = check_unsealed(self.files, path, behind, known, self.shard)
        except OSError as error:
            self._add_unreadable(path, error)
            part, findings = None, []
        self.findings += findings
        if not any(isinstance(finding.remedy, Remove) for finding in findings):
            self._links.append(Link(first, path, False, part))

    def _check_successor(self, first: int, path: Path, known: Known) -> None:
        """Check the next file of a log that was interrupted during the change to that file."""
        last = self._links[-1] if self._links else None
        if last is None or last.part is None or last.is_sealed:
            self._add_leftover(Remove(path, ORPHAN))
            return
        proposal = last.part.first_proposal + (last.part.proposal_count or 0)
        expected = SegmentHeader(self.shard, 0, last.part.last_index + 1, proposal)
        try:
            header = successor_header(self.files, path, expected)
        except OSError as error:
            self._add_unreadable(path, error)
            return
        if header is None:
            self._add_leftover(Remove(path, ORPHAN))
            return
        self._check_unsealed(first, path, None, known)
        message = "the next file, begun before the one before it was synced"
        remedy = Adopt(path, last.path)
        self._add(Level.TAIL, path, "UNFINISHED_ROLL", message, ADVICE_OPENING, None, remedy)

    def _check_sealed(self, path: Path) -> Part | None:
        try:
            data = self.files.map(path)
        except OSError as error:
            self._add_unreadable(path, error)
            return None
        part, problems = check_sealed(path, data, self.shard)
        reasons = {problem.reason for problem in problems}
        remedy = None
        if problems and reasons <= _DERIVED and rebuild_sealed(path, data, self.shard):
            remedy = RebuildTables(path, self.shard)
        for problem in problems:
            advice = ADVICE_REPAIR if remedy else ADVICE_PEER
            if problem.reason == "NOTES_DAMAGED":
                advice = _NOTES_ADVICE
            elif problem.reason == "UNKNOWN_VERSION":
                advice = ADVICE_UPGRADE
            self._add_error(path, problem.reason, problem.rule, advice, problem.offset, remedy)
        return part

    def _check_commit_index(self) -> None:
        last = self._links[-1].part if self._links else None
        recorded = max(
            self._hint.commit_index if self._hint else 0,
            self._manifest.checkpoint.commit_index if self._manifest else 0,
        )
        if last is not None and recorded > last.last_index:
            message = f"commit index {recorded} is recorded, the log ends at {last.last_index}"
            advice = "nothing to do: this replica gets the entries from its peers"
            self._add(Level.NOTE, last.path, "COMMIT_BEYOND_END", message, advice)

    @property
    def _whole_snapshots(self) -> Sequence[FoundSnapshot]:
        """The snapshots that MANIFEST could list; finding them loads each one, once."""
        if self._found is None:
            self._found = self.find_snapshots(self.files, self.paths.snapshots, self.shard)
        return self._found

    def _check_snapshots(self) -> None:
        """Hand each file to the verifier of its kind; kinds without one are left alone."""
        self._verify_snapshots()
        if not self.verifiers or self._manifest is None:
            return
        listed = [self.paths.snapshots / each.file for each in self._manifest.snapshots]
        for path in listed:
            if not self.files.exists(path):
                message, remedy = (
                    "MANIFEST lists it, and it is missing",
                    SetAside(path, self.paths.manifest),
                )
                self._add_error(path, "SNAPSHOT_MISSING", message, ADVICE_REPAIR, None, remedy)
        is_reported = any(each.path.parent == self.paths.snapshots for each in self._errors())
        if self._first_index > 1 and not is_reported and not self._is_start_covered:
            message = f"the log begins at {self._first_index}, and no snapshot has the state before"
            self._add_error(self.paths.manifest, "NO_SNAPSHOT", message, ADVICE_PEER)

    def _verify_snapshots(self) -> None:
        for name in self.files.list(self.paths.snapshots):
            verifier = self.verifiers.get(Path(name).suffix)
            if verifier is None:
                continue
            path = self.paths.snapshots / name
            try:
                self.findings += verifier(self.files, path)
            except OSError as error:
                self._add_unreadable(path, error)

    # Findings

    @property
    def _hint(self) -> Hint | None:
        return self._hard_state.hint.hint if self._hard_state else None

    def _errors(self) -> Iterator[Finding]:
        return (each for each in self.findings if each.level is Level.ERROR)

    @property
    def _first_index(self) -> int:
        return self._links[0].first_index if self._links else 1

    @property
    def _is_whole(self) -> bool:
        """Whether a replay from index 1 needs no snapshot."""
        parts = [link.part for link in self._links]
        is_readable = all(each and each.proposal_count is not None for each in parts)
        return self._first_index == 1 and is_readable

    @property
    def _is_start_covered(self) -> bool:
        """Whether an undamaged snapshot has the state before the log begins."""
        if self._manifest is None or not self._manifest.snapshots:
            usable = [each.record for each in self._whole_snapshots]
        else:
            bad = {each.path.name for each in self._errors()}
            usable = [each for each in self._manifest.snapshots if each.file not in bad]
        return any(each.index >= self._first_index - 1 for each in usable)

    def _fill_rebuild(self, remedy: RebuildManifest) -> RebuildManifest:
        """Say what the new MANIFEST lists: the snapshots from which the log continues."""
        if not self._links or self._links[-1].part is None:
            return remedy
        before_index, last_index = self._first_index - 1, self._links[-1].part.last_index
        found = [
            each
            for each in self._whole_snapshots
            if before_index <= each.record.index <= last_index
        ]
        before = [each.base for each in found if each.base.index == before_index]
        return replace(
            remedy,
            identity=self.identity,
            snapshots=tuple(each.record for each in found),
            base=before[0] if before else None,
        )

    def _withhold_remedies(self) -> None:
        """Remove remedies that are unsafe in view of the other findings."""
        for number, finding in enumerate(self.findings):
            if isinstance(finding.remedy, RebuildManifest):
                filled = self._fill_rebuild(finding.remedy)
                self.findings[number] = replace(finding, remedy=filled)
        reasons = {finding.reason for finding in self.findings}
        for number, finding in enumerate(self.findings):
            instead = self._advice_instead(finding, reasons)
            if instead is not None:
                self.findings[number] = replace(finding, remedy=None, advice=instead)

    def _advice_instead(self, finding: Finding, reasons: set[str]) -> str | None:
        """Return the advice that replaces an unsafe remedy; None if the remedy is safe."""
        if finding.remedy is None:
            return None
        if "UNKNOWN_VERSION" in reasons:
            return "a newer onelog wrote to this shard: use that one"
        if reasons & _FOREIGN_SHARD:
            return "the directory holds another shard, or that of another node or cluster"
        if isinstance(finding.remedy, SetAside) and not (self._is_whole or self._is_start_covered):
            return _ONLY_SNAPSHOT_ADVICE
        # Without a record of what was durable, a damaged end may be anything.
        end_is_unknown = self._manifest is None and self._hint is None and "TORN_TAIL" in reasons
        if finding.reason == "TORN_TAIL" and end_is_unknown:
            return f"nothing tells whether it was durable; {ADVICE_PEER}"
        # A missing or misplaced file can make sound data look like a tail or a leftover.
        is_tidying = isinstance(finding.remedy, Cut | Remove | Adopt)
        if is_tidying and finding.path.parent == self.paths.segments and reasons & _CHAIN_BROKEN:
            return "left as it is until the files of the log touch again"
        if isinstance(finding.remedy, RebuildManifest):
            if end_is_unknown or any(self._blocking(finding)):
                return "it is made from the segments and RAFT, which must be in order first"
            is_unread = self.find_snapshots is find_none
            if self.files.exists(self.paths.cold_list) or (
                is_unread and self.files.list(self.paths.snapshots)
            ):
                return "it lists snapshots and cold data, and must be restored from a backup"
            if self._first_index > 1 and not self._is_start_covered:
                return "no snapshot has the state before the log begins: " + ADVICE_PEER
        return None

    def _blocking(self, finding: Finding) -> Iterator[Finding]:
        """Yield the errors that keep the log from opening even with a new MANIFEST."""
        for other in self.findings:
            if other is not finding and other.level is Level.ERROR and other.remedy is None:
                yield other
        if not self._links or self._hard_state is None:
            yield finding

    def _add(
        self,
        level: Level,
        path: Path,
        reason: str,
        message: str,
        advice: str,
        offset: int | None = None,
        remedy: Remedy | None = None,
    ) -> None:
        self.findings.append(Finding(level, path, offset, reason, message, advice, remedy))

    def _add_error(
        self,
        path: Path,
        reason: str,
        message: str,
        advice: str,
        offset: int | None = None,
        remedy: Remedy | None = None,
    ) -> None:
        self._add(Level.ERROR, path, reason, message, advice, offset, remedy)

    def _add_leftover(self, action: Remove | Cut) -> None:
        advice = ADVICE_OPENING
        self._add(Level.LEFTOVER, action.path, "LEFTOVER", action.why, advice, None, action)

    def _add_unreadable(self, path: Path, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self.has_changed = True
        message = error.strerror or str(error)
        self._add(Level.ERROR, path, "READ_FAILED", message, ADVICE_DISK)


# Verification

NO_VERIFIERS: Mapping[str, FileVerifier] = MappingProxyType({})


def find_none(_files: Files, _directory: Path, _shard: int) -> Sequence[FoundSnapshot]:
    """Find no snapshots: without the package that reads them."""
    return ()


@dataclass(slots=True)
class _Meter:
    """Counts the bytes read and reports progress."""

    progress: Progress | None
    total_bytes: int = 0
    done_bytes: int = 0

    def advance(self, size: int, path: Path) -> None:
        # A file that grows, or is read twice, must not bring the count above the total.
        self.done_bytes = min(self.done_bytes + size, self.total_bytes)
        if self.progress is not None:
            self.progress(self.done_bytes, self.total_bytes, path)


def verify(
    files: Files,
    data_dir: Path,
    progress: Progress | None = None,
    *,
    shard: int | None = None,
    unsynced_bytes_max: int = GROUP_SIZE_MAX,
    verifiers: Mapping[str, FileVerifier] = NO_VERIFIERS,
    find_snapshots: FindSnapshots = find_none,
) -> list[Finding]:
    """Check a data directory, or one shard of it, and return the findings.

    ``unsynced_bytes_max`` is the limit that the log was written with. ``verifiers`` check file
    types of other packages in snaps/, by the end of the name (".fsnap"); ``find_snapshots`` finds
    those that a MANIFEST could list.
    """
    meter = _Meter(progress)
    reader = ReadOnlyFiles(files, meter.advance)
    root = list_root(reader, data_dir)
    findings, system, node = _check_root(reader, root)
    chosen = root.choose(shard, None if system is None else system.topology.shards)
    meter.total_bytes = sum(_size_of_segments(reader, shard_paths(data_dir, at)) for at in chosen)
    for number in chosen:
        identity = None
        if system is not None and node is not None:
            identity = ShardIdentity(system.cluster_id, node.node_id, number)
        is_used = system is not None and system.uses(number)
        findings += _check_shard(
            lambda number=number, identity=identity, is_used=is_used: ShardCheck(  # type: ignore[misc]
                reader,
                shard_paths(data_dir, number),
                number,
                unsynced_bytes_max,
                verifiers,
                find_snapshots,
                identity,
                is_used,
            )
        )
    meter.advance(meter.total_bytes, data_dir)
    if any(at.reason == "UNKNOWN_VERSION" and at.path.parent == data_dir for at in findings):
        # SYSTEM or NODE of a newer onelog: this one cannot judge the rest.
        findings = [replace(at, remedy=None, advice=ADVICE_UPGRADE) for at in findings]
    return findings


def _check_shard(make: Callable[[], ShardCheck]) -> list[Finding]:
    check = make()
    before = _manifest_bytes(check.files, check.paths)
    check.run()
    now = _manifest_bytes(check.files, check.paths)
    if check.findings and (check.has_changed or now != before):
        check = make()
        check.run()
    return check.findings


def _manifest_bytes(files: Files, paths: ShardPaths) -> bytes | None:
    """Read MANIFEST to see later whether it changed; drops and cuts begin there."""
    try:
        file = files.open_read(paths.manifest)
        return file.read(file.size(), 0)
    except OSError:
        return None


def _check_root(files: Files, root: Root) -> tuple[list[Finding], System | None, Node | None]:
    """Check what belongs to no shard; also return SYSTEM and NODE, if they can be read."""
    findings: list[Finding] = []
    system: System | None = None
    node: Node | None = None
    for name in (SYSTEM_NAME, NODE_NAME):
        path = root.path / name
        try:
            if name == SYSTEM_NAME:
                system = read_system(files, root.path)
            else:
                node = read_node(files, root.path)
        except UnknownVersion as error:
            findings.append(_error(path, None, error.reason, str(error), ADVICE_UPGRADE))
        except CorruptFile as error:
            rule, _, advice = error.rule.rpartition("; ")
            reason = "SYSTEM_DAMAGED" if name == SYSTEM_NAME else "NODE_DAMAGED"
            findings.append(
                _error(path, error.offset, reason, rule or error.rule, advice or ADVICE_PEER)
            )
        except OSError as error:
            message = error.strerror or str(error)
            findings.append(_error(path, None, "READ_FAILED", message, ADVICE_DISK))
    for name in root.leftovers:
        remedy = Remove(root.path / name, "left by an interrupted write")
        advice = ADVICE_REPAIR
        findings.append(
            Finding(Level.LEFTOVER, remedy.path, None, "LEFTOVER", remedy.why, advice, remedy)
        )
    shards = None if system is None else system.topology.shards
    strays = [f"{shard:05d}" for shard in root.shards if shards is not None and shard >= shards]
    for name in (*root.foreign, *strays):
        path = root.path / name
        message = "not onelog's" if name in root.foreign else f"not in SYSTEM, shards: {shards}"
        findings.append(Finding(Level.FOREIGN, path, None, "FOREIGN", message, ADVICE_LEAVE))
    return findings, system, node


def _error(path: Path, offset: int | None, reason: str, message: str, advice: str) -> Finding:
    return Finding(Level.ERROR, path, offset, reason, message, advice)


def _size_of_segments(files: Files, paths: ShardPaths) -> int:
    """Return the number of bytes to read; an unreadable file counts as none."""
    total = 0
    try:
        names = files.list(paths.segments)
    except OSError:
        return 0
    for name in names:
        try:
            total += files.open_read(paths.segments / name).size()
        except OSError:
            continue
    return total
