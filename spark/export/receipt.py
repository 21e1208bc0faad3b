"""The receipt of an export: what was exported, and what each file must hold.

A receipt is a small JSON file with a checksum (``onelog.ual.json_file``; docs/export.md has the
fields). It is written last: a target with a receipt is complete. It holds no wall-clock time and no
host name, so that an interrupted and resumed export leaves the same receipt as any other.

The ranges of a receipt say where a continuation begins, also for shards without new entries.
"""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from onelog.errors import DataLoss, FailedPrecondition
from onelog.spark.columns.selection import TIME_NS_MAX, Selection
from onelog.spark.origin import Range, ShardCut
from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.json_file import Fields, decode_json_file, encode_json_file

RECEIPT_VERSION = 1
RECEIPT_SIZE_MAX = 256 << 20
FILES_MAX = 500_000  # of one receipt: about 200 MiB of it
COLUMNS_MAX = 1_000
SHARDS_MAX = 1 << 16
NAME_SIZE_MAX = 1_024
FORMATS = ("parquet", "orc", "json", "csv")

_U64_HEX = 16
_CRC_HEX = 8


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of an export: the rows of one split and one day."""

    name: str  # relative to the target
    shard: int
    date: str  # of the log's time, UTC
    rows: int
    entries: int  # those of its split and day that the headers select
    first_index: int  # of these entries
    last_index: int
    size_bytes: int
    crc32c: int  # of the file's bytes
    mix: int  # over ``entries``

    def encode(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {
            "name": self.name, "shard": self.shard, "date": self.date, "rows": self.rows,
            "entries": self.entries, "first_index": self.first_index,
            "last_index": self.last_index, "bytes": self.size_bytes,
            "crc32c": f"{self.crc32c:08x}", "mix": f"{self.mix:016x}",
        }  # fmt: skip

    @classmethod
    def decode(cls, row: Fields) -> "FileFacts":
        """Return the facts in a decoded object."""
        return cls(
            name=row.text("name", size_max=NAME_SIZE_MAX),
            shard=row.integer("shard", maximum=SHARDS_MAX),
            date=row.text("date", size_max=16),
            rows=row.integer("rows"),
            entries=row.integer("entries"),
            first_index=row.integer("first_index"),
            last_index=row.integer("last_index"),
            size_bytes=row.integer("bytes"),
            crc32c=_hexadecimal(row, "crc32c", _CRC_HEX),
            mix=_hexadecimal(row, "mix", _U64_HEX),
        )


@dataclass(frozen=True, slots=True)
class RangeFacts:
    """What was exported of one shard; an empty range ends before it begins."""

    shard: int
    first_index: int
    last_index: int
    entries: int  # that the headers select, whether they have rows or not
    mix: int
    # Of the entry at last_index, which a continuation must find there. None: the entry was not
    # kept, the range is a state, or an earlier version wrote the receipt.
    last_crc32c: int | None = None

    def encode(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        found: dict[str, Any] = {
            "shard": self.shard, "first_index": self.first_index, "last_index": self.last_index,
            "entries": self.entries, "mix": f"{self.mix:016x}",
        }  # fmt: skip
        if self.last_crc32c is not None:
            found["last_crc32c"] = f"{self.last_crc32c:08x}"
        return found

    @classmethod
    def decode(cls, row: Fields) -> "RangeFacts":
        """Return the facts in a decoded object."""
        return cls(
            shard=row.integer("shard", maximum=SHARDS_MAX),
            first_index=row.integer("first_index"),
            last_index=row.integer("last_index"),
            entries=row.integer("entries"),
            mix=_hexadecimal(row, "mix", _U64_HEX),
            last_crc32c=_optional(
                row.values, "last_crc32c", lambda name: _hexadecimal(row, name, _CRC_HEX)
            ),
        )


@dataclass(frozen=True, slots=True)
class Since:
    """The receipt that an export continues."""

    number: int
    checksum: int  # of its bytes


@dataclass(frozen=True, slots=True)
class Contents:
    """What an export contains; the same for all continuations in one target."""

    cluster_id: str
    shard_count: int
    view: str
    columns: tuple[tuple[str, str], ...]  # name and Arrow type, in the order of the files
    format: str
    selection: Selection  # without queues, whose ids differ between shards
    queues: tuple[str, ...] | None = None  # by name

    def encode(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        queues = None if self.queues is None else [{"name": each} for each in self.queues]
        return {
            "cluster_id": self.cluster_id,
            "shard_count": self.shard_count,
            "view": self.view,
            "columns": [{"name": name, "type": kind} for name, kind in self.columns],
            "format": self.format,
            "selection": {**encode_selection(self.selection), "queues": queues},
        }

    @classmethod
    def decode(cls, found: Fields) -> "Contents":
        """Return the contents in a decoded object."""
        selection = found.nested("selection")
        contents = cls(
            cluster_id=found.text("cluster_id", size_min=0, size_max=100),
            shard_count=found.integer("shard_count", minimum=1, maximum=SHARDS_MAX),
            view=found.text("view", size_max=100),
            columns=tuple(
                (row.text("name", size_max=200), row.text("type", size_max=1_000))
                for row in found.rows("columns", count_max=COLUMNS_MAX)
            ),
            format=found.text("format", size_max=20),
            selection=decode_selection(selection),
            queues=_optional(
                selection.values,
                "queues",
                lambda name: tuple(
                    row.text("name", size_max=1_000)
                    for row in selection.rows(name, count_max=10_000)
                ),
            ),
        )
        if contents.format not in FORMATS:
            found.refuse(f"field format is {contents.format}, not one of {', '.join(FORMATS)}")
        return contents


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one run of an export did."""

    number: int  # from 1, in its target
    contents: Contents
    since: Since | None
    cut: tuple[ShardCut, ...]
    ranges: tuple[RangeFacts, ...]
    missing: tuple[Range, ...]  # requested, but no longer kept
    files: tuple[FileFacts, ...]

    @property
    def rows(self) -> int:
        """How many rows the files have."""
        return sum(each.rows for each in self.files)

    @property
    def size_bytes(self) -> int:
        """How large the files are."""
        return sum(each.size_bytes for each in self.files)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        since = self.since
        return encode_json_file(
            {
                "version": RECEIPT_VERSION,
                "number": self.number,
                **self.contents.encode(),
                "since": None
                if since is None
                else {"number": since.number, "checksum": f"{since.checksum:08x}"},
                "cut": [encode_cut(each) for each in self.cut],
                "ranges": [each.encode() for each in self.ranges],
                "missing": [encode_range(each) for each in self.missing],
                "files": [each.encode() for each in self.files],
            },
            size_max=RECEIPT_SIZE_MAX,
        )


