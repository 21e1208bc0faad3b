"""All files of one shard, checked one by one and against each other.

One damaged file never hides another: each is judged by itself, then the neighbours must touch, and
then all of it must hold what MANIFEST and the hint in RAFT promise. The rules for unsealed files
are those of recovery (ual/recovery.py), so what is called a tail here is what opening would cut.

A remedy is attached where repair can put right what was found without a guess. Some remedies are
safe only in company, and ``_withhold_remedies`` takes them back: nothing is cut from a log that
lacks a file, and nothing at all is touched that a newer onelog wrote.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from onelog.ual.directory import ShardPaths
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.hard_state import (
    FILE_SIZE,
    HINT_OFFSET,
    HardStateReport,
    Hint,
    inspect_hard_state,
)
from onelog.ual.manifest import Manifest
from onelog.ual.manifest import load as load_manifest
from onelog.ual.offline import findings as found
from onelog.ual.offline.chain_check import Link, check_chain
from onelog.ual.offline.findings import (
    Finding,
    Level,
    RebuildManifest,
    RebuildTables,
    Remedy,
    RewriteHardState,
)
from onelog.ual.offline.rebuild import rebuild_sealed
from onelog.ual.offline.unsealed_check import check_unsealed
from onelog.ual.opening import what_is_known
from onelog.ual.recovery import ORPHAN, Known, finish_deletions, sort_names, successor_header
from onelog.ual.segments.check import Part, check_sealed
from onelog.ual.segments.format import SegmentHeader, SegmentKind
from onelog.ual.tidying import Adopt, Cut, Remove

# For file types of other packages: what the name ends with, and who verifies such a file.
FileVerifier = Callable[[Files, Path], list[Finding]]

_KNOWN_NAMES = frozenset(("MANIFEST", "RAFT", "cold.fcold", "segs", "snaps", "spill.lmdb"))
_LEFTOVER_NAMES = frozenset(("MANIFEST.tmp", "RAFT.tmp"))
# What follows from the rest of a sealed file. Entries, streams and voids do not.
_DERIVED = frozenset(("HEADER_DAMAGED", "FOOTER_DAMAGED", "TABLE_DAMAGED", "FILE_CHECKSUM"))
_CHAIN_BROKEN = frozenset(("MISSING_RANGE", "MISSING_END", "OVERLAP"))

_VOTE_ADVICE = (
    "it could vote twice in one term: remove this node from the cluster and add it as a new one "
    "with an empty directory"
)
_NOTES_ADVICE = (
    "streams and voids follow only from a replay: rebuild this replica from a peer, or restore the "
    "file from a backup"
)


@dataclass(slots=True)
class ShardCheck:
    """The check of one shard, as far as it has come."""

    files: Files
    paths: ShardPaths
    shard: int
    unsynced_bytes_max: int
    verifiers: Mapping[str, FileVerifier]
    findings: list[Finding] = field(default_factory=list)
    has_changed: bool = False  # a listed file was gone: somebody is using the directory
    _manifest: Manifest | None = None
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
                self._add(Level.FOREIGN, path, "FOREIGN", "not onelog's", found.ADVICE_LEAVE)

    def _check_manifest(self) -> None:
        path = self.paths.manifest
        try:
            self._manifest = load_manifest(self.files, path, durable=False)
        except UnknownVersion as error:
            self._add_error(path, error.reason, str(error), found.ADVICE_UPGRADE)
        except CorruptFile as error:
            remedy = RebuildManifest(path, self.shard)
            self._add_error(
                path, "MANIFEST_DAMAGED", error.rule, found.ADVICE_REPAIR, error.offset, remedy
            )
        except OSError as error:
            self._add_unreadable(path, error)

    def _check_manifest_is_there(self) -> None:
        path = self.paths.manifest
        if self.files.exists(path) or not self._links:
            return
        # The first opening makes a segment, then MANIFEST: no crash leaves entries without one.
        parts = [link.part for link in self._links]
        has_entries = any(part is None or part.last_index >= part.first_index for part in parts)
        level = Level.ERROR if has_entries else Level.TAIL
        advice = found.ADVICE_REPAIR if has_entries else found.ADVICE_OPENING
        remedy = RebuildManifest(path, self.shard)
        self._add(level, path, "MANIFEST_MISSING", "missing beside segments", advice, None, remedy)

    def _check_hard_state(self) -> None:
        path = self.paths.hard_state
        if not self.files.exists(path):
            if self.files.list(self.paths.segments):
                self._add_error(path, "RAFT_LOST", "missing beside a log", _VOTE_ADVICE)
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
            self._add_error(path, "UNKNOWN_VERSION", message, found.ADVICE_UPGRADE)
        elif not states or len(sequences) < len(states):
            self._add_error(path, "RAFT_LOST", f"no slot to trust: {message}", _VOTE_ADVICE)
        elif len(data) > FILE_SIZE:
            self._add_error(path, "RAFT_SLOT", message, found.ADVICE_REPAIR, None, remedy)
        elif problems:
            advice = found.ADVICE_OPENING
            self._add(Level.TAIL, path, "RAFT_SLOT", message, advice, None, remedy)

    def _read_hard_state(self, path: Path) -> bytes:
        """Read the file; once more if it looks damaged, as a write at this moment would make it."""
        data = self.files.open_read(path).read(2 * FILE_SIZE, 0)
        if inspect_hard_state(data).problems:
            data = self.files.open_read(path).read(2 * FILE_SIZE, 0)
        return data

    # Segments

    def _check_segments(self) -> None:
        directory = self.paths.segments
        known = what_is_known(self._manifest, self._hint, self.unsynced_bytes_max)
        names, listing = sort_names(self.files, directory)
        for name in listing.foreign:
            path = directory / name
            self._add(Level.FOREIGN, path, "FOREIGN", "not a segment's name", found.ADVICE_LEAVE)
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
        """Check the next file of a log that was interrupted while it changed to that file."""
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
        self._add(Level.TAIL, path, "UNFINISHED_ROLL", message, found.ADVICE_OPENING, None, remedy)

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
            advice = found.ADVICE_REPAIR if remedy else found.ADVICE_PEER
            if problem.reason == "NOTES_DAMAGED":
                advice = _NOTES_ADVICE
            elif problem.reason == "UNKNOWN_VERSION":
                advice = found.ADVICE_UPGRADE
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

    def _check_snapshots(self) -> None:
        """Hand each file to the verifier of its kind; kinds without one are left alone."""
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

    def _withhold_remedies(self) -> None:
        """Take back what must not be done in view of all that was found."""
        reasons = {finding.reason for finding in self.findings}
        for number, finding in enumerate(self.findings):
            instead = self._advice_instead(finding, reasons)
            if instead is not None:
                self.findings[number] = replace(finding, remedy=None, advice=instead)

    def _advice_instead(self, finding: Finding, reasons: set[str]) -> str | None:
        """Return the advice in place of a remedy that would not be safe, None if it is."""
        if finding.remedy is None:
            return None
        if "UNKNOWN_VERSION" in reasons:
            return "a newer onelog wrote to this shard: use that one"
        # Without a record of what was durable, a damaged end may be anything.
        end_is_unknown = self._manifest is None and self._hint is None and "TORN_TAIL" in reasons
        if finding.reason == "TORN_TAIL" and end_is_unknown:
            return f"nothing tells whether it was durable; {found.ADVICE_PEER}"
        # What looks like a tail or a leftover may be what a missing or strange file makes it.
        is_tidying = isinstance(finding.remedy, Cut | Remove | Adopt)
        if is_tidying and finding.path.parent == self.paths.segments and reasons & _CHAIN_BROKEN:
            return "left as it is until the files of the log touch again"
        if isinstance(finding.remedy, RebuildManifest):
            if end_is_unknown or any(self._blocking(finding)):
                return "it is made from the segments and RAFT, which must be in order first"
            if self.files.exists(self.paths.cold_list) or self.files.list(self.paths.snapshots):
                return "it lists snapshots and cold data, and must be restored from a backup"
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
        advice = found.ADVICE_OPENING
        self._add(Level.LEFTOVER, action.path, "LEFTOVER", action.why, advice, None, action)

    def _add_unreadable(self, path: Path, error: OSError) -> None:
        if isinstance(error, FileNotFoundError):
            self.has_changed = True
        message = error.strerror or str(error)
        self._add(Level.ERROR, path, "READ_FAILED", message, found.ADVICE_DISK)
