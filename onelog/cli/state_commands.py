"""``onelog log replay``, ``snapshot`` and ``prove``: the state that a data directory leads to.

Thin: the work is done in ``snapshot``, which is imported inside the commands, because every other
command of the client must start without it. Values and names come from files that anybody may have
written, so whatever is not printable is escaped before it reaches a terminal.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from snapshot.offline import Rebuilt
    from snapshot.progress import Progress as ProgressCall

EXIT_DIFFERS = 1
EXIT_NOTHING = 2

DataDir = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory.")]
Shard = Annotated[int | None, typer.Option("--shard", min=0, metavar="N", help="Only this shard.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
NoProgress = Annotated[bool, typer.Option("--no-progress", help="Show no progress bar.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``onelog log``."""
    for command in (replay, snapshot, prove):
        app.command()(command)


def replay(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    to_index: Annotated[
        int | None, typer.Option("--to", min=1, metavar="INDEX", help="Stop behind this entry.")
    ] = None,
    at_index: Annotated[
        int | None,
        typer.Option("--at", min=1, metavar="INDEX", help="Say what --key was at this entry."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", metavar="KEY", help="A key to look up in the state.")
    ] = None,
    namespace: Annotated[
        str, typer.Option("--namespace", metavar="NS", help="The namespace of --key.")
    ] = "default",
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Rebuild the state from snapshots and log; print counts and the state hash.

    Starts from the newest usable snapshot, or from the beginning of the log, and applies what is
    known to be committed. With --key, says what that key was at --at, or at the end; its shard is
    found by itself. Changes nothing and works while a server is running.

    \b
    Exit codes:
      0  the state was rebuilt (a key that did not exist is an answer)
      1  the directory does not lead to that state, or the command failed
      2  the command was not understood

    \b
    Examples:
      onelog log replay ./onelog-data
      onelog log replay ./onelog-data --shard 2 --to 100000 --json
      onelog log replay ./onelog-data --at 4711 --key user/17
    """
    from snapshot.offline import rebuild_state, shard_of_key, shards_of
    from ual.files import DiskFiles

    if at_index is not None and key is None:
        raise typer.BadParameter("--at answers for a key: give --key, or use --to")
    if at_index is not None and to_index is not None:
        raise typer.BadParameter("give --at or --to, not both")
    files = DiskFiles()
    index = to_index if at_index is None else at_index
    wanted = None if key is None else os.fsencode(key)
    if wanted is not None and shard is None:
        shard = shard_of_key(files, data_dir, wanted)
    chosen = shards_of(files, data_dir, shard)
    if index is not None and len(chosen) > 1:
        raise typer.BadParameter("shards count their entries apart: give --shard with --to")
    reports = []
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        for number in chosen:
            rebuilt = rebuild_state(files, data_dir, number, index=index, progress=progress)
            for at in rebuilt.rejected:
                _warn(f"shard {number}: {at.why}; an older one was used")
            reports.append(_rebuilt_fields(rebuilt, namespace, wanted))
    if as_json:
        _print_json({"path": str(data_dir), "shards": reports})
        return
    for report in reports:
        _print_rebuilt(report)


def snapshot(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Save the state of each shard as a snapshot; the server must be stopped.

    The next start loads it and replays only what follows. The last two are kept. A shard that has
    not changed since its newest snapshot is left as it is.

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
    from snapshot.offline import make_snapshot, shards_of
    from ual.files import DiskFiles

    files = DiskFiles()
    reports: list[dict[str, Any]] = []
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        for number in shards_of(files, data_dir, shard):
            made = make_snapshot(files, data_dir, number, int(time.time()), progress=progress)
            if made is None:
                reports.append({"shard": number, "snapshot": None, "is_new": False})
                continue
            for at in made.rejected:
                _warn(f"shard {number}: {at.why}; an older one was used, and it is forgotten")
            reports.append(
                {
                    "shard": number,
                    "snapshot": asdict(made.record),
                    "is_new": made.is_new,
                    "counts": made.counts,
                }
            )
    if as_json:
        _print_json({"path": str(data_dir), "shards": reports})
        return
    for report in reports:
        record = report["snapshot"]
        if record is None:
            typer.echo(f"shard {report['shard']}: empty, nothing to save")
            continue
        what = "" if report["is_new"] else ", unchanged since"
        typer.echo(
            f"shard {report['shard']}: {record['file']}, {record['size']} bytes, "
            f"state hash {record['state_hash']} at index {record['index']}{what}"
        )


def prove(
    data_dir: DataDir,
    *,
    shard: Shard = None,
    as_json: AsJson = False,
    no_progress: NoProgress = False,
) -> None:
    """Prove that the state is the log's: replay it and compare with the newest snapshot.

    Replays each shard from the oldest point that is kept (from the first entry while the log is
    whole, else from the older snapshot) to its newest snapshot, and compares the state hashes of
    the replay, of the snapshot and of MANIFEST. Changes nothing; works while a server is running.

    \b
    Exit codes:
      0  all hashes are equal; shards without a snapshot have nothing to compare
      1  a mismatch or damage was found, or the command failed
      2  the command was not understood, or no shard has a snapshot

    \b
    Examples:
      onelog log prove ./onelog-data
      onelog log prove ./onelog-data --json | jq '.shards[].verdict'
    """
    from snapshot.offline import shards_of
    from snapshot.proof import Verdict, prove_shard
    from ual.files import DiskFiles

    files = DiskFiles()
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        proofs = [
            prove_shard(files, data_dir, number, progress)
            for number in shards_of(files, data_dir, shard)
        ]
    if as_json:
        rows = [asdict(proof) | {"verdict": proof.verdict.value} for proof in proofs]
        _print_json({"path": str(data_dir), "shards": rows})
    else:
        for proof in proofs:
            facts = f"shard {proof.shard}: {proof.verdict.value}"
            if proof.replayed_hash is not None:
                start = f"index {proof.base_index}" if proof.base_index else "the first entry"
                facts += (
                    f", state hash {proof.replayed_hash} at index {proof.index} after "
                    f"{proof.entry_count} entries from {start}"
                )
            for name, found in (
                ("snapshot", proof.snapshot_hash),
                ("MANIFEST", proof.manifest_hash),
            ):
                if found is not None and found != proof.replayed_hash:
                    facts += f", {name} {found}"
            typer.echo(facts + (f": {_printable(proof.message)}" if proof.message else ""))
    verdicts = {proof.verdict for proof in proofs}
    if verdicts & {Verdict.MISMATCH, Verdict.DAMAGED}:
        raise typer.Exit(EXIT_DIFFERS)
    if verdicts == {Verdict.NOTHING}:
        raise typer.Exit(EXIT_NOTHING)


@contextmanager
def progress_bar(*, is_shown: bool) -> "Iterator[ProgressCall]":
    """Show a bar on stderr while the block runs, if somebody is there to see it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    from snapshot.progress import Phase, no_progress

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


def _rebuilt_fields(rebuilt: "Rebuilt", namespace: str, key: bytes | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "shard": rebuilt.shard,
        "index": rebuilt.index,
        "state_hash": rebuilt.state_hash,
        "base_index": rebuilt.base_index,
        "entry_count": rebuilt.entry_count,
        "counts": rebuilt.counts,
    }
    if key is not None:
        fields["key"] = _key_fields(rebuilt, namespace, key)
    return fields


def _key_fields(rebuilt: "Rebuilt", namespace: str, key: bytes) -> dict[str, Any]:
    from snapshot.offline import read_key

    found = read_key(rebuilt, namespace, key)
    fields: dict[str, Any] = {"namespace": namespace, "exists": found is not None}
    fields |= _bytes_fields("key", key)
    if found is None:
        return fields
    fields |= _bytes_fields("value", found.value)
    return fields | {
        "version": found.version,
        "expires_ns": found.expires_ns,
        "lease": found.lease,
    }


def _bytes_fields(name: str, data: bytes) -> dict[str, str]:
    """Return bytes as text if all of it is printable, else as hex under another name."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    return {name: text} if text.isprintable() else {f"{name}_hex": data.hex()}


def _print_rebuilt(report: dict[str, Any]) -> None:
    start = f"the snapshot at {report['base_index']}" if report["base_index"] else "the first entry"
    state_hash = report["state_hash"] or "(none inside of a batch)"
    counts = ", ".join(f"{name} {count}" for name, count in report["counts"].items() if count)
    typer.echo(
        f"shard {report['shard']}: state hash {state_hash} at index {report['index']}, "
        f"{report['entry_count']} entries replayed from {start}"
    )
    typer.echo(f"  {counts or 'empty'}")
    key = report.get("key")
    if key is None:
        return
    name = key.get("key") or f"0x{key['key_hex']}"
    if not key["exists"]:
        typer.echo(f"  {_printable(key['namespace'])}/{name} did not exist")
        return
    value = key["value"] if "value" in key else f"0x{key['value_hex']}"
    typer.echo(f"  {_printable(key['namespace'])}/{name} = {value} (version {key['version']})")


def _print_json(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def _warn(message: str) -> None:
    typer.echo(f"warning: {_printable(message)}", err=True)


def _printable(text: str) -> str:
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape", "backslashreplace").decode()
        for char in text
    )
