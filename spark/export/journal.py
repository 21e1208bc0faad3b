"""The journal of an unfinished export, in its target: its plan, and what is done.

The journal of export N is ``_export/journal-00000N``. Each line is the crc32c of the rest as eight
hexadecimal digits, a space, and one JSON object. The first line is the plan: contents, cut and
splits. It is written whole before the first task starts. Each later line lists splits that were
completed together, with the facts of their files.

A crash may tear the last line. It is cut off and its splits are done again, which gives the same
files. Any other damaged line is refused.

The journal is removed once the receipt is written.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from crc32c import crc32c

from onelog.errors import DataLoss, FailedPrecondition
from onelog.spark.export.receipt import (
    SHARDS_MAX,
    Contents,
    FileFacts,
    Since,
    decode_cut,
    decode_range,
    encode_cut,
    encode_range,
)
from onelog.spark.export.target import OWN_DIRECTORY, AppendLog, Target
from onelog.spark.origin import Checksums, Range, ShardCut, Split
from onelog.ual.errors import CorruptFile
from onelog.ual.json_file import Fields

JOURNAL_VERSION = 1
SPLITS_MAX = 100_000  # of one export: 6 TiB of the log
JOURNAL_SIZE_MAX = 512 << 20
_CRC_SIZE = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """What an export does; the same for all of its runs."""

    number: int
    contents: Contents
    since: Since | None
    asked: str  # the ranges as requested, to recognise a rerun
    queue_names: tuple[tuple[int, int, str], ...]  # shard, id and name
    cut: tuple[ShardCut, ...]
    ranges: tuple[Range, ...]  # an empty one ends before it begins
    missing: tuple[Range, ...]
    splits: tuple[Split, ...]
    last_checksums: Checksums  # of the last entry of each range

    def encode(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        since = self.since
        return {
            "version": JOURNAL_VERSION,
            "number": self.number,
            "contents": self.contents.encode(),
            "since": None
            if since is None
            else {"number": since.number, "checksum": since.checksum},
            "asked": self.asked,
            "queue_names": [
                {"shard": shard, "id": number, "name": name}
                for shard, number, name in self.queue_names
            ],
            "cut": [encode_cut(each) for each in self.cut],
            "ranges": [encode_range(each) for each in self.ranges],
            "missing": [encode_range(each) for each in self.missing],
            "splits": [
                {
                    "shard": each.shard,
                    "first_index": each.first_index,
                    "last_index": each.last_index,
                    "bytes": each.size_bytes,
                }
                for each in self.splits
            ],
            "last_checksums": [
                {"shard": shard, "index": index, "crc32c": crc}
                for (shard, index), crc in self.last_checksums.items()
            ],
        }

    @classmethod
    def decode(cls, found: Fields) -> "Plan":
        """Return the plan in the first line of a journal."""
        since = None
        if found.values.get("since") is not None:
            row = found.nested("since")
            since = Since(row.integer("number", minimum=1), row.integer("checksum"))
        return cls(
            number=found.integer("number", minimum=1),
            contents=Contents.decode(found.nested("contents")),
            since=since,
            asked=found.text("asked", size_min=0, size_max=1 << 20),
            queue_names=tuple(
                (row.integer("shard"), row.integer("id"), row.text("name", size_max=1_000))
                for row in found.rows("queue_names", count_max=1 << 20)
            ),
            cut=tuple(decode_cut(row) for row in found.rows("cut", count_max=SHARDS_MAX)),
            ranges=tuple(decode_range(row) for row in found.rows("ranges", count_max=SHARDS_MAX)),
            missing=tuple(decode_range(row) for row in found.rows("missing", count_max=SHARDS_MAX)),
            splits=tuple(
                Split(
                    row.integer("shard", maximum=SHARDS_MAX),
                    row.integer("first_index"),
                    row.integer("last_index"),
                    row.integer("bytes"),
                )
                for row in found.rows("splits", count_max=SPLITS_MAX)
            ),
            last_checksums=_decode_checksums(found),
        )


def _decode_checksums(found: Fields) -> Checksums:
    if "last_checksums" not in found.values:
        return {}  # a journal of an earlier version
    return {
        (row.integer("shard"), row.integer("index")): row.integer("crc32c")
        for row in found.rows("last_checksums", count_max=SHARDS_MAX)
    }


@dataclass(frozen=True, slots=True)
class SplitFacts:
    """What one task did: the files of a split, and all entries that it read."""

    split: int  # its place in the plan
    entries: int
    mix: int
    files: tuple[FileFacts, ...]

    @property
    def rows(self) -> int:
        """How many rows were written."""
        return sum(each.rows for each in self.files)

    @property
    def size_bytes(self) -> int:
        """How many bytes were written."""
        return sum(each.size_bytes for each in self.files)

    def encode(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {
            "split": self.split,
            "entries": self.entries,
            "mix": self.mix,
            "files": [each.encode() for each in self.files],
        }

    @classmethod
    def decode(cls, found: Fields) -> "SplitFacts":
        """Return the facts in a line of a journal."""
        return cls(
            split=found.integer("split", maximum=SPLITS_MAX),
            entries=found.integer("entries"),
            mix=found.integer("mix"),
            files=tuple(FileFacts.decode(row) for row in found.rows("files", count_max=SPLITS_MAX)),
        )


def journal_name(number: int) -> str:
    """Return the name of the journal of an export."""
    return f"{OWN_DIRECTORY}/journal-{number:06d}"


class Journal:
    """The journal of one export; the holder of the target's lock writes it."""

    def __init__(self, log: AppendLog, plan: Plan, done: Sequence[SplitFacts]) -> None:
        self._log = log
        self.plan = plan
        self.done = {each.split: each for each in done}

    @classmethod
    def find(cls, target: Target, number: int, *, repair: bool = True) -> "Journal | None":
        """Return the journal that an interrupted export left; ``repair``: cut off a torn end."""
        name = journal_name(number)
        log = target.log(name)
        data = log.read()
        if not data:
            return None
        found, size = _decode_lines(name, data)
        if repair and size < len(data):
            log.keep(size)
        try:
            plan = Plan.decode(Fields(name, found[0]))
            done = [
                SplitFacts.decode(row)
                for line in found[1:]
                for row in Fields(name, line).rows("done", count_max=SPLITS_MAX)
            ]
        except CorruptFile as error:
            raise _damaged(str(error)) from error
        return cls(log, plan, done)

    @classmethod
    def begin(cls, target: Target, plan: Plan) -> "Journal":
        """Write the plan of a new export."""
        if len(plan.splits) > SPLITS_MAX:
            raise FailedPrecondition(
                f"{len(plan.splits)} splits, limit {SPLITS_MAX}; export a part with --to-index, "
                "then continue with --since",
                reason="EXPORT_TOO_LARGE",
            )
        log = target.log(journal_name(plan.number))
        log.create(_encode_line(plan.encode()))
        return cls(log, plan, ())

    def add(self, facts: Sequence[SplitFacts]) -> None:
        """Note splits that are done; durable when this returns."""
        # One line for all: a crash tears at most one write, and so only the last line.
        self._log.append(_encode_line({"done": [each.encode() for each in facts]}))
        self.done |= {each.split: each for each in facts}

    def remove(self) -> None:
        """Remove the journal; the receipt is written."""
        self._log.remove()


def _encode_line(fields: dict[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")
    return b"%08x %s\n" % (crc32c(text), text)


def _decode_lines(name: str, data: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the complete lines, and where they end."""
    if len(data) > JOURNAL_SIZE_MAX:
        raise _damaged(f"{name}: {len(data)} bytes, limit {JOURNAL_SIZE_MAX}")
    lines = data.split(b"\n")
    found: list[dict[str, Any]] = []
    size = 0
    for number, line in enumerate(lines[:-1]):
        checksum, text = line[:_CRC_SIZE], line[_CRC_SIZE + 1 :]
        if checksum != b"%08x" % crc32c(text):
            if number == len(lines) - 2 and not lines[-1] and found:
                break  # torn: the disk has the end of the last line, but not all before it
            raise _damaged(f"{name}: line {number + 1} is not as it was written")
        found.append(json.loads(text))
        size += len(line) + 1
    if not found:
        raise _damaged(f"{name}: the plan is not as it was written")
    return found, size


def _damaged(what: str) -> DataLoss:
    return DataLoss(f"{what}; export into another target", reason="JOURNAL_DAMAGED")
