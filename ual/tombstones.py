"""Deleting segments so that a crash cannot bring one back.

A tombstone is an empty file that says: the segment of this name is dropped. It is durable before
the data goes and stays until the data is durably gone. Whatever the disk remembers of a half-done
deletion, the next survey (ual/recovery.py) finds either the tombstone and finishes, or nothing.
"""

from collections.abc import Sequence
from pathlib import Path

from ual.files import Files
from ual.segment_format import tomb_name
from ual.segment_set import Segment


def remove_segments(files: Files, directory: Path, segments: Sequence[Segment]) -> None:
    """Delete the files of these segments; readers that have them mapped go on."""
    tombstones = [directory / tomb_name(segment.first_index) for segment in segments]
    for path in tombstones:
        if not files.exists(path):
            files.open(path, create=True)
    files.sync_directory(directory)
    for segment in segments:
        files.remove(segment.path)
    files.sync_directory(directory)
    for path in tombstones:
        files.remove(path)
    files.sync_directory(directory)
