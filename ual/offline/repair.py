"""Offline repair: carry out the remedies of verification that need no guess, on request.

``plan_repairs`` only reads. ``apply_repairs`` takes the directory's LOCK, plans again, and refuses
to continue if the plan is not the one that was shown. Then, in this order:

1. Everything that will be cut, removed or replaced is copied to ``{data_dir}/repair-{stamp}``, and
   the copies are made durable. A full disk ends the repair here, with nothing changed.
2. Tails and leftovers, RAFT slots, sealed segments, snapshots, MANIFEST: a crash at any point
   leaves a directory from which the next plan continues.

Damaged snapshots are renamed and never removed. A new MANIFEST lists the undamaged ones.

What is never done: an entry that fails its checksum is not made readable, no entry that was durable
is dropped, streams and voids (which apply made) and votes are not invented. Such damage is listed
with advice on what to do instead.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import assert_never

from onelog.ual.directory import LOCK_NAME, shard_paths
from onelog.ual.entry import GROUP_SIZE_MAX
from onelog.ual.errors import CorruptFile, DirectoryError, DirectoryInUse, DiskFull
from onelog.ual.files import Files
from onelog.ual.hard_state import (
    FILE_SIZE,
    HINT_OFFSET,
    SLOT_SIZE,
    HardStateFile,
    inspect_hard_state,
)
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import load as load_manifest
from onelog.ual.manifest import save as save_manifest
from onelog.ual.offline.reader import COPY_SIZE, REPAIR_PREFIX, Progress, ReadOnlyFiles
from onelog.ual.offline.rebuild import rebuild_sealed
from onelog.ual.offline.verify import (
    NO_VERIFIERS,
    FileVerifier,
    Finding,
    FindSnapshots,
    Level,
    RebuildManifest,
    RebuildTables,
    Remedy,
    RewriteHardState,
    SetAside,
    find_none,
    verify,
)
from onelog.ual.recovery import Action, Adopt, Cut, Remove, carry_out, open_log
from onelog.ual.segments.format import compacting_name, parse_segment_name

# Of the name of a snapshot that was set aside; nothing looks for such names.
SET_ASIDE_SUFFIX = ".damaged"

# A log that is opened only to make MANIFEST again has no readers.
_RING_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair; without a remedy, damage that cannot be repaired here."""

    path: Path
    reason: str  # of the finding
    description: str
    advice: str
    remedy: Remedy | None

    @property
    def is_possible(self) -> bool:
        """Whether ``apply_repairs`` does it."""
        return self.remedy is not None


def plan_repairs(
    files: Files,
    data_dir: Path,
    progress: Progress | None = None,
    *,
    unsynced_bytes_max: int = GROUP_SIZE_MAX,
    verifiers: Mapping[str, FileVerifier] = NO_VERIFIERS,
    find_snapshots: FindSnapshots = find_none,
) -> list[Repair]:
    """Return what can be repaired in the directory, in order, and then what cannot.

    The arguments are those of ``verify``.
    """
    findings = verify(
        files,
        data_dir,
        progress,
        unsynced_bytes_max=unsynced_bytes_max,
        verifiers=verifiers,
        find_snapshots=find_snapshots,
    )
    possible: dict[Remedy, Repair] = {}
    impossible: list[Repair] = []
    for finding in findings:
        remedy = finding.remedy
        if remedy is None:
            if finding.level in (Level.ERROR, Level.TAIL, Level.LEFTOVER):
                impossible.append(_repair(finding, finding.message))
        elif remedy not in possible:  # one rebuilt file may answer several findings
            possible[remedy] = _repair(finding, _describe(remedy))
    return [*sorted(possible.values(), key=_order), *impossible]


