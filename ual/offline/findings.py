"""What verification reports, and what repair could do about it.

A ``Finding`` is one fact about one file. Its level says who has to act:

* ``error``: data or a promise is damaged; the log will not open, or must not be trusted.
* ``tail``: what an interrupted write leaves; opening the log cuts or rewrites it by itself.
* ``leftover``: a file of an interrupted job; opening the log, or the next such job, removes it.
* ``foreign``: a name that is not onelog's; it is left alone.
* ``note``: worth knowing, nothing to do.

``reason`` is stable and meant for programs; ``message`` and ``advice`` are for people. ``remedy``
is what ``onelog log repair`` can do; an error without one cannot be repaired here.
"""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from onelog.ual.tidying import Adopt, Cut, Remove

# Every reason that verification of a log gives; docs/operations.md explains each.
REASONS = frozenset((
    "COMMIT_BEYOND_END", "ENTRY_DAMAGED", "FILE_CHECKSUM", "FOOTER_DAMAGED", "FOREIGN",
    "HEADER_DAMAGED", "INTERRUPTED_CUT", "INTERRUPTED_SEAL", "LEFTOVER", "MANIFEST_DAMAGED",
    "MANIFEST_MISSING", "MISSING_END", "MISSING_RANGE", "NODE_DAMAGED", "NOTES_DAMAGED",
    "NO_HEADER", "OVERLAP", "RAFT_HINT", "RAFT_LOST", "RAFT_SLOT", "READ_FAILED", "SHARD_MISSING",
    "SYSTEM_DAMAGED", "TABLE_DAMAGED", "TOO_SHORT", "TORN_TAIL", "UNFINISHED_ROLL",
    "UNKNOWN_VERSION", "UNUSED_SUMMARY", "WRONG_NAME", "WRONG_ORDER", "WRONG_PROPOSAL",
    "WRONG_SHARD",
))  # fmt: skip

ADVICE_PEER = "restore the file from a backup, or rebuild this replica from a peer"
ADVICE_REPAIR = "run onelog log repair"
ADVICE_OPENING = "nothing to do: opening the log puts it right, and so does onelog log repair"
ADVICE_LEAVE = "nothing to do; move it away if it is not meant to be here"
ADVICE_UPGRADE = "use the onelog that wrote it, or a newer one"
ADVICE_DISK = "check the disk and the permissions, then verify again"


class Level(Enum):
    """Who has to act; see the module."""

    ERROR = "error"
    TAIL = "tail"
    LEFTOVER = "leftover"
    FOREIGN = "foreign"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class RebuildTables:
    """Write a sealed segment again from its intact entries, streams and voids."""

    path: Path
    shard: int


@dataclass(frozen=True, slots=True)
class RewriteHardState:
    """Write a RAFT file's bad slot from the good one, and blank a bad hint."""

    path: Path


@dataclass(frozen=True, slots=True)
class RebuildManifest:
    """Make a shard's MANIFEST again from its segments and the hint in RAFT."""

    path: Path
    shard: int


Remedy = Cut | Remove | Adopt | RebuildTables | RewriteHardState | RebuildManifest


@dataclass(frozen=True, slots=True)
class Finding:
    """One fact about one file."""

    level: Level
    path: Path
    offset: int | None
    reason: str
    message: str
    advice: str
    remedy: Remedy | None = None