_FIELDS = (
    "version", "number", "cluster_id", "shard_count", "view", "columns", "format", "selection",
    "since", "cut", "ranges", "missing", "files",
)  # fmt: skip


def receipt_name(number: int) -> str:
    """Return the name of a receipt in its target."""
    return f"receipt-{number:06d}.json"


def decode_receipt(name: str, data: bytes) -> Receipt:
    """Return the receipt in ``data``; refuse one that was changed."""
    try:
        values = decode_json_file(name, data, RECEIPT_VERSION, size_max=RECEIPT_SIZE_MAX)
        found = Fields(name, values)
        found.only(*_FIELDS)
        return Receipt(
            number=found.integer("number", minimum=1),
            contents=Contents.decode(found),
            since=_decode_since(found),
            cut=tuple(decode_cut(row) for row in found.rows("cut", count_max=SHARDS_MAX)),
            ranges=tuple(
                RangeFacts.decode(row) for row in found.rows("ranges", count_max=SHARDS_MAX)
            ),
            missing=tuple(decode_range(row) for row in found.rows("missing", count_max=SHARDS_MAX)),
            files=tuple(FileFacts.decode(row) for row in found.rows("files", count_max=FILES_MAX)),
        )
    except UnknownVersion as error:
        raise FailedPrecondition(
            f"{name} was written by a newer onelog: {error}", reason="RECEIPT_VERSION_UNKNOWN"
        ) from error
    except CorruptFile as error:
        raise DataLoss(
            f"{name} is not as it was written: {error}; take an untouched copy of it",
            reason="RECEIPT_EDITED",
        ) from error


