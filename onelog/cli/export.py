"""``onelog export``: views of the log as files, with a receipt, and the check of what was exported.

The work is done in ``onelog.spark.export``, which is imported inside the commands: it needs
pyarrow, and the export itself needs Spark. ``onelog export VIEW TARGET`` is short for ``onelog
export run``. Here are the flags, the progress bar, and the results as lines or JSON.
"""

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.command import Group, Session, command
from onelog.cli.failure import EXIT_ERROR, CommandFailed
from onelog.cli.output import counted, note
from onelog.cli.values import duration_s, time_ns

if TYPE_CHECKING:
    from onelog.spark.export.job import Outcome, Progress
    from onelog.spark.export.journal import Plan, SplitFacts
    from onelog.spark.export.plan import ExportRequest
    from onelog.spark.export.receipt import Receipt, Since
    from onelog.spark.export.verify import Report
    from onelog.spark.origin import Origin

DIFFERENCES_SHOWN_MAX = 100


@contextmanager
def export_progress() -> "Iterator[Progress]":
    """Show rows, bytes, splits and time left on stderr, if it is a terminal."""
    from onelog.spark.export.job import Progress

    class Notes(Progress):
        """Prints what a user should know before the first task."""

        def plan(self, plan: "Plan", done: "Sequence[SplitFacts]", note: str) -> None:
            _say_plan(plan, done, note)

    if not sys.stderr.isatty():
        yield Notes()
        return
    from rich.console import Console
    from rich.filesize import decimal
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("splits,"),
        TextColumn("{task.fields[rows]:,} rows,"), TextColumn("{task.fields[size]},"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:

        class Shown(Notes):
            """Moves the bar."""

            def plan(self, plan: "Plan", done: "Sequence[SplitFacts]", note: str) -> None:
                super().plan(plan, done, note)
                self._rows = self._bytes = 0
                self._task = bar.add_task(
                    plan.contents.view, total=len(plan.splits), rows=0, size=decimal(0)
                )
                self.advance(done)

            def advance(self, done: "Sequence[SplitFacts]") -> None:
                self._rows += sum(each.rows for each in done)
                self._bytes += sum(each.size_bytes for each in done)
                bar.update(
                    self._task, advance=len(done), rows=self._rows, size=decimal(self._bytes)
                )

        yield Shown()


def _say_plan(plan: "Plan", done: "Sequence[SplitFacts]", cut_note: str) -> None:
    if cut_note:
        note(cut_note)
    if done:
        note(
            "continues an interrupted export: done are "
            f"{len(done)} of {counted(len(plan.splits), 'split')}"
        )
    for each in plan.missing:
        note(f"shard {each.shard}: entries {each.first_index} to {each.last_index} are not kept")
    from onelog.spark.state import STATE_VIEWS

    if plan.since is None:
        for each in plan.ranges:
            if plan.contents.view in STATE_VIEWS:
                note(f"shard {each.shard}: the state right behind entry {each.last_index}")
            elif each.first_index > 1:
                note(f"shard {each.shard} begins at entry {each.first_index}")


@contextmanager
def bar_of_bytes() -> Iterator[Any]:
    """Count the bytes that were read on stderr, if it is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("files", total=None)
        yield lambda size: bar.advance(task, size)


def print_outcome(
    session: Session, request: "ExportRequest", outcome: "Outcome", seconds: float
) -> None:
    """Print the outcome of an export."""
    receipt = outcome.receipt
    is_state = request.view.shows_state
    document = {
        "target": request.target.name,
        "receipt": outcome.receipt_name,
        "complete_before": not outcome.is_new,
        "rows": receipt.rows,
        "files": len(receipt.files),
        "bytes": receipt.size_bytes,
        "seconds": round(seconds, 3),
        "table": outcome.table or None,
        "ranges": [each.encode() for each in receipt.ranges],
        "missing": [
            {"shard": each.shard, "first_index": each.first_index, "last_index": each.last_index}
            for each in receipt.missing
        ],
    }
    if outcome.is_new:
        text = (
            f"exported {counted(receipt.rows, 'row')}, {counted(receipt.size_bytes, 'byte')} in "
            f"{counted(len(receipt.files), 'file')}: {request.target.name}, {outcome.receipt_name}"
        )
    else:
        text = (
            f"complete already: {request.target.name}, {outcome.receipt_name}; "
            f"{'export into another target' if is_state else 'continue it with --since'}"
        )
    if outcome.table:
        text += f"; table: {outcome.table}"
    session.output.line(document, text)


def print_report(session: Session, target: str, report: "Report") -> None:
    """Print the findings of a verification."""
    shown = report.differences[:DIFFERENCES_SHOWN_MAX]
    document = {
        "target": target,
        "good": report.is_good,
        "receipts": report.receipts,
        "files": report.files,
        "rows": report.rows,
        "bytes": report.size_bytes,
        "differences": report.differences,
        "log_compared": report.log_compared,
        "log_not_compared": report.log_not_compared,
        "notes": report.notes,
    }
    lines = [f"{each.kind:<11} {each.name}: {each.message}" for each in shown]
    if len(report.differences) > len(shown):
        lines.append(f"and {len(report.differences) - len(shown)} more")
    what = "good" if report.is_good else counted(len(report.differences), "difference")
    lines.append(
        f"{what}: {counted(report.rows, 'row')} in {counted(report.files, 'file')}, "
        f"{counted(report.receipts, 'receipt')}; "
        f"{counted(report.log_compared, 'file')} compared with the log"
    )
    for each in (*report.notes, *(f"not compared: {each}" for each in report.log_not_compared)):
        note(each)
    if session.output.as_json:
        session.output.result(document, "")
    else:
        for line in lines:
            session.output.line(None, line)


# Export

DEFAULT_MASTER = "local[*]"
INTERVAL_S = 60.0
SAID_SIZE_MAX = 500  # characters of Java's output in an error
# Spark's own program sets it for the Python that it starts.
SUBMITTED = "PYSPARK_GATEWAY_PORT"

_CONNECTION = ("endpoints", "tls", "tls_ca", "tls_cert", "tls_key", "tls_name", "config")
_HELP = """Views of the log as files: Parquet, ORC, JSON or CSV, with a receipt to verify them.

\b
Examples:
  onelog export kv_operations ./keys --data ./onelog-data
  onelog export log ./all --since ./all
  onelog export verify ./keys
"""


class ExportGroup(Group):
    """A group whose default command is ``run``: a word that is no command is a view."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert ``run`` unless the first argument is a command or a flag for help."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(help=_HELP, cls=ExportGroup, add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True, help=_HELP)
def show_help(context: typer.Context) -> None:
    """Print the help if no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _option(name: str, metavar: str, text: str, parser: Any = None) -> Any:
    return typer.Option(name, metavar=metavar, help=text, parser=parser)


TargetName = Annotated[
    str, typer.Argument(metavar="TARGET", help="A directory, file:///path or s3://bucket/path.")
]
Data = Annotated[
    str | None,
    _option("--data", "DIR", "Read a data directory or a copy of segments, not a server."),
]
ViewName = Annotated[
    str, typer.Argument(metavar="VIEW", help="log, kv_operations, kv, kv_changes, …")
]
Format = Annotated[str, _option("--format", "NAME", "parquet, orc, json (lines) or csv.")]
Columns = Annotated[str | None, _option("--columns", "A,B", "Only these columns.")]
AsOfIndex = Annotated[
    str | None,
    _option("--as-of-index", "I", "For views with state: right after this entry, or SHARD=I,…"),
]
AsOfTime = Annotated[
    int | None, _option("--as-of-time", "TIME", "For views with state: at this log time.", time_ns)
]
FromIndex = Annotated[
    str | None, _option("--from-index", "I", "First entry of each shard, or SHARD=I,…")
]
ToIndex = Annotated[str | None, _option("--to-index", "I", "Last entry, included, or SHARD=I,…")]
FromTime = Annotated[int | None, _option("--from-time", "TIME", "First log time.", time_ns)]
ToTime = Annotated[int | None, _option("--to-time", "TIME", "Last log time, included.", time_ns)]
Shards = Annotated[str | None, _option("--shards", "N,M", "Only these shards.")]
Owners = Annotated[str | None, _option("--owners", "A,B", "Only kv, queue, stream, …")]
Types = Annotated[str | None, _option("--types", "A,B", "Only these operations.")]
Namespaces = Annotated[str | None, _option("--namespaces", "A,B", "Only these namespaces.")]
Streams = Annotated[str | None, _option("--streams", "A,B", "Only these streams.")]
Queues = Annotated[str | None, _option("--queues", "A,B", "Only these queues.")]
Measurements = Annotated[str | None, _option("--measurements", "A,B", "Only these measurements.")]
KeyPrefix = Annotated[str | None, _option("--key-prefix", "TEXT", "Only keys with this prefix.")]
SinceName = Annotated[
    str | None,
    _option("--since", "RECEIPT", "Continue after a receipt, or the last one of a target."),
]
FromKept = Annotated[
    bool,
    typer.Option("--from-kept", help="Begin at the oldest kept entry if earlier ones are gone."),
]
Follow = Annotated[
    bool, typer.Option("--follow", help="Continue until Ctrl-C, with a receipt each time.")
]
Interval = Annotated[
    float | None,
    _option("--interval", "TIME", "With --follow: how often; default 1m.", duration_s),
]
AsTable = Annotated[
    str | None, _option("--as-table", "NAME", "Register the files: delta or iceberg.")
]
Master = Annotated[
    str | None, _option("--master", "URL", f"Spark's master; default {DEFAULT_MASTER}.")
]
BytesPerSecond = Annotated[
    int | None,
    typer.Option(
        "--bytes-per-second-max", min=1, metavar="N", help="Limit on reads from a server, per task."
    ),
]


@command(app, "run", connection=_CONNECTION)
def run(
    session: Session,
    view: ViewName,
    target: TargetName,
    *,
    data: Data = None,
    file_format: Format = "parquet",
    since: SinceName = None,
    from_kept: FromKept = False,
    follow: Follow = False,
    interval: Interval = None,
    as_table: AsTable = None,
    master: Master = None,
    columns: Columns = None,
    as_of_index: AsOfIndex = None,
    as_of_time: AsOfTime = None,
    from_index: FromIndex = None,
    to_index: ToIndex = None,
    from_time: FromTime = None,
    to_time: ToTime = None,
    shards: Shards = None,
    owners: Owners = None,
    types: Types = None,
    namespaces: Namespaces = None,
    streams: Streams = None,
    queues: Queues = None,
    measurements: Measurements = None,
    key_prefix: KeyPrefix = None,
    bytes_per_second_max: BytesPerSecond = None,
) -> None:
    """Export a view of the log to files, and write a receipt.

    Run the same command again to continue an interrupted export. The receipt is written last: a
    target without one is not complete. A view with state is exported as it is now, or with
    --as-of-index or --as-of-time as it was. Needs Java 17 and: pip install 'onelogdb[spark]'.

    \b
    Examples:
      onelog export kv_operations ./keys --data ./onelog-data
      onelog export log ./puts --types put --columns index,timestamp,name,payload
      onelog export stream s3://bucket/events --streams events --from-time now-1d
      onelog export log ./all --since ./all --json
      onelog export log ./all --follow --interval 5m
      onelog export kv_operations ./table --as-table delta
      onelog export kv ./keys-of-yesterday --as-of-time now-1d
      onelog export kv_changes ./changes --from-time now-1d
    """
    given = {
        "view": view, "columns": columns, "as_of_index": as_of_index, "as_of_time": as_of_time,
        "from_index": from_index, "to_index": to_index,
        "from_time": from_time, "to_time": to_time, "shards": shards, "owners": owners,
        "types": types, "namespaces": namespaces, "streams": streams, "queues": queues,
        "measurements": measurements, "key_prefix": key_prefix,
        "bytes_per_second_max": bytes_per_second_max,
    }  # fmt: skip
    if interval is not None and not follow:
        raise CommandFailed("USAGE", "--interval is for --follow")
    own = {"format": file_format, "from_kept": from_kept, "as_table": as_table}
    request = _request(session, data, given, target, own)
    _Run(session, request, master).start(since, (interval or INTERVAL_S) if follow else None)


@command(app, "verify", connection=_CONNECTION)
def verify(session: Session, target: TargetName, *, data: Data = None) -> None:
    """Compare an export with its receipts, and with the log if --endpoint or --data is given.

    Reads every byte of the files, and names each file that is missing, was added, changed or
    exchanged. The log is compared by the headers of its entries. It also names what is not
    compared: entries that are no longer kept, and views with state. Needs no Java.

    \b
    Exit codes:
      0  everything that could be compared is as it should be
      1  a difference was found, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog export verify ./keys
      onelog export verify ./keys --data ./onelog-data
      onelog export verify ./keys --endpoint 127.0.0.1:7400 --json
    """
    _refuse_without_arrow()
    from onelog.spark.export.target import open_target
    from onelog.spark.export.verify import verify_export

    opened = open_target(target)
    origin = None
    if data or session.settings["endpoints"].origin == _flag_origin():
        origin = _origin(session, data)
    with bar_of_bytes() as advance:
        report = verify_export(opened, origin, advance)
    print_report(session, target, report)
    if not report.is_good:
        raise typer.Exit(EXIT_ERROR)


def _flag_origin() -> str:
    from onelog.cli.connect import FLAG_ORIGIN

    return FLAG_ORIGIN


# The request -------------------------------------------------------------------------------------


def _refuse_without_arrow() -> None:
    from onelog.spark.session import find_missing_package

    problem = find_missing_package()
    if problem is not None:
        raise problem


def _request(
    session: Session,
    data: str | None,
    given: dict[str, Any],
    target: str,
    own: dict[str, Any],
) -> "ExportRequest":
    _refuse_without_arrow()
    from onelog.spark.export.plan import EXPORTED_VIEWS, ExportRequest
    from onelog.spark.export.target import open_target
    from onelog.spark.options import ReadOptions
    from onelog.spark.state import AS_OF_OPTIONS, AsOf
    from onelog.spark.table import open_origin

    texts = {name: str(value) for name, value in given.items() if value is not None}
    where = _where(session, data)
    options = ReadOptions.parse({**texts, **where}, EXPORTED_VIEWS, others=AS_OF_OPTIONS)
    own["as_of"] = AsOf.parse(texts)
    return ExportRequest(options, open_origin(options), open_target(target), **own)


def _where(session: Session, data: str | None) -> dict[str, str]:
    """Return the options that say where the log is."""
    settings = session.settings
    if data is not None:
        if settings["endpoints"].origin == _flag_origin():
            raise CommandFailed("USAGE", "give --endpoint or --data, and not both")
        return {"path": data}
    security = {
        "tls_ca": settings["tls_ca"].text,
        "tls_cert": settings["tls_cert"].text,
        "tls_key": settings["tls_key"].text,
        "tls_name": settings["tls_name"].text,
        "tls": "true" if settings["tls"].is_yes else "",
    }
    found = {name: value for name, value in security.items() if value}
    return {"endpoint": settings["endpoints"].text, **found}


def _origin(session: Session, data: str | None) -> "Origin":
    from onelog.spark.columns.views import VIEWS
    from onelog.spark.options import ReadOptions
    from onelog.spark.table import open_origin

    return open_origin(ReadOptions.parse({"view": "log", **_where(session, data)}, VIEWS))


def _read_since(text: str) -> "tuple[Receipt, Since]":
    """Read a receipt by its name, or the last one of a target."""
    from onelog.spark.export.job import read_receipts, read_since
    from onelog.spark.export.receipt import receipt_name
    from onelog.spark.export.target import open_target

    place, question, options = text.partition("?")  # of a URL: how the store is reached
    name = ""
    if place.endswith(".json"):
        place, _, name = place.rpartition("/")
    target = open_target((place or str(Path.cwd())) + question + options)
    if not name:
        name = receipt_name(max(len(read_receipts(target)), 1))
    data = target.read(name)
    if data is None:
        raise CommandFailed("NO_RECEIPT", f"{text}: there is no {name}")
    return read_since(name, data)


# Running -----------------------------------------------------------------------------------------


class _Run:
    """An export on Spark, once or until Ctrl-C."""

    def __init__(self, session: Session, request: "ExportRequest", master: str | None) -> None:
        self._session = session
        self._request = request
        self._master = master
        self._spark: Any = None
        self._is_own_spark = False

    def start(self, since: str | None, interval_s: float | None) -> None:
        """Export once; with ``interval_s`` repeatedly."""
        if since is not None:
            self._continue_behind(_read_since(since))
        if interval_s is not None and self._request.view.shows_state:
            from onelog.spark.export.plan import not_continued

            raise not_continued(self._request.view)
        try:
            if interval_s is None:
                self._once()
            else:
                self._follow(interval_s)
        finally:
            if self._spark is not None and self._is_own_spark:
                self._spark.stop()

    def _follow(self, interval_s: float) -> None:
        from onelog.spark.export.job import has_news, read_receipts, read_since
        from onelog.spark.export.receipt import receipt_name

        target = self._request.target
        try:
            while True:
                number = len(read_receipts(target))
                if number:
                    name = receipt_name(number)
                    self._continue_behind(read_since(name, target.read(name) or b""))
                if not number or has_news(self._request):
                    self._once()
                time.sleep(interval_s)
        except KeyboardInterrupt:
            note("interrupted; the same command continues")

    def _continue_behind(self, since: "tuple[Receipt, Since]") -> None:
        from dataclasses import replace

        self._request = replace(self._request, since=since)

    def _once(self) -> None:
        from onelog.spark.export.job import run_export

        started = time.monotonic()
        with export_progress() as progress:
            outcome = run_export(self._request, self._runner, progress)
        print_outcome(self._session, self._request, outcome, time.monotonic() - started)

    def _runner(self, *arguments: Any) -> None:
        """Start Spark when there is work for it."""
        from onelog.spark.export.spark_runner import SparkRunner

        if self._spark is None:
            from pyspark.sql import SparkSession

            self._is_own_spark = SparkSession.getActiveSession() is None
            self._spark = _start_spark(self._master)
        SparkRunner(self._spark)(*arguments)


def _start_spark(master: str | None) -> Any:
    from pyspark.errors import PySparkException

    from onelog.spark.session import quiet_settings, start_session

    if SUBMITTED in os.environ:
        return start_session(master=master, app_name="onelog export")
    master = master or DEFAULT_MASTER
    with NamedTemporaryFile("r+", prefix="onelog-spark-", suffix=".log") as log:
        try:
            with _stderr_into(log.fileno()):
                return start_session(
                    master=master, app_name="onelog export", settings=quiet_settings(master)
                )
        except PySparkException as error:
            log.seek(0)
            said = " ".join(log.read()[-SAID_SIZE_MAX:].split())
            raise CommandFailed("SPARK_FAILED", f"Spark does not start: {error}: {said}") from error


@contextmanager
def _stderr_into(descriptor: int) -> Iterator[None]:
    """Redirect stderr while Java starts, which keeps it; so its output stays off the terminal."""
    sys.stderr.flush()
    saved = os.dup(2)
    os.dup2(descriptor, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
