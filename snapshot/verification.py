"""What ``onelog log verify`` checks in snaps/: hand ``VERIFIERS`` to ``ual.verification.verify``.

``ual`` does not know this package; it calls a verifier for each file by the end of its name. A
snapshot is checked against its own checksums and against MANIFEST's record of it. What MANIFEST
does not list is a leftover: opening the shard removes it.
"""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import parse_snapshot_name
from onelog.snapshot.loading import open_recorded
from onelog.snapshot.reader import SnapshotReader
from onelog.ual.errors import DataError, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.manifest import Manifest
from onelog.ual.manifest import load as load_manifest
from onelog.ual.offline import findings as found
from onelog.ual.offline.findings import Finding, Level
from onelog.ual.offline.shard_check import FileVerifier
from onelog.ual.tidying import Remove

ADVICE_DAMAGED = (
    "nothing is lost while the older snapshot or the whole log is there: opening the shard uses it "
    "and forgets this one"
)
ADVICE_UNLISTED = (
    "MANIFEST was lost or made anew: restore it from a backup, or rebuild this replica from a peer"
)


def verify_snapshot(files: Files, path: Path) -> list[Finding]:
    """Check one ``.fsnap`` file completely."""
    if parse_snapshot_name(path.name) is None:
        return [_foreign(path)]
    manifest = _manifest_of(files, path)
    if manifest is None:
        return _check(path, lambda: SnapshotReader.open(files, path))
    for record in manifest.snapshots:
        if record.file == path.name:
            shard = int(path.parent.parent.name)
            return _check(path, partial(open_recorded, files, path, shard, record))
    if manifest.snapshots or manifest.checkpoint.first_index == 1:
        return [_leftover(path, Remove(path, "not listed in MANIFEST"))]
    message = f"MANIFEST lists no snapshot, and the log begins at {manifest.checkpoint.first_index}"
    return [Finding(Level.ERROR, path, None, "UNLISTED_SNAPSHOT", message, ADVICE_UNLISTED)]


def _check(path: Path, open_reader: Callable[[], SnapshotReader]) -> list[Finding]:
    try:
        open_reader().verify()
    except UnknownVersion as error:
        message, advice = str(error), found.ADVICE_UPGRADE
        return [Finding(Level.ERROR, path, None, error.reason, message, advice)]
    except CorruptSnapshot as error:
        return [Finding(Level.ERROR, path, error.offset, error.reason, error.rule, ADVICE_DAMAGED)]
    return []


def verify_temporary(_files: Files, path: Path) -> list[Finding]:
    """Report a snapshot that is being built, or was when a crash came."""
    named = parse_snapshot_name(path.name)
    if named is None or not named.is_temporary:
        return [_foreign(path)]
    return [_leftover(path, Remove(path, "being built, or left by an interrupted build"))]


VERIFIERS: Mapping[str, FileVerifier] = MappingProxyType(
    {".fsnap": verify_snapshot, ".tmp": verify_temporary}
)


def _manifest_of(files: Files, path: Path) -> Manifest | None:
    """Return MANIFEST of the shard that a file of snaps/ belongs to, if it can be read."""
    try:
        return load_manifest(files, path.parent.parent / "MANIFEST", durable=False)
    except (DataError, OSError):
        return None  # reported where MANIFEST itself is checked


def _leftover(path: Path, remedy: Remove) -> Finding:
    advice = found.ADVICE_OPENING
    return Finding(Level.LEFTOVER, path, None, "LEFTOVER", remedy.why, advice, remedy)


def _foreign(path: Path) -> Finding:
    message = "not a snapshot's name"
    return Finding(Level.FOREIGN, path, None, "FOREIGN", message, found.ADVICE_LEAVE)
