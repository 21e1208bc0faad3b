"""Proving that the state follows from the log: several ways to one index, one hash.

1. The log, replayed from the oldest point that is kept: from index 1 while the log is whole, from
   the oldest kept snapshot otherwise.
2. The newest snapshot, loaded. Another process built it, and it was compared with live state then.
3. MANIFEST, which recorded the hash of the live state.
4. What the caller expects at an index, because a server named it.

They must agree: the first three at the newest snapshot, the last at its index. The log after both
is replayed too, up to what is known to be committed. That shows that it can be applied, and gives
the hash at the end, to compare with another replica's. If hashes differ, replaying gives another
state than applying did, or a file is damaged; the verdict says which. It only reads and takes no
lock.

``VERIFIERS`` is what ``onelog log verify`` uses for the files in snaps/. ``ual`` does not know this
package, so it calls a verifier for each file by the end of its name. A snapshot is checked against
its own checksums and against MANIFEST's record of it. A file that MANIFEST does not list is a
leftover: opening the shard removes it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from pathlib import Path
from types import MappingProxyType

from onelog.projections.shard_state import Projections
from onelog.snapshot.errors import CorruptSnapshot, LogGap, StateMismatch
from onelog.snapshot.format import parse_snapshot_name
from onelog.snapshot.loading import open_recorded
from onelog.snapshot.offline import (
    find_committed,
    fresh_projections,
    kept_snapshots,
    open_shard,
)
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.replay import replay
from onelog.snapshot.state import hash_text, load_state
from onelog.ual.errors import DataError, IndexDropped, IndexInFuture, UnknownVersion
from onelog.ual.files import Files
from onelog.ual.manifest import Base, Manifest, SnapshotRecord
from onelog.ual.manifest import load as load_manifest
from onelog.ual.offline import verify as found
from onelog.ual.offline.reader import OfflineLog, ReadOnlyFiles
from onelog.ual.offline.verify import FileVerifier, Finding, FoundSnapshot, Level
from onelog.ual.recovery import Remove
from onelog.ual.segments.sealed import SealedSegment


class Verdict(Enum):
    """What a proof found."""

    EQUAL = "equal"
    MISMATCH = "mismatch"
    DAMAGED = "damaged"  # a file that the proof needs cannot be used
    NOTHING = "nothing to compare"  # no snapshot is kept, and nothing is expected


@dataclass(frozen=True, slots=True)
class StateHash:
    """The hash of a state, and the index that it is of."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Proof:
    """The state at the newest snapshot's index and at the end, as far as they were found."""

    shard: int
    verdict: Verdict
    index: int = 0
    base_index: int = 0  # where the replay began; 0: the beginning of the log
    entry_count: int = 0  # replayed to ``index``
    replayed_hash: str | None = None
    snapshot_hash: str | None = None
    manifest_hash: str | None = None
    expected_index: int = 0  # where the caller expects a hash; 0: nowhere
    expected_hash: str | None = None
    found_hash: str | None = None  # of the replay, there
    end_index: int = 0  # how far the log was replayed
    end_hash: str | None = None
    message: str = ""

    @property
    def proved_index(self) -> int:
        """The last index at which the replay was compared with something else."""
        return max(self.index, self.expected_index) if self.verdict is Verdict.EQUAL else 0


class _InsideGroup(Exception):
    """The index that was named does not end a group."""


