"""Finds the files of an import and reads them as record batches with a target's columns.

Formats are Parquet, JSON lines and CSV. If a target fixes the type of a column, the file is read
with it; the types of other columns (times, headers, fields) follow from the first block of the file
and hold for all of it.

An export of the log itself cannot be imported: to bring back a log with its indexes, its members
and refused entries included, is a restore. Such files are recognised and refused
(IMPORT_IS_RESTORE).
"""

import glob
import hashlib
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.json as json_lines
import pyarrow.parquet as parquet

from onelog.errors import InvalidArgument, NotFound, OnelogError
from onelog.spark.load.columns import Kind
from onelog.spark.load.targets import Target

FILES_MAX = 10_000
BLOCK_BYTES = 8 << 20
BATCH_ROWS = 8_192
LINE_BYTES_MAX = 64 << 20
_ENDINGS = {
    ".parquet": "parquet", ".json": "json", ".jsonl": "json", ".ndjson": "json", ".csv": "csv",
}  # fmt: skip
# Only the view ``log`` of an export has all of these columns.
_OF_THE_LOG = frozenset(("shard", "index", "term", "group_left", "payload"))
_EXPORT_RECEIPT = re.compile(r"receipt-\d+\.json")
_TYPES = {
    Kind.BYTES: pa.large_binary(),
    Kind.TEXT: pa.large_string(),
    Kind.INTEGER: pa.int64(),
}

