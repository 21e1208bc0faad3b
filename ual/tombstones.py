"""Deleting segments so that a crash cannot bring one back.

A tombstone is an empty file that says: the segment of this name is dropped. It is durable before
the data goes and stays until the data is durably gone. Whatever the disk remembers of a half-done
deletion, the next survey (ual/recovery.py) finds either the tombstone and finishes, or nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from onelog.ual.files import OUT_OF_SPACE, Files
from onelog.ual.segments.chain import Segment
from onelog.ual.segments.format import tomb_name


def remove_segments(files: Files, directory: Path, segments: Sequence[Segment]) -> None:
    """Delete the files of these segments; readers that have them mapped go on."""
    tombstones = []
    try:
        for segment in segments:
            path = directory / tomb_name(segment.first_index)
            if not files.exists(path):
                files.open(path, create=True)
            tombstones.append(path)
    except OSError as error:
        # Dropping is what frees a full disk. It can do without: MANIFEST has the new start.
        if error.errno not in OUT_OF_SPACE:
            raise
    files.sync_directory(directory)
    for segment in segments:
        files.remove(segment.path)
    files.sync_directory(directory)
    for path in tombstones:
        files.remove(path)
    files.sync_directory(directory)
