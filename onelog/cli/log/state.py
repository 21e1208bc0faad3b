"""``onelog log snapshot`` and ``prove``: save the state of a data directory, and check it.

Thin: the work is done in ``snapshot``, which is imported inside the commands, because every other
command of the client must start without it. ``onelog log replay`` is in replay_command.py.
"""

import time
from dataclasses import asdict
from typing import Any

import typer

from onelog.cli.log.replay_command import AsJson, DataDir, NoProgress, Shard, replay
from onelog.cli.log.state_output import print_json, printable, progress_bar, warn

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
    from onelog.snapshot.offline import make_snapshot, shards_of
    from onelog.ual.files import DiskFiles

    files = DiskFiles()
    reports: list[dict[str, Any]] = []
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        for number in shards_of(files, data_dir, shard):
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
    from onelog.snapshot.offline import shards_of
    from onelog.snapshot.proof import Verdict, prove_shard
    from onelog.ual.files import DiskFiles

    files = DiskFiles()
    with progress_bar(is_shown=not (no_progress or as_json)) as progress:
        proofs = [
            prove_shard(files, data_dir, number, progress)
            for number in shards_of(files, data_dir, shard)
        ]
    if as_json:
        rows = [asdict(proof) | {"verdict": proof.verdict.value} for proof in proofs]
        print_json({"path": str(data_dir), "shards": rows})
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
            typer.echo(facts + (f": {printable(proof.message)}" if proof.message else ""))
    verdicts = {proof.verdict for proof in proofs}
    if verdicts & {Verdict.MISMATCH, Verdict.DAMAGED}:
        raise typer.Exit(EXIT_DIFFERS)
    if verdicts == {Verdict.NOTHING}:
        raise typer.Exit(EXIT_NOTHING)
