"""All files of one shard, checked one by one and against each other.

One damaged file never hides another: each is judged by itself, then the neighbours must touch, and
then all of it must hold what MANIFEST and the hint in RAFT promise. The rules for unsealed files
are those of recovery (ual/recovery.py), so what is called a tail here is what opening would cut.

A remedy is attached where repair can put right what was found without a guess. Some remedies are
safe only in company, and ``_withhold_remedies`` takes them back: nothing is cut from a log that
lacks a file, and nothing at all is touched that a newer onelog wrote.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from ual import findings as found
from ual.directory import ShardPaths
from ual.errors import CorruptFile, DataError, UnknownVersion
from ual.files import Files
from ual.findings import Finding, Level, RebuildManifest, RebuildTables, RewriteHardState
from ual.hard_state import FILE_SIZE, HardStateReport, inspect_hard_state
from ual.manifest import Manifest
from ual.manifest import load as load_manifest
from ual.opening import what_is_known
from ual.rebuilding import rebuild_sealed
from ual.recovery import (
    Cut,
    Known,
    Remove,
    _finish_deletions,
    _sort_names,
)
from ual.sealed_check import Part, Problem, check_sealed
from ual.segment_format import SegmentKind
from ual.unsealed_check import check_unsealed

FileVerifier = Callable[[Files, Path], list[Finding]]

_KNOWN_NAMES = frozenset(("MANIFEST", "RAFT", "cold.fcold", "segs", "snaps", "spill.lmdb"))
_LEFTOVER_NAMES = frozenset(("MANIFEST.tmp", "RAFT.tmp"))
# What follows from the rest of a sealed file. Entries, streams and voids do not.
_DERIVED = frozenset(("HEADER_DAMAGED", "FOOTER_DAMAGED", "TABLE_DAMAGED", "FILE_CHECKSUM"))


@dataclass(frozen=True, slots=True)
class Link:
    """A segment file in the chain that the log is; ``part`` is None where it cannot be told."""

    first_index: int
    path: Path
    is_sealed: bool
    part: Part | None


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
    manifest: Manifest | None = None
    hard_state: HardStateReport | None = None

    def run(self) -> None:
        """Check everything once."""
        directories = (self.paths.root, self.paths.segments, self.paths.snapshots)
        for directory in directories:
            if not self.files.exists(directory):
                self._add(
                    Level.ERROR, directory, "SHARD_MISSING", "the directory is missing",
                    "mount its volume or restore it from a backup, or rebuild this replica",
                )  # fmt: skip
                return
        try:
            self._check_names()
            self._check_hard_state()
            self._check_manifest()
            self._check_segments()
            self._check_snapshots()
        except OSError as error:  # a directory that cannot be listed; files are caught one by one
            path = Path(error.filename) if error.filename else self.paths.root
            self._add(Level.ERROR, path, "READ_FAILED", str(error), found.ADVICE_DISK)
        self._withhold_remedies()

    # Small files

    def _check_names(self) -> None:
        for name in self.files.list(self.paths.root):
            path = self.paths.root / name
            if name in _LEFTOVER_NAMES:
                why = "left by an interrupted write"
                self._add_leftover(Remove(path, why))
            elif name not in _KNOWN_NAMES:
                self._add(Level.FOREIGN, path, "FOREIGN", "not onelog's", found.ADVICE_LEAVE)

    def _check_manifest(self) -> None:
        path = self.paths.manifest
        remedy = RebuildManifest(path, self.shard)
        try:
            self.manifest = load_manifest(self.files, path, durable=False)
        except UnknownVersion as error:
            self._add_newer(path, error)
        except CorruptFile as error:
            self._add(
                Level.ERROR, path, "MANIFEST_DAMAGED", error.rule, found.ADVICE_REPAIR,
                offset=error.offset, remedy=remedy,
            )  # fmt: skip
        except OSError as error:
            self._add_unreadable(path, error)
        else:
            if self.manifest is None and self.files.list(self.paths.segments):
                self._add(
                    Level.ERROR, path, "MANIFEST_MISSING", "missing beside segments",
                    found.ADVICE_REPAIR, remedy=remedy,
                )  # fmt: skip

    def _check_hard_state(self) -> None:
        path = self.paths.hard_state
        if not self.files.exists(path):
            if self.files.list(self.paths.segments):
                advice = "remove this node from the cluster and add it as a new one"
                self._add(
                    Level.ERROR, path, "RAFT_LOST", "missing: the vote is forgotten", advice
                )
            return
        try:
            data = self._read_hard_state(path)
        except OSError as error:
            self._add_unreadable(path, error)
            return
        report = self.hard_state = inspect_hard_state(data)
        if not report.problems:
            return
        message = "; ".join(report.problems)
        states = [slot.state for slot in report.slots if slot.state is not None]
        newer = [slot.version_newer for slot in report.slots if slot.version_newer is not None]
        contradicting = len({(state.sequence, state) for state in states}) > len(
            {state.sequence for state in states}
        )
        if newer:
            self._add(
                Level.ERROR, path, "UNKNOWN_VERSION", message, found.ADVICE_UPGRADE
            )
        elif not states or contradicting:
            advice = (
                "no safe guess is possible: remove this node from the cluster and add it as a "
                "new one with an empty directory"
            )
            self._add(Level.ERROR, path, "RAFT_LOST", message, advice)
        else:
            self._add(
                Level.TAIL, path, "RAFT_SLOT", message, found.ADVICE_OPENING,
                remedy=RewriteHardState(path),
            )  # fmt: skip

    def _read_hard_state(self, path: Path) -> bytes:
        """Read the file; once more if it looks damaged, which a write at this moment would do."""
        for _ in range(2):
            data = self.files.open_read(path).read(FILE_SIZE + 1, 0)
            if not inspect_hard_state(data).problems:
                break
        return data

    # Segments

    def _check_segments(self) -> None:
        directory = self.paths.segments
        hint = self.hard_state.hint.hint if self.hard_state else None
        known = what_is_known(self.manifest, hint, self.unsynced_bytes_max)
        names, listing = _sort_names(self.files, directory)
        for name in listing.foreign:
            path = directory / name
            self._add(Level.FOREIGN, path, "FOREIGN", "not a segment's name", found.ADVICE_LEAVE)
        gone: set[str] = set()
        for action in _finish_deletions(directory, names, known):
            assert isinstance(action, Remove), action
            gone.add(action.path.name)
            self._add_leftover(action)
        sealed = {
            first: directory / name
            for first, name in names[SegmentKind.SEALED].items()
            if name not in gone
        }
        unsealed = {
            first: directory / name
            for first, name in names[SegmentKind.UNSEALED].items()
            if name not in gone
        }
        links = [Link(first, path, True, self._sealed(path)) for first, path in sealed.items()]
        firsts = [*unsealed, None]
        for number, (first, path) in enumerate(unsealed.items()):
            links += self._unsealed(first, path, firsts[number + 1], known)
        links.sort(key=lambda link: (link.first_index, link.is_sealed))
        self.findings += chain_findings(directory, links, known)
        self._check_commit_index(links, hint.commit_index if hint else 0)

    def _sealed(self, path: Path) -> Part | None:
        try:
            data = self.files.map(path)
        except OSError as error:
            self._add_unreadable(path, error)
            return None
        part, problems = check_sealed(path, data, self.shard)
        remedy = None
        if problems and _DERIVED.issuperset(problem.reason for problem in problems):
            if rebuild_sealed(path, data, self.shard) is not None:
                remedy = RebuildTables(path, self.shard)
        for problem in problems:
            advice = found.ADVICE_REPAIR if remedy else _advice_for(problem)
            self._add(
                Level.ERROR, path, problem.reason, problem.rule, advice,
                offset=problem.offset, remedy=remedy,
            )  # fmt: skip
        return part

    def _unsealed(
        self, first_index: int, path: Path, successor: int | None, known: Known
    ) -> list[Link]:
        """Check an unsealed file; it is no link if it was only just being created."""
        try:
            part, findings = check_unsealed(
                self.files, path, first_index, successor, known, self.shard
            )
        except OSError as error:
            self._add_unreadable(path, error)
            return [Link(first_index, path, False, None)]
        self.findings += findings
        if any(isinstance(finding.remedy, Remove) for finding in findings):
            return []
        return [Link(first_index, path, False, part)]

    def _check_commit_index(self, links: list[Link], hinted: int) -> None:
        last = links[-1].part if links else None
        recorded = max(hinted, self.manifest.checkpoint.commit_index if self.manifest else 0)
        if last is not None and recorded > last.last_index:
            message = f"commit index {recorded} is recorded, the log ends at {last.last_index}"
            advice = "nothing to do: this replica gets the entries from its peers"
            self._add(Level.NOTE, last.path, "COMMIT_BEYOND_END", message, advice)

    # Snapshots

    def _check_snapshots(self) -> None:
        """Hand each file to the verifier for its kind; kinds without one are left alone."""
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

    def _withhold_remedies(self) -> None:
        """Take back what must not be done in view of all that was found."""
        reasons = {finding.reason for finding in self.findings}
        hint_is_readable = self.hard_state is not None and self.hard_state.hint.hint is not None
        # Without a record of what was durable, a damaged end may be anything.
        unknown_end = self.manifest is None and not hint_is_readable and "TORN_TAIL" in reasons
        keeps_cuts = not unknown_end and not reasons & {"MISSING_RANGE", "OVERLAP", "MISSING_END"}
        others = [
            finding
            for finding in self.findings
            if finding.level is Level.ERROR and finding.remedy is None
        ]
        # A new MANIFEST would not know of them.
        lists_matter = self.files.exists(self.paths.cold_list) or bool(
            self.files.exists(self.paths.snapshots) and self.files.list(self.paths.snapshots)
        )
        has_log = any(
            isinstance(link_kind, str) for link_kind in reasons
        )
        keeps_manifest = not unknown_end and not others and not lists_matter and has_log
