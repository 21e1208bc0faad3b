"""``onelog import``: files of rows into keys, a stream, a queue or series."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.command import Session, command
from onelog.cli.connect import CONNECT_S, parse_endpoints, to_options
from onelog.cli.failure import CommandFailed
from onelog.cli.output import counted
from onelog.cli.values import duration_s

if TYPE_CHECKING:
    from onelog.spark.load.files import Columns, InputFile
    from onelog.spark.load.settings import WriteSettings

app = typer.Typer(add_completion=False, rich_markup_mode=None)

TARGETS = "keys|stream|queue|series"
DEFAULT_RETRY = "2m"
DEFAULT_REMEMBER = "7d"


Files = Annotated[
    list[str], typer.Argument(metavar="FILE...", help="Files, or patterns like '2026/*.csv'.")
]
To = Annotated[str, typer.Option("--to", metavar=TARGETS, help="What the rows become.")]
Stream = Annotated[
    str, typer.Option("--stream", metavar="NAME", help="The stream; default: a column.")
]
Queue = Annotated[
    str, typer.Option("--queue", metavar="NAME", help="The queue; default: a column.")
]
Measurement = Annotated[
    str, typer.Option("--measurement", metavar="NAME", help="The measurement of series.")
]
Time = Annotated[
    str, typer.Option("--time", metavar="COLUMN", help="The time of series; default: time.")
]
Tags = Annotated[
    str, typer.Option("--tags", metavar="COLUMNS", help="The tags of series, separated by commas.")
]
Fields = Annotated[
    str,
    typer.Option("--fields", metavar="COLUMNS", help="The fields of series; default: all others."),
]
Chosen = Annotated[
    list[str] | None,
    typer.Option("--column", metavar="NAME=COLUMN", help="Read NAME from this column of the file."),
]
IgnoreOthers = Annotated[
    bool, typer.Option("--ignore-others", help="Ignore columns that are not needed.")
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", metavar="parquet|json|csv", help="Format of all files; default: by their names."
    ),
]
JobName = Annotated[
    str | None,
    typer.Option("--job", metavar="NAME", help="The import's name; default: target and files."),
]
ReceiptFile = Annotated[
    Path | None,
    typer.Option("--receipt", metavar="FILE", help="Write a receipt of the import to this file."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check all rows and write none.")]
RetryFor = Annotated[
    float,
    typer.Option(
        "--retry-for", metavar="TIME", parser=duration_s,
        help="Give up after this long without progress.",
    ),
]  # fmt: skip
Remember = Annotated[
    float,
    typer.Option(
        "--remember", metavar="TIME", parser=duration_s,
        help="How long the database remembers the import.",
    ),
]  # fmt: skip


@command(app, "import")
def import_(
    session: Session,
    files: Files,
    *,
    to: To,
    stream: Stream = "",
    queue: Queue = "",
    measurement: Measurement = "",
    time: Time = "",
    tags: Tags = "",
    fields: Fields = "",
    columns: Chosen = None,
    ignore_others: IgnoreOthers = False,
    file_format: Format = None,
    job: JobName = None,
    receipt: ReceiptFile = None,
    dry_run: DryRun = False,
    retry_for: RetryFor = DEFAULT_RETRY,  # type: ignore[assignment]  # the parser reads it
    remember: Remember = DEFAULT_REMEMBER,  # type: ignore[assignment]
) -> None:
    """Import rows of Parquet, JSON lines or CSV, each exactly once.

    Rows are written up to 999 at a time, together with a key that records the progress. Run the
    same command again to continue; a file whose rows have changed is refused.

    \b
    Columns: keys have key and value, and ttl_ns or expires; a stream has value, and key, tag,
    partition, headers; a queue has body, and priority, delay_ns, ttl_ns, dedup, group, tenant,
    headers. Series have a time, tags, and fields.

    \b
    Examples:
      onelog import users.csv --to keys --column key=id --column value=name --ignore-others
      onelog import 'logs/*.jsonl' --to stream --stream events --receipt imported.json
      onelog import jobs.jsonl --to queue --queue 'jobs{jobs}' --dry-run
      onelog import loads.csv --to series --measurement load --tags host --job loads --json
    """
    _need_pyarrow()
    from onelog.spark.load.files import Columns, find_files
    from onelog.spark.load.importing import check_files

    options = {
        "to": to, "stream": stream, "queue": queue, "measurement": measurement, "time": time,
        "tags": tags, "fields": fields,
    }  # fmt: skip
    settings = _settings(session, options, job, retry_for, remember)
    if file_format not in (None, "parquet", "json", "csv"):
        raise CommandFailed("USAGE", f"--format is parquet, json or csv, not {file_format}")
    if receipt is not None and (receipt.is_dir() or not receipt.absolute().parent.is_dir()):
        raise CommandFailed("USAGE", f"a receipt cannot be written to {receipt}")
    found = find_files(files, file_format)
    chosen = Columns(dict(map(_pair, columns or ())), ignore_others)
    check_files(found, settings.target, chosen)
    if dry_run:
        _check(session, found, settings, chosen)
    else:
        _import(session, found, settings, chosen, receipt)


def _settings(
    session: Session,
    options: dict[str, str],
    job: str | None,
    timeout_s: float,
    progress_ttl_s: float,
) -> "WriteSettings":
    """Return the settings of the import from the flags; the connection is the session's."""
    from onelog.spark.load.settings import parse_write
    from onelog.spark.load.shard_writer import Limits

    given = {name: text for name, text in options.items() if text}
    given["namespace"] = session.settings["namespace"].text
    if job is not None:
        given["job"] = job
    return replace(
        parse_write(given),
        endpoints=tuple(parse_endpoints(session.settings["endpoints"])),
        options=to_options(session.settings),
        limits=Limits(timeout_s, progress_ttl_s, connect_timeout_s=CONNECT_S),
    )


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise CommandFailed(
            "PYARROW_MISSING", "pyarrow is missing; install it with: pip install 'onelogdb[spark]'"
        ) from None


