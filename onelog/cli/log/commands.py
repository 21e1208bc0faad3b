"""``onelog log``: inspect, verify and repair the files of a data directory, without a server.

The work is done in ``ual``, which is imported inside the commands, so that every other command
starts without it. ``onelog/cli/log/output.py`` prints the results.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from onelog.cli.command import group

if TYPE_CHECKING:
    from onelog.cli.log.output import StateReport
    from onelog.ual.offline.reader import OfflineLog

U64_MAX = (1 << 64) - 1

EXIT_CLEAN = 0
EXIT_DAMAGED = 1
EXIT_TIDY = 3

app = group(
    "Inspect, verify and repair the files of a data directory; no server is needed.",
    "onelog log inspect ./onelog-data",
    "onelog log verify ./onelog-data",
    "onelog log replay ./onelog-data --key greeting",
    "onelog log prove ./onelog-data",
)


def _data_dir(text: str) -> Path:
    # An empty argument, from an unset variable, would mean the current directory.
    if not text:
        raise typer.BadParameter("is empty; give the path of a data directory")
    return Path(text)


DataDir = Annotated[
    Path, typer.Argument(metavar="DIR", parser=_data_dir, help="The data directory.")
]
Shard = Annotated[int | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard.")]
OneShard = Annotated[int, typer.Option("--shard", min=0, metavar="N", help="The shard.")]
FirstIndex = Annotated[
    int | None, typer.Option("--from", min=1, metavar="I", help="The first index.")
]
LastIndex = Annotated[int | None, typer.Option("--to", min=1, metavar="I", help="The last index.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--type",
        metavar="TYPE",
        help="Only entries of this type (kv.put, 0x0101) or owner (kv, queue, timeseries, "
        "stream, system); repeatable.",
    ),
]
StreamId = Annotated[
    int | None,
    typer.Option("--stream", min=0, max=U64_MAX, metavar="ID", help="Only records of this stream."),
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", min=1, max=U64_MAX, metavar="N", help="At most N entries."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]


@app.callback(invoke_without_command=True)
def log(context: typer.Context) -> None:
    """Inspect, verify and repair the files of a data directory; no server is needed."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def inspect(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    types: Annotated[
        bool, typer.Option("--types", help="Count entries by type; reads every sealed file.")
    ] = False,
    state: Annotated[
        bool,
        typer.Option(
            "--state", help="Count keys, queues, streams, series and more; replays the log."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List the files of a data directory: ranges, sizes, times, types of entries.

    Works while a server is running, and changes nothing. A file that is missing or cannot be read
    is shown as a problem; verify checks every byte.

    \b
    Exit codes:
      0  no problem was seen
      1  a problem was shown, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog log inspect ./onelog-data
      onelog log inspect ./onelog-data --shard 2 --types
      onelog log inspect ./onelog-data --state
      onelog log inspect ./onelog-data --json | jq '.shards[].last_index'
    """
    from onelog.cli.log import output
    from onelog.ual.files import DiskFiles
    from onelog.ual.offline.inspect import inspect_directory

    report = inspect_directory(DiskFiles(), data_dir, shard=shard, count_types=types)
    states = {at.shard: _state_report(data_dir, at.shard) for at in report.shards if state}
    if as_json:
        output.print_json(report, states)
    else:
        output.print_directory(report, states)
    if report.has_problems or any(each.problem for each in states.values()):
        raise typer.Exit(EXIT_DAMAGED)


def _state_report(data_dir: Path, shard: int) -> "StateReport":
    """Rebuild the state of a shard and count it; an error becomes a part of the report."""
    from onelog.cli.log.output import StateReport
    from onelog.snapshot.offline import rebuild_state
    from onelog.ual.errors import UalError
    from onelog.ual.files import DiskFiles
    from onelog.ual.offline.inspect import shown_error

    try:
        rebuilt = rebuild_state(DiskFiles(), data_dir, shard)
    except (UalError, OSError) as error:
        return StateReport(0, {}, f"the state cannot be rebuilt: {shown_error(error)}")
    return StateReport(rebuilt.index, rebuilt.counts_by_model)


@app.command()
def dump(
    data_dir: DataDir,
    *,
    shard: OneShard = 0,
    first_index: FirstIndex = None,
    last_index: LastIndex = None,
    kinds: Kinds = None,
    stream_id: StreamId = None,
    limit: Limit = None,
    skip_voids: Annotated[
        bool, typer.Option("--skip-voids", help="Leave out entries that apply refused.")
    ] = False,
    past_commit: Annotated[
        bool, typer.Option("--all", help="Also entries that are not known to be committed.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line, payloads in full.")
    ] = False,
) -> None:
    """Print the entries of one shard, decoded and verified.

    A line describes the operation of an entry, or shows the payload if it has none; --json has
    both, with the whole payload.
    Ends at the last index that is known to be committed unless --all is given. If entries are
    missing or damaged, prints the intact ones before them, then an error. Which entries belong to a
    stream, and which were refused, is known for sealed files only. Works while a server is running.

    \b
    Exit codes:
      0  everything that was asked for was printed
      1  something of it is missing or damaged, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog log dump ./onelog-data --from 1000 --to 1010
      onelog log dump ./onelog-data --shard 1 --type kv --limit 20
      onelog log dump ./onelog-data --type queue --json | jq -r .what
      onelog log dump ./onelog-data --type kv.put --type queue.enqueue
      onelog log dump ./onelog-data --type 0x0401 --json | jq -r .payload_hex
    """
    from onelog.cli.log import output
    from onelog.ual.errors import CorruptFile
    from onelog.ual.files import DiskFiles
    from onelog.ual.offline.reader import open_offline_log

    if first_index is not None and last_index is not None and last_index < first_index:
        raise typer.BadParameter(f"--to {last_index} is below --from {first_index}")
    types = output.parse_types(kinds)
    source = open_offline_log(DiskFiles(), data_dir, shard)
    try:
        first, last = source.resolve_range(first_index, last_index, past_commit=past_commit)
        _say_what_is_left_out(
            source, first, last, last_index,
            past_commit=past_commit, stream_id=stream_id, skip_voids=skip_voids,
        )  # fmt: skip
        entries = source.entries(
            first, last, types=types, stream_id=stream_id, skip_voids=skip_voids, limit=limit
        )
        count, last_shown = output.print_entries(entries, as_json=as_json)
        # Everything readable is printed; now check that nothing is missing.
        seen_to = last_shown if count == limit else last_index
        loss = source.loss_within(first_index, seen_to)
        if loss is not None:
            raise loss.error
    except CorruptFile as error:
        rule = f"{error.rule}; onelog log verify lists all damage"
        raise CorruptFile(error.path, rule, error.offset) from error
    if not count:
        typer.echo("note: no entry matches", err=True)


def _say_what_is_left_out(
    source: "OfflineLog",
    first: int,
    last: int,
    last_asked: int | None,
    *,
    past_commit: bool,
    stream_id: int | None,
    skip_voids: bool,
) -> None:
    """Print notes on stderr about entries that the output leaves out."""
    from onelog.ual.offline.inspect import shown_error

    errors = source.errors if source.system_error is None else [source.system_error, *source.errors]
    notes = [shown_error(error) for error in errors]
    if source.manifest is None and source.parts:
        notes.append("without MANIFEST, entries that are missing at the start cannot be noticed")
    if last_asked is not None and last_asked > last:
        what = "in the log" if past_commit else "known to be committed; --all shows more, if any"
        notes.append(f"entries above {last} are not {what}")
    elif last < first <= source.last_index:
        notes.append(
            f"entries {first} to {source.last_index} are not known to be committed; "
            "--all shows them"
        )
    if (stream_id is not None or skip_voids) and last > source.sealed_index:
        unsealed = f"{max(source.sealed_index + 1, first)} to {last}"
        what = "not shown" if stream_id is not None else "all shown"
        notes.append(f"entries {unsealed} are not sealed yet and {what}")
    for note in notes:
        typer.echo(f"note: {note}", err=True)


@app.command()
def verify(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Check every file: checksums, order, tables, and that all durable entries exist.

    Changes nothing and continues after damage. While a server is running, a write in progress may
    be reported as a tail.

    \b
    Exit codes:
      0  clean (notes and foreign files do not count)
      1  damage was found, or the command failed
      2  the command was not understood
      3  only what opening the log tidies by itself: tails, leftovers, one bad slot of RAFT

    \b
    Examples:
      onelog log verify ./onelog-data
      onelog log verify ./onelog-data --json | jq '.findings[] | select(.level == "error")'
    """
    from onelog.cli.log import output
    from onelog.snapshot.proof import VERIFIERS, find_snapshots
    from onelog.ual.files import DiskFiles
    from onelog.ual.offline.verify import Level
    from onelog.ual.offline.verify import verify as verify_directory

    with output.progress_bar("verify", is_shown=not (no_progress or as_json)) as progress:
        findings = verify_directory(
            DiskFiles(),
            data_dir,
            progress,
            shard=shard,
            verifiers=VERIFIERS,
            find_snapshots=find_snapshots,
        )
    levels = {finding.level for finding in findings}
    code = EXIT_CLEAN
    if Level.ERROR in levels:
        code = EXIT_DAMAGED
    elif levels & {Level.TAIL, Level.LEFTOVER}:
        code = EXIT_TIDY
    output.print_findings(data_dir, findings, as_json=as_json)
    raise typer.Exit(code)


@app.command()
def repair(
    data_dir: DataDir,
    *,
    is_confirmed: Annotated[
        bool, typer.Option("--yes", help="Carry out the plan; by default it is only printed.")
    ] = False,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Repair what can be repaired offline: tails, leftovers, derived tables, RAFT slots, MANIFEST.

    MANIFEST is made again from the segments, RAFT and the undamaged snapshots. A damaged snapshot
    is renamed if another one, or the whole log, leads to the state.

    Prints the plan, and carries it out only with --yes. The server must be stopped. Everything that
    is cut, removed or replaced is copied to DIR/repair-TIME first. Damage that needs a peer or a
    backup is listed but not changed.

    \b
    Exit codes:
      0  nothing to do, or all of it done
      1  something cannot be repaired here, or the command failed
      2  the command was not understood
      3  there is something to do, and --yes was not given

    \b
    Examples:
      onelog log repair ./onelog-data
      onelog log repair ./onelog-data --yes
    """
    from onelog.cli.log import output
    from onelog.snapshot.proof import VERIFIERS, find_snapshots
    from onelog.ual.files import DiskFiles
    from onelog.ual.offline.repair import apply_repairs, plan_repairs

    files = DiskFiles()
    with output.progress_bar("verify", is_shown=not (no_progress or as_json)) as progress:
        plan = plan_repairs(
            files, data_dir, progress, verifiers=VERIFIERS, find_snapshots=find_snapshots
        )
    is_needed = any(repair.is_possible for repair in plan)
    if not as_json:
        output.print_plan(data_dir, plan)
    copies = None
    if is_needed and is_confirmed:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        copies = apply_repairs(
            files, data_dir, plan, stamp, verifiers=VERIFIERS, find_snapshots=find_snapshots
        )
    output.print_repairs(plan, copies, is_done=is_needed and is_confirmed, as_json=as_json)
    if not all(repair.is_possible for repair in plan):
        raise typer.Exit(EXIT_DAMAGED)
    raise typer.Exit(EXIT_TIDY if is_needed and not is_confirmed else EXIT_CLEAN)