def apply_repairs(
    files: Files,
    data_dir: Path,
    plan: Sequence[Repair],
    stamp: str,
    *,
    unsynced_bytes_max: int = GROUP_SIZE_MAX,
    verifiers: Mapping[str, FileVerifier] = NO_VERIFIERS,
    find_snapshots: FindSnapshots = find_none,
) -> Path | None:
    """Carry out a plan; return the directory with the copies, if there was anything to copy.

    ``stamp`` makes the directory's name; two repairs need two of them.
    """
    assert any(repair.is_possible for repair in plan), "nothing to do"
    lock = files.lock(data_dir / LOCK_NAME)
    if lock is None:
        raise DirectoryInUse(f"another process is using {data_dir}; stop it first")
    try:
        now = plan_repairs(
            files,
            data_dir,
            unsynced_bytes_max=unsynced_bytes_max,
            verifiers=verifiers,
            find_snapshots=find_snapshots,
        )
        if now != list(plan):
            raise DirectoryError(f"{data_dir} has changed since the plan was made; run it again")
        remedies = [repair.remedy for repair in now if repair.remedy is not None]
        copies = data_dir / f"{REPAIR_PREFIX}{stamp}"
        _keep_copies(files, data_dir, copies, remedies)
        _carry_out(files, data_dir, remedies, stamp, unsynced_bytes_max)
    finally:
        lock.release()
    return copies if files.exists(copies) else None


# Planning ----------------------------------------------------------------------------------------


def _repair(finding: Finding, description: str) -> Repair:
    return Repair(finding.path, finding.reason, description, finding.advice, finding.remedy)


def _order(repair: Repair) -> int:
    """Rebuilding may need a leftover's name; MANIFEST is made from all the rest."""
    kinds = (Cut, Remove, Adopt, RewriteHardState, RebuildTables, SetAside, RebuildManifest)
    return next(number for number, kind in enumerate(kinds) if isinstance(repair.remedy, kind))


def _describe(remedy: Remedy) -> str:
    match remedy:
        case Cut(_, size, size_before, why):
            return f"cut {size_before - size} bytes from offset {size} on ({why})"
        case Remove(_, why):
            return f"remove the file ({why})"
        case Adopt():
            return f"rename it to {remedy.target.name}, as it goes on where the log ends"
        case RebuildTables():
            return "write the file again: tables and footer follow from its intact entries"
        case RewriteHardState():
            return "write the damaged slot again from the good one"
        case SetAside(path):
            return f"rename it to {path.name}.TIME.damaged, and take it out of MANIFEST"
        case RebuildManifest(snapshots=snapshots):
            listed = ", ".join(each.file for each in snapshots) or "no snapshot"
            return f"make it again from the segments and RAFT; it lists {listed}"
        case _:
            assert_never(remedy)


# Copies ------------------------------------------------------------------------------------------


def _keep_copies(files: Files, data_dir: Path, copies: Path, remedies: Iterable[Remedy]) -> None:
    """Copy what is about to be changed, so that it could be put back by hand."""
    if files.exists(copies):
        raise DirectoryError(f"{copies} exists already; run the repair again")
    changed: dict[Path, int] = {}  # from which offset on; two remedies may change MANIFEST
    for remedy in remedies:
        match remedy:
            case Adopt():
                continue
            case SetAside(manifest=path):
                start = 0
            case _:
                path, start = remedy.path, remedy.size if isinstance(remedy, Cut) else 0
        if files.exists(path):  # a missing MANIFEST is made again
            changed[path] = start
    sources = list(changed.items())
    needed = sum(files.open_read(path).size() - start for path, start in sources)
    free = files.free_bytes(data_dir)
    if free < needed:
        raise DiskFull(f"{needed} bytes are to be copied first, {free} are free; free some space")
    directories = {copies}
    for path, start in sources:
        target = copies / path.relative_to(data_dir)
        # The name says where the bytes belong; a copy of a whole file has the file's own name.
        target = target.with_name(f"{target.name}.from-{start}") if start else target
        files.make_directory(target.parent)
        directories |= {parent for parent in target.parents if parent.is_relative_to(copies)}
        _copy(files, path, start, target)
    for directory in sorted(directories, reverse=True):
        if files.exists(directory):
            files.sync_directory(directory)
    files.sync_directory(data_dir)


def _copy(files: Files, source: Path, start: int, target: Path) -> None:
    reader, writer = files.open_read(source), files.open(target, create=True)
    offset = 0
    while piece := reader.read(COPY_SIZE, start + offset):
        writer.write(piece, offset)
        offset += len(piece)
    writer.sync()


# Doing -------------------------------------------------------------------------------------------


