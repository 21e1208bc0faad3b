"""``onelog log replay``, ``snapshot`` and ``prove``: the state that a data directory leads to.

``replay`` rebuilds it and answers questions about its past, ``snapshot`` saves it, ``prove``
compares it with the newest snapshot. The work is done in ``snapshot``, which is imported inside the
commands, so that every other command starts without it. ``output.py`` prints the answers of
``replay``.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from onelog.cli.output import counted, printable

if TYPE_CHECKING:
    from onelog.snapshot.progress import Progress as ProgressCall
    from onelog.snapshot.proof import Proof, StateHash
    from onelog.snapshot.questions import Question


@contextmanager
def progress_bar(*, is_shown: bool) -> "Iterator[ProgressCall]":
    """Show a bar on stderr while the block runs, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from onelog.snapshot.progress import Phase, no_progress

    console = Console(stderr=True)
    if not is_shown or not console.is_terminal:
        yield no_progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(phase: Phase, done: int, total: int) -> None:
            bar.update(task, description=phase.value, completed=done, total=total or None)

        yield show


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def warn(message: str) -> None:
    """Print a warning on stderr."""
    typer.echo(f"warning: {printable(message)}", err=True)


# Replay

LIST_MAX = 1_000  # messages, records or series that one answer may list

DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]
Shard = Annotated[int | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]
ToIndex = Annotated[
    int | None, typer.Option("--to", min=1, metavar="INDEX", help="Stop after this entry.")
]
AtIndex = Annotated[
    int | None,
    typer.Option(
        "--at", min=1, metavar="INDEX", help="Answer as of this entry instead of the end."
    ),
]
Key = Annotated[str | None, typer.Option("--key", metavar="KEY", help="Show a key.")]
QueueName = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Show a queue: depths, totals.")
]
StreamName = Annotated[
    str | None,
    typer.Option("--stream", metavar="NAME", help="Show a stream: offsets, consumer groups."),
]
SeriesText = Annotated[
    str | None,
    typer.Option("--series", metavar="SERIES", help="Show a time series: its points."),
]
Field = Annotated[
    str | None, typer.Option("--field", metavar="NAME", help="Only this field of --series.")
]
MeasurementName = Annotated[
    str | None,
    typer.Option("--measurement", metavar="NAME", help="Show a measurement: fields, rules."),
]
ListMax = Annotated[
    int | None,
    typer.Option(
        "--list",
        min=1,
        max=LIST_MAX,
        metavar="N",
        help="List the first N messages of --queue or series of --measurement, the last N records "
        "of --stream or points of --series.",
    ),
]
NamespaceName = Annotated[
    str, typer.Option("--namespace", metavar="NS", help="The namespace of the key, queue, ….")
]


