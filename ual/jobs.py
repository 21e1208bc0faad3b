"""The blocking halves of what a log does, to run on a thread that may block.

The log creates a job with everything it needs. A job touches nothing that the log's own thread
changes, and keeps its error: the log's thread learns of it when it finishes the job, so a failure
always surfaces where the log's state is decided.

Segments are deleted so that a crash cannot bring one back. A tombstone is an empty file that says
that the segment of this name is dropped. It is durable before the data is removed and stays until
the removal is durable. Whatever part of a deletion the disk kept, the next survey
(ual/recovery.py) finds the tombstone and finishes, or finds nothing.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

from onelog.ual.errors import UalError
from onelog.ual.files import EXHAUSTED, File, Files, remove_files, sync_new_name
from onelog.ual.manifest import Manifest
from onelog.ual.manifest import save as write_manifest
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.format import successor_name, tomb_name
from onelog.ual.segments.notes import SegmentNotes
from onelog.ual.segments.sealed import DamagedSegment, SealedSegment
from onelog.ual.segments.sealing import seal_segment
from onelog.ual.segments.unsealed import UnsealedSegment


def remove_segments(files: Files, directory: Path, segments: Sequence[Segment]) -> None:
    """Delete the files of these segments; readers that have them mapped can continue."""
    tombstones = []
    try:
        for segment in segments:
            path = directory / tomb_name(segment.first_index)
            if not files.exists(path):
                files.open(path, create=True)
            tombstones.append(path)
    except OSError as error:
        # Dropping frees a full disk, so it must work without: MANIFEST has the new start.
        if error.errno not in EXHAUSTED:
            raise
    files.sync_directory(directory)
    for segment in segments:
        # A segment that is set aside because its file is lost has none to remove.
        if not isinstance(segment, DamagedSegment) or files.exists(segment.path):
            files.remove(segment.path)
    files.sync_directory(directory)
    for path in tombstones:
        files.remove(path)
    files.sync_directory(directory)


# Jobs


@dataclass(slots=True)
class Roll:
    """The change from a full segment to its successor, which is appended to already.

    The successor gets its final name last: the name guarantees that the file before it is synced
    to its end and that the successor has a header. ``run`` does the work once.
    """

    files: Files
    closing: UnsealedSegment
    successor: UnsealedSegment
    unsynced_bytes: int  # of the closing one
    _lock: Lock = field(default_factory=Lock)
    _is_done: bool = False
    _error: OSError | None = None

    def run(self) -> bool:
        """Block until it is done; return whether this call did it."""
        with self._lock:
            if self._error is not None:
                raise self._error  # a retry after a failed sync proves nothing
            if self._is_done:
                return False
            path = self.successor.path
            try:
                self.closing.file.sync()
                self.successor.file.sync()
                self.files.rename(path.with_name(successor_name(self.successor.first_index)), path)
                sync_new_name(self.files, path.parent)
            except OSError as error:
                self._error = error
                raise
            self._is_done = True
            return True


@dataclass(slots=True)
class SyncJob:
    """One fdatasync and what it will have covered. ``run`` may be called on any thread."""

    file: File
    generation: int
    index: int
    position: int
    roll: Roll | None = None  # includes the sync, if the file has just begun
    done: bool = False
    error: OSError | None = None

    def run(self) -> None:
        """Block until the bytes are on disk; a failure is reported by ``Log.sync_finish``."""
        try:
            if self.roll is None or not self.roll.run():
                self.file.sync()
            self.done = True
        except OSError as error:
            self.error = error


@dataclass(slots=True)
class SealJob:
    """The sealing of one closed segment. ``run`` may be called on any thread."""

    files: Files
    segment: UnsealedSegment
    notes: SegmentNotes
    sealed: SealedSegment | None = None
    error: OSError | UalError | None = None

    def run(self) -> None:
        """Write tables and footer, rename, and open the result."""
        segment = self.segment
        try:
            path = seal_segment(
                self.files,
                segment.path,
                segment.header,
                segment.offsets,
                segment.end,
                self.notes,
            )
            self.sealed = SealedSegment.open(self.files, path)
        except (OSError, UalError) as error:
            self.error = error


@dataclass(slots=True)
class ManifestJob:
    """The replacement of MANIFEST, then the removal of the files that it no longer lists.

    If the disk is full, ``added`` is removed instead: a file that only the new MANIFEST lists.

    ``run`` may be called on any thread, and on several: the work is done once, and every call
    returns when it is done.
    """

    files: Files
    path: Path
    before: Manifest
    after: Manifest
    segments: tuple[Segment, ...] = ()
    snapshots: tuple[Path, ...] = ()
    added: tuple[Path, ...] = ()
    is_decided: bool = False  # the new MANIFEST is durable
    error: OSError | None = None
    _lock: Lock = field(default_factory=Lock)
    _has_run: bool = False

    def run(self) -> None:
        """Write and remove; a failure is reported by ``ManifestFile.finish``."""
        with self._lock:
            if self._has_run:
                return
            self._has_run = True
            try:
                write_manifest(self.files, self.path, self.after)
                self.is_decided = True
                if self.segments:
                    remove_segments(self.files, self.segments[0].path.parent, self.segments)
                if self.snapshots:
                    remove_files(self.files, self.snapshots)
            except OSError as error:
                self.error = error
                # After any other error MANIFEST may be the new one.
                if not self.is_decided and error.errno in EXHAUSTED:
                    with suppress(OSError):
                        remove_files(self.files, self.added)
