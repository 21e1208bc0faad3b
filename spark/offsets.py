"""Offsets of a streaming query: how far each shard was read, with a checksum as proof.

::

    {"cluster": "0f9a1c3e-…", "0": 812, "1": 799, "crc32c": {"0": "9d41c0a2", "1": "00c4f6d1"}}

``crc32c`` holds the header checksum of the last entry read from each shard. It covers the entry's
index, term and time as well as its payload. A log that was restored from an older copy and has
grown since has a different entry at that index, with another term and time. Conversely, two logs
with the same entry at an index have the same entries before it.

A shard has no checksum if nothing was read of it, or if the entry was no longer kept when the
offset was made. Offsets of earlier versions have none at all: only cluster and index are compared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onelog.errors import FailedPrecondition
from onelog.spark.origin import Checksums, Cut, Origin

_CLUSTER = "cluster"
_CHECKSUMS = "crc32c"


@dataclass(frozen=True, slots=True)
class Offset:
    """The last entry that was read of each shard; 0: none."""

    cluster_id: str
    indexes: dict[int, int]
    checksums: dict[int, int] = field(default_factory=dict)

    @classmethod
    def decode(cls, values: Mapping[str, Any]) -> "Offset":
        """Return the offset that a checkpoint holds."""
        return cls(
            str(values.get(_CLUSTER)),
            {int(name): int(index) for name, index in values.items() if name.isdigit()},
            {int(name): int(text, 16) for name, text in values.get(_CHECKSUMS, {}).items()},
        )

    def encode(self) -> dict[str, Any]:
        """Return what Spark keeps as JSON: equal offsets have equal texts."""
        checksums = {str(shard): f"{crc:08x}" for shard, crc in sorted(self.checksums.items())}
        return {
            _CLUSTER: self.cluster_id,
            **{str(shard): index for shard, index in sorted(self.indexes.items())},
            **({_CHECKSUMS: checksums} if checksums else {}),
        }

    def refuse_other_log(self, cut: Cut, name: str) -> None:
        """Refuse a log of another cluster, with other shards, or that ends before this offset."""
        if self.cluster_id != cut.cluster_id:
            raise FailedPrecondition(
                f"the checkpoint is of cluster {self.cluster_id}, and {name} is cluster "
                f"{cut.cluster_id}; begin with a new checkpoint",
                reason="CHECKPOINT_OF_ANOTHER_CLUSTER",
            )
        for each in cut.shards:
            if each.shard not in self.indexes:
                raise FailedPrecondition(
                    f"the checkpoint has no shard {each.shard}: the option shards has changed",
                    reason="CHECKPOINT_OTHER_SHARDS",
                )
            if self.indexes[each.shard] > each.last_index:
                raise FailedPrecondition(
                    f"the checkpoint has read shard {each.shard} up to "
                    f"{self.indexes[each.shard]}, and the log ends at {each.last_index}: it is of "
                    "another log, or the log was restored; begin with a new checkpoint",
                    reason="CHECKPOINT_AHEAD",
                )

    def refuse_other_entries(self, found: Checksums) -> None:
        """Refuse a log with other entries; ``found``: checksums by shard and index."""
        for shard, crc in self.checksums.items():
            place = shard, self.indexes[shard]
            if found.get(place, crc) != crc:
                raise FailedPrecondition(
                    f"entry {place[1]} of shard {shard} is not the one that the checkpoint has "
                    "read: the log was restored to an earlier state and has grown since; begin "
                    "with a new checkpoint",
                    reason="CHECKPOINT_DIFFERS",
                )


def prove(origin: Origin, start: Offset, end: Offset) -> Offset:
    """Return the end of a batch with its checksums; refuse a log that was restored.

    Shards without new entries are not read: they keep the checksum that they had.
    """
    found = origin.checksums(sorted(set(_places(start, end))))
    start.refuse_other_entries(found)
    end.refuse_other_entries(found)
    checksums = {}
    for shard, index in end.indexes.items():
        is_same = index == start.indexes[shard]
        crc = start.checksums.get(shard) if is_same else None
        crc = found.get((shard, index)) if crc is None else crc
        if crc is not None:
            checksums[shard] = crc
    return replace(end, checksums=checksums)


def _places(start: Offset, end: Offset) -> Iterator[tuple[int, int]]:
    for shard, index in end.indexes.items():
        has_news = index > start.indexes[shard]
        if has_news and shard in start.checksums:
            yield shard, start.indexes[shard]
        if index and (has_news or shard not in start.checksums):
            yield shard, index
