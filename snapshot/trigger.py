"""When a snapshot is due: a pure function, tested without waiting.

The cost of a snapshot is proportional to the size of the state; it saves the replay of the log
since the last one. So it is due when the log has grown by the size of the last snapshot, but by at
least ``log_bytes_min``: the total cost of snapshots stays within that of the log itself. A slow
trickle of changes is saved after ``interval_s``, so that a restart never replays days.

After a failed build the next one waits ``retry_s``: what made it fail (a full disk, a damaged file)
seldom passes in a second, and building is not free.
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class TriggerConfig:
    """How often snapshots are made."""

    # Less means shorter restarts and more writing while the state is small.
    log_bytes_min: int = 64 << 20
    # Bounds what a restart replays when there is little traffic.
    interval_s: float = 600.0
    # How long a failed build is left alone.
    retry_s: float = 60.0

    def __post_init__(self) -> None:
        """Refuse limits that would make snapshots without end."""
        if self.log_bytes_min < 1 or self.interval_s <= 0 or self.retry_s <= 0:
            raise ValueError("the limits of a snapshot trigger must be positive")


@dataclass(frozen=True, slots=True)
class Growth:
    """The growth since the last snapshot, or since the log began."""

    applied_entries: int
    log_bytes: int
    last_snapshot_bytes: int  # 0: there is none
    elapsed_s: float  # by the monotonic clock, since the last one, or since the shard opened
    since_failure_s: float | None = None  # since the last build failed; None: it did not


class Cause(Enum):
    """Why a snapshot is due."""

    SIZE = "size"
    AGE = "age"


def snapshot_due(growth: Growth, config: TriggerConfig) -> Cause | None:
    """Return why a snapshot should be made now; None if it is not due."""
    if growth.applied_entries == 0:
        return None
    if growth.since_failure_s is not None and growth.since_failure_s < config.retry_s:
        return None
    if growth.log_bytes >= max(config.log_bytes_min, growth.last_snapshot_bytes):
        return Cause.SIZE
    if growth.elapsed_s >= config.interval_s:
        return Cause.AGE
    return None
