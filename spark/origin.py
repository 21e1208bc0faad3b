"""Where entries come from: what a directory, a cluster and an archive have in common.

An ``Origin`` is named by a string (a path, or endpoints). Three of its methods carry a read:

* ``cut`` says how far each shard can be read. It is called once, on the driver, when a table is
  loaded: every query of that table sees the same cut, which has everything acknowledged before.
* ``splits`` says which parts of the log tasks read. It is called on the driver for each query. A
  split begins and ends where groups do, so that no transaction is divided.
* ``blocks`` yields the verified entries of a split, in a task.

An origin pickles: it holds names and settings, but no connection and no open file.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from onelog.spark.columns.block import Block
from onelog.spark.columns.selection import Selection

# About how many bytes of the log one task reads; a split has whole groups.
SPLIT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class ShardCut:
    """What can be read of one shard: from ``first_index`` to ``last_index``, both included.

    ``last_index`` ends a group. An empty shard has ``last_index == first_index - 1``.
    """

    shard: int
    first_index: int  # the first entry that is kept
    last_index: int
    timestamp_ns: int  # log time of the last entry; 0: the shard is empty
    first_timestamp_ns: int = 0  # log time of the first entry that is kept


@dataclass(frozen=True, slots=True)
class Cut:
    """How far a table reads: one index in the log of each shard."""

    cluster_id: str
    shard_count: int
    shards: tuple[ShardCut, ...]  # those that were asked for, in order of their numbers
    note: str = ""  # for the user: a directory may end before the log of its server


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one shard, both ends included."""

    shard: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads: whole groups of one shard."""

    shard: int
    first_index: int
    last_index: int
    size_bytes: int  # approximate, for progress


def join_splits(parts: Iterable[Split], size_bytes: int) -> list[Split]:
    """Join neighbours as long as together they do not exceed the size of a split."""
    joined: list[Split] = []
    for part in parts:
        last = joined[-1] if joined else None
        if (
            last is not None
            and last.shard == part.shard
            and last.last_index + 1 == part.first_index
            and last.size_bytes + part.size_bytes <= size_bytes
        ):
            size = last.size_bytes + part.size_bytes
            joined[-1] = Split(part.shard, last.first_index, part.last_index, size)
        else:
            joined.append(part)
    return joined


# Names of queues by shard, then by id: ids are unique within a shard only.
QueueNames = dict[int, dict[int, str]]
# The crc32c of entries, by shard and index.
Checksums = dict[tuple[int, int], int]


class Origin(Protocol):
    """A source of entries; see the module's docstring."""

    name: str  # as the user gave it, for messages

    def cut(self, shards: Sequence[int] | None = None) -> Cut:
        """Return how far each shard can be read now; ``shards``: only these."""
        ...

    def splits(
        self, ranges: Sequence[Range], selection: Selection, size_bytes: int = SPLIT_BYTES
    ) -> list[Split]:
        """Return the parts of some ranges that can hold wanted entries, in order."""
        ...

    def blocks(self, split: Split, selection: Selection) -> Iterator[Block]:
        """Yield the wanted entries of a split, verified and without those that were refused."""
        ...

    def group_end(self, shard: int, index: int, last_index: int) -> int:
        """Return the last entry of the group that holds an index, at most ``last_index``."""
        ...

    def checksums(self, places: Sequence[tuple[int, int]]) -> Checksums:
        """Return the crc32c in the headers of single entries, by shard and index.

        Entries that are no longer kept are left out.
        """
        ...

    def queue_names(
        self, cut: Cut, wanted: Sequence[str] | None, namespaces: Sequence[str] | None = None
    ) -> QueueNames:
        """Return the queues whose names are known up to a cut.

        ``wanted``: names that must be found if they exist, even if much of the log is read.
        """
        ...