def _carry_out(
    files: Files,
    data_dir: Path,
    remedies: Sequence[Remedy],
    stamp: str,
    unsynced_bytes_max: int,
) -> None:
    """Do what was planned: leftovers and tails first, then the rest in the plan's order."""
    tidying: dict[Path, list[Action]] = defaultdict(list)
    for remedy in remedies:
        if isinstance(remedy, Cut | Remove | Adopt):
            tidying[remedy.path.parent].append(remedy)
    for directory, actions in tidying.items():
        carry_out(files, directory, actions)
    for remedy in remedies:
        match remedy:
            case RewriteHardState(path):
                _rewrite_hard_state(files, path)
            case RebuildTables(path, shard):
                _rebuild_tables(files, path, shard)
            case SetAside():
                _set_aside(files, remedy, stamp)
            case RebuildManifest():
                _rebuild_manifest(files, data_dir, remedy, unsynced_bytes_max)
            case Cut() | Remove() | Adopt():
                pass  # above, together, because a directory is synced once for all
            case _:
                assert_never(remedy)


def _rewrite_hard_state(files: Files, path: Path) -> None:
    HardStateFile.open(files, path)  # puts the slots right, synced one by one
    file = files.open(path)
    data = file.read(file.size(), 0)
    if inspect_hard_state(data).hint.problem is not None:
        # Never written: nobody relies on a hint, and the next sync writes one.
        file.write(bytes(SLOT_SIZE), HINT_OFFSET)
    if len(data) > FILE_SIZE:
        file.truncate(FILE_SIZE)
    file.sync()


def _rebuild_tables(files: Files, path: Path, shard: int) -> None:
    """Replace a sealed segment; a crash leaves the old file or the new one, whole."""
    rebuilt = rebuild_sealed(path, ReadOnlyFiles(files).map(path), shard)
    named = parse_segment_name(path.name)
    if rebuilt is None or named is None:  # it could be when it was planned, a moment ago
        raise CorruptFile(str(path), "cannot be rebuilt any more; verify again")
    # Not the usual temporary name, which is that of an unsealed segment. Recovery removes this one.
    new_path = path.with_name(compacting_name(named[0]))
    if files.exists(new_path):
        files.remove(new_path)
    file = files.open(new_path, create=True)
    offset = 0
    for part in rebuilt.parts:
        file.write(part, offset)
        offset += len(part)
    file.sync()
    files.rename(new_path, path)
    files.sync_directory(path.parent)


def _set_aside(files: Files, remedy: SetAside, stamp: str) -> None:
    """Rename a damaged snapshot, then take it out of MANIFEST.

    In the other order, a server that is started after a crash in between would remove the file.
    """
    path = remedy.path
    if files.exists(path):
        files.rename(path, path.with_name(f"{path.name}.{stamp}{SET_ASIDE_SUFFIX}"))
        files.sync_directory(path.parent)
    with suppress(CorruptFile):  # a damaged one is made again, without this snapshot
        manifest = load_manifest(files, remedy.manifest)
        if manifest is not None:
            kept = tuple(each for each in manifest.snapshots if each.file != path.name)
            if kept != manifest.snapshots:
                save_manifest(files, remedy.manifest, replace(manifest, snapshots=kept))


def _rebuild_manifest(
    files: Files, data_dir: Path, remedy: RebuildManifest, unsynced_bytes_max: int
) -> None:
    """Open the log without MANIFEST: that makes one, after making durable what it speaks of.

    One that can be read stays, and only gets the snapshots that it lacks.
    """
    with suppress(CorruptFile):
        manifest = load_manifest(files, remedy.path)
        if manifest is not None:
            base = manifest.base or remedy.base
            save_manifest(
                files, remedy.path, replace(manifest, snapshots=remedy.snapshots, base=base)
            )
            return
    if files.exists(remedy.path):
        files.remove(remedy.path)
        files.sync_directory(remedy.path.parent)
    paths = replace(shard_paths(data_dir, remedy.shard), identity=remedy.identity)
    hard_state = HardStateFile.open(files, paths.hard_state)
    config = LogConfig(
        ring_bytes=_RING_BYTES,
        unsynced_bytes_max=unsynced_bytes_max,
        free_bytes_min=0,
    )
    open_log(
        files,
        paths,
        hard_state,
        shard=remedy.shard,
        config=config,
        snapshots=remedy.snapshots,
        base=remedy.base,
    )