Batches = Iterator[tuple[pa.RecordBatch, int]]
"""Rows, and how many bytes of the file have been read."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file that is imported."""

    path: Path
    format: str
    size: int

    @property
    def partition(self) -> str:
        """The name of its partition in progress keys: made from its path, not its content."""
        return hashlib.blake2b(str(self.path).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Columns:
    """How the columns of a file map to those of the target."""

    # Names in the file by name in the target; other columns have the same name in both.
    sources: Mapping[str, str]
    ignores_others: bool = False

    def find_source(self, name: str) -> str:
        """Return the file's name for a column of the target."""
        return self.sources.get(name, name)


def find_files(patterns: Sequence[str], file_format: str | None = None) -> list[InputFile]:
    """Return the files that match paths and patterns, each once, sorted by name."""
    found: dict[Path, InputFile] = {}
    for pattern in patterns:
        matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else []
        for name in matches or [pattern]:
            path = Path(os.path.abspath(name))
            found[path] = _input_file(path, file_format)
    if len(found) > FILES_MAX:
        raise InvalidArgument(f"{len(found)} files, at most {FILES_MAX}", reason="FILES_TOO_MANY")
    return list(found.values())


def _input_file(path: Path, file_format: str | None) -> InputFile:
    if path.is_dir():
        if any(_EXPORT_RECEIPT.fullmatch(each.name) for each in path.iterdir()):
            raise _restore(f"{path} is the target of an export")
        raise InvalidArgument(f"{path} is a directory; name its files", reason="FILE_INVALID")
    if _EXPORT_RECEIPT.fullmatch(path.name):
        raise _restore(f"{path} is the receipt of an export")
    if not path.exists():
        raise NotFound(f"there is no file {path}", reason="FILE_UNKNOWN")
    kind = file_format or _ENDINGS.get(path.suffix.lower())
    if kind is None:
        known = " ".join(_ENDINGS)
        raise InvalidArgument(
            f"{path} does not end in one of {known}; give its format", reason="FORMAT_UNKNOWN"
        )
    return InputFile(path, kind, path.stat().st_size)


def _restore(what: str) -> InvalidArgument:
    return InvalidArgument(
        f"{what}: bringing back a log with its indexes is a restore and no import",
        reason="IMPORT_IS_RESTORE",
    )


def compute_checksum(file: InputFile) -> str:
    """Return the SHA-256 of a file, as ``sha256sum`` prints it."""
    with file.path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def check_file(file: InputFile, target: Target, columns: Columns) -> None:
    """Read the first rows of a file; refuse it if its columns do not fit the target."""
    for batch, _ in read_file(file, target, columns):
        target.check_schema(batch.schema)
        return


def read_file(file: InputFile, target: Target, columns: Columns) -> Batches:
    """Yield the rows of a file, with columns named as in the target."""
    readers = {"parquet": _read_parquet, "json": _read_json, "csv": _read_csv}
    wanted = {columns.find_source(name): column for name, column in target.columns.items()}
    types = {name: _TYPES[each.kind] for name, each in wanted.items() if each.kind in _TYPES}
    try:
        for batch, position in readers[file.format](file, types):
            yield _renamed(batch, target, columns), position
    except (pa.ArrowException, EOFError) as error:
        text = str(error).splitlines()[0]
        raise InvalidArgument(f"{file.path}: {text}", reason="FILE_INVALID") from None
    except OnelogError as error:
        error.message = f"{file.path}: {error.message}"
        raise


def _renamed(batch: pa.RecordBatch, target: Target, columns: Columns) -> pa.RecordBatch:
    names = batch.schema.names
    if set(names) >= _OF_THE_LOG:
        raise _restore("this is the view log of an export")
    missing = [name for name in columns.sources.values() if name not in names]
    if missing:
        raise InvalidArgument(
            f"there is no column {missing[0]!r}; there are {', '.join(names)}",
            reason="COLUMN_MISSING",
            metadata={"column": missing[0]},
        )
    by_source = {source: name for name, source in columns.sources.items()}
    found: dict[str, pa.Array] = {}
    for name, array in zip(names, batch.columns, strict=True):
        to = by_source.get(name, name)
        if columns.ignores_others and to not in target.columns:
            continue
        if to in found:
            raise InvalidArgument(f"two columns are {to!r}", reason="COLUMN_TWICE")
        decoded = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
        found[to] = decoded
    return pa.RecordBatch.from_arrays(list(found.values()), list(found))


def _read_parquet(file: InputFile, _: Mapping[str, pa.DataType]) -> Batches:
    with parquet.ParquetFile(file.path) as opened:
        total, done = max(opened.metadata.num_rows, 1), 0
        empty = pa.RecordBatch.from_pylist([], schema=opened.schema_arrow)
        yield empty, 0
        for batch in opened.iter_batches(BATCH_ROWS):
            done += batch.num_rows
            yield batch, file.size * done // total


def _read_csv(file: InputFile, types: Mapping[str, pa.DataType]) -> Batches:
    if not file.size:
        raise InvalidArgument("the first line names the columns", reason="FILE_INVALID")
    with pa.OSFile(str(file.path)) as opened:
        reader = csv.open_csv(
            opened,
            read_options=csv.ReadOptions(block_size=BLOCK_BYTES),
            convert_options=csv.ConvertOptions(column_types=dict(types)),
        )
        yield pa.RecordBatch.from_pylist([], schema=reader.schema), 0
        for batch in reader:
            yield batch, min(opened.tell(), file.size)


def _read_json(file: InputFile, types: Mapping[str, pa.DataType]) -> Batches:
    """Read blocks of whole lines. The first block decides the columns and their types."""
    schema: pa.Schema | None = None
    done = 0
    with file.path.open("rb") as opened:
        for block in _blocks(opened):
            done += len(block)
            if not block.strip():
                continue
            if schema is None:
                found = _parse(block, pa.schema([])).schema
                schema = pa.schema({each.name: types.get(each.name, each.type) for each in found})
            fixed = [each for each in schema if not pa.types.is_struct(each.type)]
            yield _aligned(_parse(block, pa.schema(fixed)), schema), done


def _parse(block: bytes, schema: pa.Schema) -> pa.Table:
    return json_lines.read_json(
        io.BytesIO(block),
        read_options=json_lines.ReadOptions(block_size=len(block)),
        parse_options=json_lines.ParseOptions(explicit_schema=schema),
    )


def _aligned(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Return a block with the columns of the first one; the names of headers may differ."""
    late = set(table.schema.names) - set(schema.names)
    if late:
        name = min(late)
        raise InvalidArgument(
            f"the column {name!r} is not in the first rows",
            reason="COLUMN_UNKNOWN",
            metadata={"column": name},
        )
    (batch,) = table.combine_chunks().to_batches()
    there = set(batch.schema.names)
    arrays = [
        batch.column(name) if name in there else pa.nulls(batch.num_rows) for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(arrays, schema.names)


def _blocks(opened: Any) -> Iterator[bytes]:
    """Yield a file in blocks that end where a line ends."""
    rest = b""
    while data := opened.read(BLOCK_BYTES):
        data = rest + data
        end = data.rfind(b"\n") + 1
        if not end and len(data) > LINE_BYTES_MAX:
            raise InvalidArgument(
                f"a line has more than {LINE_BYTES_MAX} bytes", reason="LINE_TOO_LARGE"
            )
        rest = data[end:]
        if end:
            yield data[:end]
    if rest:
        yield rest
