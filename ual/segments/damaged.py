"""A stand-in for a sealed segment that turned out to be damaged: nothing of it is served.

It keeps the place of the segment, so that its neighbours still touch. Whoever asks for an entry of
its range is told what is wrong with the file, until a peer's copy takes its place.
"""

from pathlib import Path
from typing import NoReturn

from onelog.ual.errors import CorruptFile
from onelog.ual.segments.format import SegmentHeader


class DamagedSegment:
    """One ``.flseg`` file that must not be read."""

    __slots__ = (
        "entry_count", "first_index", "first_proposal", "first_timestamp_ns", "header",
        "last_index", "last_timestamp_ns", "offset", "path", "rule",
    )  # fmt: skip

    is_compacted = False

    def __init__(
        self, path: Path, header: SegmentHeader, rule: str, offset: int | None = None
    ) -> None:
        """``header``: of the file, or as much of it as its neighbours tell."""
        self.path = path
        self.header = header
        self.rule = rule
        self.offset = offset
        self.first_index = header.first_index
        self.last_index = header.last_index
        self.first_proposal = header.first_proposal
        self.first_timestamp_ns = header.first_timestamp_ns
        self.last_timestamp_ns = header.last_timestamp_ns
        self.entry_count = header.entry_count

    def refuse(self) -> NoReturn:
        """Say what is wrong instead of an answer."""
        raise CorruptFile(str(self.path), f"set aside as damaged: {self.rule}", self.offset)
