"""Verification of a whole data directory: every file, every checksum, every promise.

It only reads, takes no lock, and goes on past damage: the result is the list of all that was found,
empty for an undamaged directory. What a finding's level and reason mean is in
ual/offline/findings.py, the rules are in ual/offline/shard_check.py and what it calls.

On a directory in use, a shard that changed while it was read is read once more; what a writer has
written in part at that moment may still be reported as a tail.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from onelog.ual.directory import (
    NODE_NAME,
    SYSTEM_NAME,
    ShardPaths,
    read_node,
    read_system,
    shard_paths,
)
from onelog.ual.entry import GROUP_SIZE_MAX
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.offline import findings as found
from onelog.ual.offline.findings import Finding, Level
from onelog.ual.offline.reader import Progress, ReadOnlyFiles, Root, look_at_root
from onelog.ual.offline.shard_check import FileVerifier, ShardCheck
from onelog.ual.tidying import Remove

NO_VERIFIERS: Mapping[str, FileVerifier] = MappingProxyType({})


@dataclass(slots=True)
class _Meter:
    """Counts what was read, and tells."""

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
) -> list[Finding]:
    """Check a data directory, or one shard of it, and return all that is not as it should be.

    ``unsynced_bytes_max`` is the limit that the log was written with. ``verifiers`` check file
    types of other packages in snaps/, by the end of the name (".fsnap").
    """
    meter = _Meter(progress)
    reader = ReadOnlyFiles(files, meter.advance)
    root = look_at_root(reader, data_dir)
    findings, shards = _check_root(reader, root)
    chosen = root.choose(shard, shards)
    meter.total_bytes = sum(_size_of_segments(reader, shard_paths(data_dir, at)) for at in chosen)
    for number in chosen:
        paths = shard_paths(data_dir, number)
        findings += _check_shard(reader, paths, number, unsynced_bytes_max, verifiers)
    meter.advance(meter.total_bytes, data_dir)
    if any(at.reason == "UNKNOWN_VERSION" and at.path.parent == data_dir for at in findings):
        # SYSTEM or NODE of a newer onelog: what the rest means is not for this one to say.
        findings = [replace(at, remedy=None, advice=found.ADVICE_UPGRADE) for at in findings]
    return findings


def _check_shard(
    files: Files,
    paths: ShardPaths,
    shard: int,
    unsynced_bytes_max: int,
    verifiers: Mapping[str, FileVerifier],
) -> list[Finding]:
    before = _manifest_bytes(files, paths)
    check = ShardCheck(files, paths, shard, unsynced_bytes_max, verifiers)
    check.run()
    if check.findings and (check.has_changed or _manifest_bytes(files, paths) != before):
        check = ShardCheck(files, paths, shard, unsynced_bytes_max, verifiers)
        check.run()
    return check.findings


def _manifest_bytes(files: Files, paths: ShardPaths) -> bytes | None:
    """Read MANIFEST just to see later whether it changed; drops and cuts begin there."""
    try:
        file = files.open_read(paths.manifest)
        return file.read(file.size(), 0)
    except OSError:
        return None


def _check_root(files: Files, root: Root) -> tuple[list[Finding], int | None]:
    """Check what belongs to no shard; return also how many shards SYSTEM says there are."""
    findings: list[Finding] = []
    shards: int | None = None
    for name in (SYSTEM_NAME, NODE_NAME):
        path = root.path / name
        try:
            if name == SYSTEM_NAME:
                shards = read_system(files, root.path).topology.shards
            else:
                read_node(files, root.path)
        except UnknownVersion as error:
            findings.append(_error(path, None, error.reason, str(error), found.ADVICE_UPGRADE))
        except CorruptFile as error:
            rule, _, advice = error.rule.rpartition("; ")
            reason = "SYSTEM_DAMAGED" if name == SYSTEM_NAME else "NODE_DAMAGED"
            findings.append(
                _error(path, error.offset, reason, rule or error.rule, advice or found.ADVICE_PEER)
            )
        except OSError as error:
            message = error.strerror or str(error)
            findings.append(_error(path, None, "READ_FAILED", message, found.ADVICE_DISK))
    for name in root.leftovers:
        remedy = Remove(root.path / name, "left by an interrupted write")
        advice = found.ADVICE_REPAIR
        findings.append(
            Finding(Level.LEFTOVER, remedy.path, None, "LEFTOVER", remedy.why, advice, remedy)
        )
    strays = [f"{shard:05d}" for shard in root.shards if shards is not None and shard >= shards]
    for name in (*root.foreign, *strays):
        path = root.path / name
        message = "not onelog's" if name in root.foreign else f"not in SYSTEM, shards: {shards}"
        findings.append(Finding(Level.FOREIGN, path, None, "FOREIGN", message, found.ADVICE_LEAVE))
    return findings, shards


def _error(path: Path, offset: int | None, reason: str, message: str, advice: str) -> Finding:
    return Finding(Level.ERROR, path, offset, reason, message, advice)


def _size_of_segments(files: Files, paths: ShardPaths) -> int:
    """Return how many bytes there are to read; what cannot be told counts as none."""
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
