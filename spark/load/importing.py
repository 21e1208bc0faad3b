"""Imports files into the database, each row once, and writes a receipt.

Each file is a partition of the job (``onelog.spark.load.chunks``). If an import runs again, it
skips what is already written, and refuses a file whose rows have changed. All files are checked
before the first row is written.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onelog.errors import FailedPrecondition, OnelogError
from onelog.spark.load.chunks import ChunkWriter, Outcome
from onelog.spark.load.files import Columns, InputFile, check_file, compute_checksum, read_file
from onelog.spark.load.progress import Job
from onelog.spark.load.settings import WriteSettings
from onelog.spark.load.targets import Target
from onelog.ual.files import DiskFiles, replace_file
from onelog.ual.json_file import encode_json_file

RECEIPT_VERSION = 1

Advance = Callable[[int, int], None]
"""Called with the number of rows and bytes written since the last call."""


@dataclass(frozen=True, slots=True)
class FileFacts:
    """The outcome of a file."""

    file: InputFile
    sha256: str
    outcome: Outcome

    def encode(self) -> dict[str, Any]:
        """Return its fields in the receipt."""
        return {
            "path": str(self.file.path),
            "format": self.file.format,
            "size": self.file.size,
            "sha256": self.sha256,
            "rows": self.outcome.row_count,
            "skipped_rows": self.outcome.skipped_row_count,
            "shards": [
                {
                    "shard": each.shard,
                    "first_index": each.first_index,
                    "last_index": each.last_index,
                    "rows": each.row_count,
                }
                for each in self.outcome.shards
            ],
        }


@dataclass(frozen=True, slots=True)
class Receipt:
    """What an import wrote, and where it is in the log."""

    job: Job
    target: Target
    files: Sequence[FileFacts]

    @property
    def row_count(self) -> int:
        """Rows of all files."""
        return sum(each.outcome.row_count for each in self.files)

    @property
    def skipped_row_count(self) -> int:
        """Rows that an earlier run had written."""
        return sum(each.outcome.skipped_row_count for each in self.files)

    def encode(self) -> dict[str, Any]:
        """Return the fields of the receipt."""
        spans: dict[int, dict[str, int]] = {}
        for facts in self.files:
            for each in facts.outcome.shards:
                span = spans.setdefault(
                    each.shard,
                    {"shard": each.shard, "first_index": each.first_index, "last_index": 0,
                     "rows": 0},
                )  # fmt: skip
                span["first_index"] = min(span["first_index"], each.first_index)
                span["last_index"] = max(span["last_index"], each.last_index)
                span["rows"] += each.row_count
        return {
            "version": RECEIPT_VERSION,
            "job": self.job.name,
            "to": self.target.to,
            "name": self.target.name,
            "namespace": self.target.namespace or "default",
            "rows": self.row_count,
            "skipped_rows": self.skipped_row_count,
            "shards": [spans[shard] for shard in sorted(spans)],
            "files": [each.encode() for each in self.files],
        }

    def write(self, path: Path) -> None:
        """Write the receipt to a file, whole or not at all."""
        try:
            replace_file(DiskFiles(is_shared=True), path, [encode_json_file(self.encode())])
        except OSError as error:
            path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
            raise FailedPrecondition(
                f"all rows are imported, but the receipt cannot be written to {path}: "
                f"{error.strerror}; the same command writes it without importing rows again",
                reason="RECEIPT_UNWRITABLE",
            ) from error


def name_job(target: Target, files: Sequence[InputFile], columns: Columns) -> Job:
    """Return the default job of an import: the same target and paths are the same job."""
    digest = hashlib.blake2b(target.description.encode(), digest_size=16)
    for source in sorted(columns.sources.items()):
        digest.update(repr(source).encode())
    for file in files:
        digest.update(b"\0" + str(file.path).encode())
    return Job(f"import-{digest.hexdigest()}")


def check_files(files: Sequence[InputFile], target: Target, columns: Columns) -> None:
    """Refuse files that cannot be imported, before anything is written."""
    for file in files:
        check_file(file, target, columns)


def count_rows(file: InputFile, target: Target, columns: Columns, advance: Advance) -> int:
    """Return the number of rows in a file; refuse the first that cannot be written."""
    rows = done = 0
    for batch, position in read_file(file, target, columns):
        with _naming(file):
            target.prepare(batch, rows)
        rows += batch.num_rows
        advance(batch.num_rows, position - done)
        done = position
    advance(0, file.size - done)
    return rows


def import_file(
    file: InputFile, settings: WriteSettings, job: Job, columns: Columns, advance: Advance
) -> FileFacts:
    """Write those rows of a file that are not written yet; return the outcome."""
    done = 0
    with ChunkWriter(
        settings.target, job, file.partition, settings.endpoints, settings.options, settings.limits
    ) as writer:
        for batch, position in read_file(file, settings.target, columns):
            with _naming(file):
                writer.write(batch)
            advance(batch.num_rows, position - done)
            done = position
        with _naming(file):
            outcome = writer.finish()
    advance(0, file.size - done)
    return FileFacts(file, compute_checksum(file), outcome)


@contextmanager
def _naming(file: InputFile) -> Iterator[None]:
    """Add the file's name to errors about it."""
    try:
        yield
    except OnelogError as error:
        error.message = f"{file.path}: {error.message}"
        if error.reason == "WRITE_ROWS_CHANGED":
            error.message += "; to write them as new rows, name another job (--job)"
        raise