def prove_shard(
    files: Files,
    data_dir: Path,
    shard: int,
    progress: Progress = no_progress,
    *,
    expected: StateHash | None = None,
) -> Proof:
    """Compare the ways to the state of a shard; damage and mismatch are verdicts, not errors.

    Raises ``IndexInFuture`` or ``IndexDropped`` if what is expected is not within the log.
    """
    source = open_shard(files, data_dir, shard)
    records = kept_snapshots(source)
    is_whole = _is_whole(source, source.last_index)
    proof = Proof(shard, Verdict.EQUAL)
    if expected is not None:
        first_index = records[0].index if records and not is_whole else source.first_index
        if expected.index > source.last_index:
            raise IndexInFuture(expected.index, first_index, source.last_index)
        if expected.index < first_index:
            raise IndexDropped(expected.index, first_index, source.last_index)
        proof = replace(proof, expected_index=expected.index, expected_hash=expected.text)
    elif not records:
        message = (
            "no snapshot is kept; make one with onelog log snapshot, "
            f"or onelog admin snapshot {shard} while a server runs"
        )
        proof = replace(proof, verdict=Verdict.NOTHING, message=message)
    if not records and not is_whole:
        return proof
    reader = ReadOnlyFiles(files)
    try:
        if records:
            newest = records[-1]
            proof = replace(proof, index=newest.index, manifest_hash=newest.state_hash)
            # One state at a time: each may fill the memory.
            loaded = _load(reader, source, newest, progress)
            proof = replace(proof, snapshot_hash=hash_text(loaded.router))
            del loaded
        state = fresh_projections() if is_whole else _load(reader, source, records[0], progress)
        proof = replace(proof, base_index=state.router.applied_index)
        proof = _replay(proof, source, state, records, progress)
    except _InsideGroup as error:
        return replace(proof, verdict=Verdict.NOTHING, message=str(error))
    except StateMismatch as error:
        return replace(proof, verdict=Verdict.MISMATCH, message=str(error))
    except (DataError, IndexDropped, LogGap, OSError) as error:
        return replace(proof, verdict=Verdict.DAMAGED, message=str(error))
    at_snapshot = {proof.replayed_hash, proof.snapshot_hash, proof.manifest_hash}
    for index, hashes in (
        (proof.index, at_snapshot),
        (proof.expected_index, {proof.found_hash, proof.expected_hash}),
    ):
        if len(hashes) > 1:
            return replace(
                proof,
                verdict=Verdict.MISMATCH,
                message=f"the state at index {index} differs; keep this directory for an "
                "analysis and rebuild this replica from a peer",
            )
    return proof


def _replay(
    proof: Proof,
    source: OfflineLog,
    state: Projections,
    records: tuple[SnapshotRecord, ...],
    progress: Progress,
) -> Proof:
    """Replay to the end; stop where hashes are compared, and compare snapshots on the way."""
    router = state.router
    start = router.applied_index
    hashes = {record.index: record.state_hash for record in records[:-1]}
    end = max(find_committed(source), proof.expected_index)
    found: dict[int, str] = {}
    for index in sorted({proof.index, proof.expected_index, end} - {0}):
        replay(
            router,
            source.entries(router.applied_index + 1, index),
            last_index=index,
            hashes=hashes,
            progress=progress,
        )
        if router.applied_index != index:
            if index == proof.expected_index:
                raise _InsideGroup(f"index {index} is inside a group, where no server has a state")
            raise LogGap(router.applied_index + 1, index)
        found[index] = hash_text(router)
    return replace(
        proof,
        entry_count=max(proof.index - start, 0),
        replayed_hash=found.get(proof.index),
        found_hash=found.get(proof.expected_index),
        end_index=router.applied_index,
        end_hash=hash_text(router),
    )


def _is_whole(source: OfflineLog, last_index: int) -> bool:
    """Return whether every entry from index 1 exists: nothing dropped, nothing compacted."""
    return source.first_index == 1 and not any(
        isinstance(part.segment, SealedSegment) and part.segment.is_compacted
        for part in source.parts
        if part.first_index <= last_index
    )


def _load(
    files: Files, source: OfflineLog, record: SnapshotRecord, progress: Progress
) -> Projections:
    """Load a snapshot; the caller compares the hash of its state."""
    path = source.paths.snapshots / record.file
    reader = open_recorded(files, path, source.shard, record)
    reader.verify(progress)
    state = fresh_projections()
    load_state(reader, state.router, progress)
    if record.index > source.last_index:
        rule = f"is at index {record.index}, the log ends at {source.last_index}"
        raise CorruptSnapshot(str(path), rule)
    return state


# Verification

