"""Everything that snapshots can refuse or report, as one tree.

::

    SnapshotError
    ├── CorruptSnapshot     (also ual's CorruptFile) a .fsnap file is not what was written
    ├── StateMismatch       replay and record disagree about the state at an index: raise an alarm
    ├── NoSnapshot          nothing to start from: no snapshot is usable and the log is not whole
    ├── LogGap              entries that a replay needs are not in the log
    ├── SnapshotAhead       the log ends below a snapshot that was made from it
    ├── NotDurable          the index cannot be snapshotted yet: it is not synced here
    └── BuilderError        the building process
        ├── BuilderFailed       said what went wrong, or died
        ├── BuilderTimeout      exceeded its time limit
        └── BuilderCancelled    was cancelled

A damaged snapshot is not a loss while an older one or the whole log exists. ``StateMismatch``
always is serious: either this code or this machine computes wrongly.
"""

from onelog.ual.errors import CorruptFile, UalError


class SnapshotError(UalError):
    """Base of every error that this package raises on purpose."""

    reason = "SNAPSHOT_ERROR"


class CorruptSnapshot(SnapshotError, CorruptFile):
    """A snapshot breaks ``rule`` at ``offset``, in ``section`` if it is inside of one."""

    reason = "CORRUPT_SNAPSHOT"

    def __init__(
        self, path: str, rule: str, offset: int | None = None, section: int | None = None
    ) -> None:
        within = "" if section is None else f"section 0x{section:02x}: "
        CorruptFile.__init__(self, path, within + rule, offset)
        self.section = section


class StateMismatch(SnapshotError):
    """Two ways to the state at ``index`` give different states."""

    reason = "STATE_MISMATCH"

    def __init__(self, index: int, expected: str, found: str, what: str) -> None:
        super().__init__(
            f"state hash {found} at index {index}, {what} says {expected}; keep this directory "
            "for an analysis and rebuild this replica from a peer"
        )
        self.index = index
        self.expected = expected
        self.found = found


class NoSnapshot(SnapshotError):
    """The state cannot be rebuilt from what this directory holds."""

    reason = "NO_SNAPSHOT"


class LogGap(SnapshotError):
    """The log does not hold ``first_index`` to ``last_index``, which a replay needs."""

    reason = "LOG_GAP"

    def __init__(self, first_index: int, last_index: int) -> None:
        super().__init__(f"the log does not hold the entries {first_index} to {last_index}")
        self.first_index = first_index
        self.last_index = last_index


class SnapshotAhead(SnapshotError):
    """A kept snapshot is at ``index``, the log that it was made from ends at ``last_index``."""

    reason = "SNAPSHOT_AHEAD"

    def __init__(self, path: str, index: int, last_index: int) -> None:
        super().__init__(
            f"{path} is at index {index}, but the log ends at {last_index}; restore the missing "
            "segments from a backup or rebuild this replica from a peer"
        )
        self.index = index
        self.last_index = last_index


class NotDurable(SnapshotError):
    """``index`` is applied but not synced on this replica; ask again after the next sync."""

    reason = "NOT_DURABLE"

    def __init__(self, index: int, durable_index: int) -> None:
        super().__init__(f"index {index} is applied, but only {durable_index} is durable here")
        self.index = index
        self.durable_index = durable_index


class BuilderError(SnapshotError):
    """The builder ended without a snapshot; the shard is as before."""

    reason = "BUILDER_ERROR"


class BuilderFailed(BuilderError):
    """The builder reported an error (``cause`` is its reason) or died.

    ``damage``: the damaged file that it met.
    """

    reason = "BUILDER_FAILED"

    def __init__(self, cause: str, message: str, damage: CorruptFile | None = None) -> None:
        super().__init__(f"the snapshot builder failed ({cause}): {message}")
        self.cause = cause
        self.damage = damage


class BuilderTimeout(BuilderError):
    """The builder did not finish in time and was killed."""

    reason = "BUILDER_TIMEOUT"


class BuilderCancelled(BuilderError):
    """The builder was cancelled, or lost the process that started it."""

    reason = "BUILDER_CANCELLED"