def replay(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    to_index: ToIndex = None,
    at_index: AtIndex = None,
    key: Key = None,
    queue: QueueName = None,
    stream: StreamName = None,
    series: SeriesText = None,
    field: Field = None,
    measurement: MeasurementName = None,
    list_max: ListMax = None,
    namespace: NamespaceName = "default",
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Rebuild the state from snapshots and log; print counts and the state hash.

    Starts from the newest usable snapshot, or from the beginning of the log, and applies the
    entries that are known to be committed, or those up to --to. A directory learns a moment later
    than its server what is committed: --to takes any entry that is in the log, such as the index
    that 'onelog admin hash' prints. One of --key, --queue, --stream, --series and
    --measurement shows that thing at --at, or at the end; its shard is found automatically. Changes
    nothing and works while a server is running.

    \b
    Exit codes:
      0  the state was rebuilt (a name that did not exist is an answer)
      1  the directory does not lead to that state, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog log replay ./onelog-data
      onelog log replay ./onelog-data --shard 2 --to 100000 --json
      onelog log replay ./onelog-data --at 4711 --key user/17
      onelog log replay ./onelog-data --at 4711 --queue mail --list 10
      onelog log replay ./onelog-data --stream orders --list 10
      onelog log replay ./onelog-data --series 'cpu{host=a}' --field usage --json
      onelog log replay ./onelog-data --measurement cpu
    """
    if at_index is not None and to_index is not None:
        raise typer.BadParameter("give --at or --to, not both")
    names = {
        "key": key, "queue": queue, "stream": stream, "series": series, "measurement": measurement,
    }  # fmt: skip
    asked = {subject: name for subject, name in names.items() if name is not None}
    question = _question(asked, namespace, field, list_max)
    if at_index is not None and question is None:
        options = ", ".join(f"--{subject}" for subject in names)
        raise typer.BadParameter(f"--at answers for one thing: give one of {options}, or use --to")
    reports = _rebuild(
        data_dir, shard, to_index if at_index is None else at_index, question,
        is_shown=not (no_progress or as_json),
    )  # fmt: skip
    if as_json:
        print_json({"path": str(data_dir), "shards": [report for report, _ in reports]})
        return
    from onelog.cli.log.output import print_rebuilt

    for report, counts in reports:
        print_rebuilt(report, counts, list_max or 0)


def _question(
    asked: dict[str, str], namespace: str, field: str | None, list_max: int | None
) -> "Question | None":
    """Return the question that the flags ask, or None; refuse flags that do not fit together."""
    options = " and ".join(f"--{subject}" for subject in asked)
    if len(asked) > 1:
        raise typer.BadParameter(f"{options} are two questions: give one of them")
    if field is not None and "series" not in asked:
        raise typer.BadParameter("--field is about --series: give that")
    if list_max is not None and (not asked or "key" in asked):
        raise typer.BadParameter(
            "--list says what is in a thing: give --queue, --stream, --series or --measurement"
        )
    if not asked:
        return None
    from onelog.snapshot.questions import Question, Subject

    ((subject, name),) = asked.items()
    question = Question(Subject(subject), name, namespace, field, list_max or 0)
    try:
        question.check()
    except ValueError as error:
        raise typer.BadParameter(f"{options} {name}: {error}") from error
    return question


def _rebuild(
    data_dir: Path,
    shard: int | None,
    index: int | None,
    question: "Question | None",
    *,
    is_shown: bool,
) -> list[tuple[dict[str, Any], dict[str, dict[str, int]]]]:
    """Rebuild the selected shards; return the report on each.

    One state at a time: all of them may not fit into memory.
    """
    from onelog.snapshot.offline import choose_shards, rebuild_state
    from onelog.snapshot.questions import answer
    from onelog.ual.files import DiskFiles

    files = DiskFiles()
    if question is not None and shard is None:
        shard = question.shard(files, data_dir)
    chosen = choose_shards(files, data_dir, shard)
    if index is not None and len(chosen) > 1:
        raise typer.BadParameter("shards count their entries apart: give --shard with --to")
    reports: list[tuple[dict[str, Any], dict[str, dict[str, int]]]] = []
    with progress_bar(is_shown=is_shown) as progress:
        for number in chosen:
            rebuilt = rebuild_state(
                files, data_dir, number, index=index,
                records_kept=0 if question is None else question.records_kept, progress=progress,
            )  # fmt: skip
            for at in rebuilt.rejected:
                warn(f"shard {number}: {at.why}; an older one was used")
            if rebuilt.index > rebuilt.committed_index:
                warn(
                    f"shard {number}: the directory records entries up to "
                    f"{rebuilt.committed_index} as committed; those after it were applied because "
                    "you named them"
                )
            report: dict[str, Any] = {
                "shard": rebuilt.shard,
                "index": rebuilt.index,
                "state_hash": rebuilt.state_hash,
                "base_index": rebuilt.base_index,
                "entry_count": rebuilt.entry_count,
                "committed_index": rebuilt.committed_index,
                "counts": rebuilt.counts,
            }
            if question is not None:
                report[question.subject.value] = answer(rebuilt, question)
            reports.append((report, rebuilt.counts_by_model))
            del rebuilt
    return reports


# State

EXIT_DIFFERS = 1
EXIT_NOTHING = 2


def register(app: typer.Typer) -> None:
    """Add the commands to ``onelog log``."""
    for command in (replay, snapshot, prove):
        app.command()(command)


def snapshot(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Save the state of each shard as a snapshot; the server must be stopped.

    The next start loads it and replays only the entries after it. Older snapshots
    stay, until the next one of the server: it drops those that its settings do not keep. A shard
    that has not changed since its newest snapshot is skipped.

    \b
    Exit codes:
      0  every shard with entries has a snapshot of its state
      1  the directory is damaged or in use, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog log snapshot ./onelog-data
      onelog log snapshot ./onelog-data --shard 0 --json
    """
    from onelog.snapshot.offline import choose_shards, make_snapshot
    from onelog.ual.files import DiskFiles

    files = DiskFiles()
    reports: list[dict[str, Any]] = []
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        for number in choose_shards(files, data_dir, shard):
            made = make_snapshot(files, data_dir, number, int(time.time()), progress=progress)
            if made is None:
                reports.append({"shard": number, "snapshot": None, "is_new": False})
                continue
            for at in made.rejected:
                warn(f"shard {number}: {at.why}; an older one was used, and it is forgotten")
            reports.append(
                {
                    "shard": number,
                    "snapshot": asdict(made.record),
                    "is_new": made.is_new,
                    "counts": made.counts,
                }
            )
    if as_json:
        print_json({"path": str(data_dir), "shards": reports})
        return
    for report in reports:
        record = report["snapshot"]
        if record is None:
            typer.echo(f"shard {report['shard']}: empty, nothing to save")
            continue
        what = "" if report["is_new"] else ", unchanged since"
        typer.echo(
            f"shard {report['shard']}: {record['file']}, {counted(record['size'], 'byte')}, "
            f"state hash {record['state_hash']} at index {record['index']}{what}"
        )


Expected = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="TEXT",
        help="Compare with this, too: 'HASH at index N', as 'onelog admin hash' prints it.",
    ),
]
_EXPECTED = re.compile(r"\s*([0-9a-f]{1,16}) at index ([1-9][0-9]{0,19})\s*")


