"""What ``onelog export`` shows: progress for people, results as lines or JSON."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from onelog.cli.command import Session
from onelog.cli.output import note

if TYPE_CHECKING:
    from onelog.spark.export.job import Outcome, Progress
    from onelog.spark.export.journal import Plan, SplitFacts
    from onelog.spark.export.plan import ExportRequest
    from onelog.spark.export.verify import Report

DIFFERENCES_SHOWN_MAX = 100


@contextmanager
def export_progress() -> "Iterator[Progress]":
    """Show rows, bytes, splits and time left on stderr, if somebody is there to see it."""
    from onelog.spark.export.job import Progress

    class Notes(Progress):
        """Says what a user should know before the first task."""

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
        note(f"continues an interrupted export: {len(done)} of {len(plan.splits)} splits are done")
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
    """Count the bytes that were read on stderr, if somebody is there to see it."""
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
    """Print what an export did."""
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
            f"exported {receipt.rows:,} rows, {receipt.size_bytes:,} bytes in "
            f"{len(receipt.files)} files: {request.target.name}, {outcome.receipt_name}"
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
    """Print what verifying found."""
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
    what = "good" if report.is_good else f"{len(report.differences)} differences"
    lines.append(
        f"{what}: {report.rows:,} rows in {report.files} files, {report.receipts} receipts; "
        f"{report.log_compared} files compared with the log"
    )
    for each in (*report.notes, *(f"not compared: {each}" for each in report.log_not_compared)):
        note(each)
    if session.output.as_json:
        session.output.result(document, "")
    else:
        for line in lines:
            session.output.line(None, line)
