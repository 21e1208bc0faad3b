"""What recovery found necessary to make a segment directory match its log, and the doing of it.

The list is made by ``survey`` (ual/recovery.py), which only reads. Interrupted, it is made and done
again; afterwards there is nothing to do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onelog.ual.files import Files
from onelog.ual.segments.format import SegmentKind, parse_segment_name


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove a file that has no part in the log."""

    path: Path
    why: str


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut a file to ``size`` bytes."""

    path: Path
    size: int
    size_before: int
    why: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Give a successor its name, behind a file that must be durable first."""

    path: Path
    behind: Path
    why: str = "an interrupted change to the next file"

    @property
    def target(self) -> Path:
        """The path that it gets."""
        return self.path.with_suffix(Path(SegmentKind.UNSEALED.value).suffix)


Action = Remove | Cut | Adopt


def carry_out(files: Files, directory: Path, actions: Sequence[Action]) -> None:
    """Do what a survey found necessary; interrupted, it is surveyed and done again.

    Tombstones are listed last. They go only once the removals before them are durable, or a
    crash could bring a dropped file back with nothing to say that it was dropped.
    """
    data = [action for action in actions if not _is_tombstone(action)]
    for action in data:
        match action:
            case Remove(path):
                files.remove(path)
            case Cut(path, size):
                file = files.open(path)
                file.truncate(size)
                file.sync()
            case Adopt(path, behind):
                files.open(behind).sync()
                files.open(path).sync()
                files.rename(path, action.target)
    if data:
        files.sync_directory(directory)
    tombstones = [action for action in actions if _is_tombstone(action)]
    for action in tombstones:
        files.remove(action.path)
    if tombstones:
        files.sync_directory(directory)


def _is_tombstone(action: Action) -> bool:
    parsed = parse_segment_name(action.path.name)
    return parsed is not None and parsed[1] is SegmentKind.TOMBSTONE
