"""``make picture``: the view of ``onelog cluster up``, drawn from a real cluster.

Starts three nodes under constant writes, kills the leader of shard 0 with the usual command, and
draws the view once the others have taken over and have run for a while.
"""

import asyncio
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from onelog import AsyncClient
from onelog.cli.cluster.state import ClusterDirectory
from onelog.cli.cluster.status import ClusterStatus, History, Observer
from onelog.cli.cluster.view import LOOK_S, render, watching_hint

ROOT = Path(__file__).parent.parent
WIDTH = 104
WRITERS = 64
LOOKS_BEFORE, LOOKS_AFTER = 6, 10


def command(*arguments: str) -> None:
    """Run ``onelog cluster``."""
    subprocess.run(
        [sys.executable, "-m", "onelog.cli.main", "cluster", *arguments],
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


async def write(client: AsyncClient, writer: int) -> None:
    """Write for ever."""
    number = 0
    while True:
        await client.kv.put(f"{writer}/{number % 1000}", b"x" * 100)
        number += 1


async def watch(directory: ClusterDirectory) -> tuple[ClusterStatus, History]:
    """Observe a cluster under load, kill a leader, and observe for a while more."""
    history = History()
    endpoints = [node.endpoint for node in directory.load().nodes]
    async with (
        Observer(directory) as observer,
        AsyncClient(endpoints, timeout_s=60) as client,
        asyncio.TaskGroup() as group,
    ):
        writers = [group.create_task(write(client, each)) for each in range(WRITERS)]
        for look in range(LOOKS_BEFORE + LOOKS_AFTER):
            status = await observer.look()
            history.add(status)
            if look == LOOKS_BEFORE:
                leader = status.shards[0].leader
                await asyncio.to_thread(command, "kill", str(leader))
            await asyncio.sleep(LOOK_S)
        for writer in writers:
            writer.cancel()
    return status, history


def main() -> None:
    target = Path(sys.argv[1]).absolute()
    with tempfile.TemporaryDirectory(prefix="onelog-picture-") as place:
        os.chdir(place)
        directory = ClusterDirectory(Path("onelog-cluster"))
        command("up", "--detach")
        try:
            status, history = asyncio.run(watch(directory))
        finally:
            command("down")
            os.chdir(ROOT)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), highlight=False, markup=False)
    hint = watching_hint(directory, is_owner=True)
    console.print(render(directory.path, status, history, ending=hint))
    target.write_text(console.export_svg(title="onelog cluster up", unique_id="onelog-cluster"))


if __name__ == "__main__":
    main()