def _decode_since(found: Fields) -> Since | None:
    if found.values.get("since") is None:
        return None
    since = found.nested("since")
    return Since(since.integer("number", minimum=1), _hexadecimal(since, "checksum", _CRC_HEX))


def encode_cut(cut: ShardCut) -> dict[str, int]:
    """Return a shard's cut as JSON has it."""
    return {each.name: getattr(cut, each.name) for each in fields(cut)}


def decode_cut(row: Fields) -> ShardCut:
    """Return a shard's cut out of a decoded object."""
    return ShardCut(*(row.integer(each.name) for each in fields(ShardCut)))


def encode_range(found: Range) -> dict[str, int]:
    """Return a range as JSON has it."""
    return {each.name: getattr(found, each.name) for each in fields(found)}


def decode_range(row: Fields) -> Range:
    """Return a range out of a decoded object."""
    return Range(*(row.integer(each.name) for each in fields(Range)))


def _hexadecimal(row: Fields, name: str, digits: int) -> int:
    text = row.text(name, size_min=digits, size_max=digits)
    if any(each not in "0123456789abcdef" for each in text):
        row.refuse(f"field {row.prefix}{name} is not {digits} hexadecimal digits")
    return int(text, 16)


# Selections --------------------------------------------------------------------------------------

_NUMBERS = ("types", "owners")
_NAMES = ("namespaces", "streams", "measurements")


def encode_selection(selection: Selection) -> dict[str, Any]:
    """Return a selection as JSON has it; names are escaped as ``--escaped`` reads them."""
    found: dict[str, Any] = {}
    for name in _NUMBERS:
        numbers = getattr(selection, name)
        found[name] = None if numbers is None else ",".join(map(str, sorted(numbers)))
    for name in _NAMES:
        values = getattr(selection, name)
        found[name] = (
            None if values is None else [{"name": _escape(each)} for each in sorted(values)]
        )
    prefix = selection.key_prefix
    found["key_prefix"] = None if prefix is None else _escape(prefix)
    found["from_time_ns"] = selection.from_time_ns
    found["to_time_ns"] = selection.to_time_ns
    return found


def decode_selection(found: Fields) -> Selection:
    """Return a selection out of a decoded object."""
    values: dict[str, Any] = {}
    for name in _NUMBERS:
        values[name] = _optional(found.values, name, lambda name: _decode_numbers(found, name))
    for name in _NAMES:
        values[name] = _optional(
            found.values,
            name,
            lambda name: frozenset(
                _unescape(row.text("name", size_min=0, size_max=5_000))
                for row in found.rows(name, count_max=10_000)
            ),
        )
    values["key_prefix"] = _optional(
        found.values,
        "key_prefix",
        lambda name: _unescape(found.text(name, size_min=0, size_max=20_000)),
    )
    return Selection(
        from_time_ns=found.integer("from_time_ns"),
        to_time_ns=found.integer("to_time_ns", maximum=TIME_NS_MAX),
        **values,
    )


def _optional(values: Mapping[str, Any], name: str, decode: Any) -> Any:
    return None if values.get(name) is None else decode(name)


def _decode_numbers(found: Fields, name: str) -> frozenset[int]:
    text = found.text(name, size_min=0, size_max=1 << 20)
    parts = [part for part in text.split(",") if part]
    if not all(part.isascii() and part.isdigit() for part in parts):
        found.refuse(f"field {found.prefix}{name} is no list of numbers")
    return frozenset(map(int, parts))


def _escape(value: bytes) -> str:
    return codecs.escape_encode(value)[0].decode("ascii")


def _unescape(text: str) -> bytes:
    return codecs.escape_decode(text.encode("ascii"))[0]