ADVICE_DAMAGED = (
    "run onelog log repair, which sets it aside: another snapshot, or the whole log, leads to the "
    "state as well"
)


def verify_snapshot(files: Files, path: Path) -> list[Finding]:
    """Check one ``.fsnap`` file completely."""
    if parse_snapshot_name(path.name) is None:
        return [_foreign(path)]
    shard, manifest_path = int(path.parent.parent.name), path.parent.parent / "MANIFEST"
    manifest = _load_shard_manifest(files, manifest_path)
    if manifest is None:
        return _check(path, lambda: SnapshotReader.open(files, path))
    for record in manifest.snapshots:
        if record.file == path.name:
            return _check(path, partial(open_recorded, files, path, shard, record))
    first_index = manifest.checkpoint.first_index
    if manifest.snapshots or first_index == 1:
        return [_leftover(path, Remove(path, "not listed in MANIFEST"))]
    damage = _check(path, lambda: SnapshotReader.open(files, path))
    if damage:
        return damage
    message = f"MANIFEST lists no snapshot, and the log begins at {first_index}"
    remedy = found.RebuildManifest(manifest_path, shard)
    advice = found.ADVICE_REPAIR
    return [Finding(Level.ERROR, path, None, "UNLISTED_SNAPSHOT", message, advice, remedy)]


def find_snapshots(files: Files, directory: Path, shard: int) -> list[FoundSnapshot]:
    """Return the snapshots of a shard that can be loaded, ascending by index.

    Of several at one index only the newest counts. Damaged ones are left out: callers report
    them as well.
    """
    by_index: dict[int, FoundSnapshot] = {}
    for name in files.list(directory):
        parsed = parse_snapshot_name(name)
        if parsed is None or parsed.is_temporary:
            continue
        with suppress(CorruptSnapshot, UnknownVersion, OSError):
            reader = SnapshotReader.open(files, directory / name)
            header = reader.header
            if header.shard != shard:
                continue
            reader.verify()
            state = fresh_projections()
            load_state(reader, state.router)
            state_hash = hash_text(state.router)
            by_index[header.index] = FoundSnapshot(
                SnapshotRecord(name, header.index, header.term, header.size, state_hash),
                Base(header.index, header.proposal, header.term, header.timestamp_ns),
            )
    return [by_index[index] for index in sorted(by_index)]


def _check(path: Path, open_reader: Callable[[], SnapshotReader]) -> list[Finding]:
    try:
        open_reader().verify()
    except UnknownVersion as error:
        message, advice = str(error), found.ADVICE_UPGRADE
        return [Finding(Level.ERROR, path, None, error.reason, message, advice)]
    except CorruptSnapshot as error:
        remedy = found.SetAside(path, path.parent.parent / "MANIFEST")
        where, advice = error.offset, ADVICE_DAMAGED
        return [Finding(Level.ERROR, path, where, error.reason, error.rule, advice, remedy)]
    return []


def verify_temporary(_files: Files, path: Path) -> list[Finding]:
    """Report a snapshot that is being built, or that an interrupted build left."""
    named = parse_snapshot_name(path.name)
    if named is None or not named.is_temporary:
        return [_foreign(path)]
    return [_leftover(path, Remove(path, "being built, or left by an interrupted build"))]


VERIFIERS: Mapping[str, FileVerifier] = MappingProxyType(
    {".fsnap": verify_snapshot, ".tmp": verify_temporary}
)


def _load_shard_manifest(files: Files, path: Path) -> Manifest | None:
    """Return a MANIFEST, if it can be read."""
    try:
        return load_manifest(files, path, durable=False)
    except (DataError, OSError):
        return None  # reported where MANIFEST itself is checked


def _leftover(path: Path, remedy: Remove) -> Finding:
    advice = found.ADVICE_OPENING
    return Finding(Level.LEFTOVER, path, None, "LEFTOVER", remedy.why, advice, remedy)


def _foreign(path: Path) -> Finding:
    message = "not a snapshot's name"
    return Finding(Level.FOREIGN, path, None, "FOREIGN", message, found.ADVICE_LEAVE)
