"""Finding the snapshot to start from: the newest usable one.

MANIFEST says which files there are and what they must hold. A candidate is accepted only if the
file agrees with its record (index, term, size), all checksums hold, its sections load, and the
state that comes out has the hash in the record. A snapshot that fails any of this is reported and
the next older one is tried; the log is kept from the older one on, so nothing is lost by that.

Only damage is handled this way. A file of a newer onelog, a missing permission or a lack of memory
is raised, because another snapshot would not help.
"""

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from onelog.snapshot.errors import CorruptSnapshot
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.progress import Progress, no_progress
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import StateT, hash_text, load_state
from onelog.ual.files import Files
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.notes import ApplyNotes

# The errors of a disk for a lost file.
_LOST = (errno.EIO, errno.ENOENT, errno.EBADMSG, errno.EUCLEAN)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A snapshot that cannot be used, and why."""

    record: SnapshotRecord
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Loaded(Generic[StateT]):
    """An accepted snapshot: the state, and the notes about entries that were not sealed then."""

    record: SnapshotRecord
    header: SnapshotHeader
    state: StateT
    notes: CoveredNotes


def load_newest(
    files: Files,
    directory: Path,
    shard: int,
    records: Iterable[SnapshotRecord],
    make_state: Callable[[ApplyNotes], StateT],
    notes: ApplyNotes,
    *,
    notes_from_index: int | None = None,
    progress: Progress = no_progress,
) -> tuple[Loaded[StateT] | None, list[Rejected]]:
    """Load the newest usable snapshot of ``records``, which ascend by index.

    ``notes`` is what the states are made with. ``notes_from_index`` is the first entry about which
    notes are needed: a snapshot that lacks them cannot be used.
    """
    rejected: list[Rejected] = []
    for record in reversed(list(records)):
        path = directory / record.file
        try:
            # In a call of its own, so that a rejected state is freed before the next is loaded.
            return (
                _load(files, path, shard, record, make_state, notes, notes_from_index, progress),
                rejected,
            )
        except CorruptSnapshot as error:
            rejected.append(Rejected(record, str(error)))
        except OSError as error:
            if error.errno not in _LOST:
                raise
            rejected.append(Rejected(record, f"{path}: {error.strerror}"))
    return None, rejected


def _load(
    files: Files,
    path: Path,
    shard: int,
    record: SnapshotRecord,
    make_state: Callable[[ApplyNotes], StateT],
    notes: ApplyNotes,
    notes_from_index: int | None,
    progress: Progress,
) -> Loaded[StateT]:
    reader = open_recorded(files, path, shard, record)
    reader.verify(progress)
    state = make_state(notes)
    covered = load_state(reader, state.router, progress)
    found = hash_text(state.router)
    if found != record.state_hash:
        rule = f"state hash {found} after loading, MANIFEST says {record.state_hash}"
        raise CorruptSnapshot(str(path), rule)
    if notes_from_index is not None and covered.first_index > notes_from_index:
        rule = f"notes from index {covered.first_index}, needed from {notes_from_index}"
        raise CorruptSnapshot(str(path), rule)
    return Loaded(record, reader.header, state, covered)


def open_recorded(files: Files, path: Path, shard: int, record: SnapshotRecord) -> SnapshotReader:
    """Open a snapshot and compare its header with MANIFEST's record."""
    reader = SnapshotReader.open(files, path)
    header = reader.header
    for name, found, expected in (
        ("shard", header.shard, shard),
        ("index", header.index, record.index),
        ("term", header.term, record.term),
        ("size", header.size, record.size),
    ):
        if found != expected:
            raise CorruptSnapshot(str(path), f"{name} {found} where MANIFEST says {expected}", 0)
    return reader
