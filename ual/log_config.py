"""Sizes and limits of a log, each with what depends on it."""

from dataclasses import dataclass

from onelog.ual.entry import GROUP_SIZE_MAX


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes and limits of one shard's log."""

    # Memory for the newest entries; readers and followers that keep up never touch a file.
    ring_bytes: int = 64 << 20
    # A segment closes before it would exceed any of these. Larger ones mean fewer files and a
    # longer scan after a crash; a segment's age bounds how long data waits to be sealed.
    segment_bytes_max: int = 64 << 20
    segment_entries_max: int = 1_000_000
    segment_age_ns_max: int = 3600 * 1_000_000_000
    # The window in which damage may be a torn write. Must hold the largest group. It belongs to
    # the directory, not to the operator: after a lower value, a torn tail of the old size would
    # be taken for corruption.
    unsynced_bytes_max: int = GROUP_SIZE_MAX
    # Below this much free space appends are refused; sealing and MANIFEST still may use it.
    free_bytes_min: int = 100 << 20

    def __post_init__(self) -> None:
        """Refuse what could not work."""
        if min(self.segment_bytes_max, self.segment_entries_max, self.unsynced_bytes_max) < 1:
            raise ValueError("segment and sync limits must be positive")
        if self.segment_bytes_max + self.unsynced_bytes_max >= 1 << 32:
            raise ValueError("a segment must stay below 4 GiB: its offsets are 32-bit numbers")