def _parse_expected(text: str) -> "StateHash":
    from onelog.snapshot.proof import StateHash

    found = _EXPECTED.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"--expect '{text}' is not like '3aafe184ffba7a11 at index 8'")
    return StateHash(int(found[2]), found[1].rjust(16, "0"))


def _describe(proof: "Proof") -> str:
    """Return a line on a proof: what was compared, how far, and what was only replayed."""
    facts = f"shard {proof.shard}: {proof.verdict.value}"
    start = f"index {proof.base_index}" if proof.base_index else "the first entry"
    if proof.replayed_hash is not None:
        facts += (
            f", state hash {proof.replayed_hash} at index {proof.index} after "
            f"{counted(proof.entry_count, 'entry')} from {start}"
        )
    for name, found in (("snapshot", proof.snapshot_hash), ("MANIFEST", proof.manifest_hash)):
        if found is not None and found != proof.replayed_hash:
            facts += f", {name} {found}"
    if proof.found_hash is not None:
        is_equal = proof.found_hash == proof.expected_hash
        what = "as expected" if is_equal else f"expected {proof.expected_hash}"
        facts += f"; {proof.found_hash} at index {proof.expected_index}, {what}"
    compared = max(proof.index, proof.expected_index)
    if proof.end_hash is not None and proof.end_index > compared:
        facts += (
            f"; entries {max(compared, proof.base_index) + 1} to {proof.end_index} were replayed "
            f"only, to {proof.end_hash}"
        )
    return facts + (f": {printable(proof.message)}" if proof.message else "")


def prove(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    expect: Expected = None,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Prove that the state follows from the log: replay it and compare the hashes of the state.

    Replays each shard from the oldest point that is kept (the first entry if the log is complete,
    else the oldest snapshot) to the end of what is known to be committed. At the newest snapshot it
    compares the state hashes of the replay, of the snapshot and of MANIFEST. The entries after it
    are applied, but nothing in the directory says what must come out: --expect compares with what
    a server, or another replica, has at an index. Changes nothing; works while a server is running.

    \b
    Exit codes:
      0  all hashes are equal; shards without a snapshot have nothing to compare
      1  a mismatch or damage was found, or the command failed
      2  the command was not understood, or there was nothing to compare with

    \b
    Examples:
      onelog log prove ./onelog-data
      onelog log prove ./onelog-data --shard 0 --expect "$(onelog admin hash 0)"
      onelog log prove ./onelog-data --json | jq '.shards[].verdict'
    """
    expected = None if expect is None else _parse_expected(expect)
    from onelog.snapshot.offline import choose_shards
    from onelog.snapshot.proof import Verdict, prove_shard
    from onelog.ual.files import DiskFiles

    files = DiskFiles()
    chosen = choose_shards(files, data_dir, shard)
    if expected is not None and len(chosen) > 1:
        raise typer.BadParameter("each shard has its own hash: give --shard with --expect")
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        proofs = [
            prove_shard(files, data_dir, number, progress, expected=expected) for number in chosen
        ]
    if as_json:
        rows = [
            asdict(proof) | {"verdict": proof.verdict.value, "proved_index": proof.proved_index}
            for proof in proofs
        ]
        print_json({"path": str(data_dir), "shards": rows})
    else:
        for proof in proofs:
            typer.echo(_describe(proof))
    verdicts = {proof.verdict for proof in proofs}
    if verdicts & {Verdict.MISMATCH, Verdict.DAMAGED}:
        raise typer.Exit(EXIT_DIFFERS)
    if verdicts == {Verdict.NOTHING}:
        raise typer.Exit(EXIT_NOTHING)
