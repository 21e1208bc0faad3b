"""The blocking halves of a sync and a seal, to be run on whichever thread may block.

A job is made by the log with everything it needs, touches nothing that the log's own thread
changes, and keeps its error: the log's thread learns of it when it hands the job back, so a
failure always surfaces where the log's state is decided.
"""

from dataclasses import dataclass

from ual.errors import UalError
from ual.files import File, Files
from ual.notes import SegmentNotes
from ual.sealed import SealedSegment
from ual.sealing import seal_segment
from ual.unsealed import UnsealedSegment


@dataclass(slots=True)
class SyncJob:
    """One fdatasync and what it will have covered. ``run`` may be called on any thread."""

    file: File
    generation: int
    index: int
    position: int
    done: bool = False
    error: OSError | None = None

    def run(self) -> None:
        """Block until the bytes are on disk; a failure is reported by ``Log.sync_finish``."""
        try:
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