def _pair(text: str) -> tuple[str, str]:
    name, equals, column = text.partition("=")
    if not (name and equals and column):
        raise CommandFailed("USAGE", f"--column is NAME=COLUMN, not {text}")
    return name, column


def _check(
    session: Session, files: "list[InputFile]", settings: "WriteSettings", columns: "Columns"
) -> None:
    from onelog.spark.load.importing import count_rows

    with _progress("checking", files) as advance:
        rows = sum(count_rows(file, settings.target, columns, advance) for file in files)
    text = f"{counted(rows, 'row')} of {counted(len(files), 'file')} can be imported"
    session.output.result({"files": len(files), "rows": rows}, text)


def _import(
    session: Session,
    files: "list[InputFile]",
    settings: "WriteSettings",
    columns: "Columns",
    path: Path | None,
) -> None:
    from onelog.spark.load.importing import Receipt, import_file, name_job

    job = settings.job or name_job(settings.target, files, columns)
    with _progress("importing", files) as advance:
        facts = [import_file(file, settings, job, columns, advance) for file in files]
    receipt = Receipt(job, settings.target, facts)
    if path is not None:
        receipt.write(path)
    skipped = receipt.skipped_row_count
    there = f", {skipped} of them were there already" if skipped else ""
    text = f"{counted(receipt.row_count, 'row')} of {counted(len(files), 'file')} imported{there}"
    session.output.result(receipt.encode(), text)


@contextmanager
def _progress(what: str, files: "list[InputFile]") -> Iterator[Callable[[int, int], None]]:
    """Show rows, bytes and the remaining time on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _rows, _bytes: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    shown = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[rows]:,} rows"),
        DownloadColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=sum(file.size for file in files), rows=0)
        total = 0

        def advance(rows: int, size: int) -> None:
            nonlocal total
            total += rows
            bar.update(task, advance=size, rows=total)

        yield advance
