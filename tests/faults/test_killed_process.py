"""A real process on a real disk, killed by SIGKILL while it writes."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from onelog.ual.files import DiskFiles
from tests.ual.shards import make_shard, open_shard

# Appends until killed, and says after each sync how far the log is durable.
WRITER = """
import sys
from pathlib import Path
from tests.ual.shards import fill, open_shard, settle
from onelog.ual.directory import shard_paths
from onelog.ual.files import DiskFiles
from tests.ual.shards import drop_before, seal_closed

log, _ = open_shard(DiskFiles(), shard_paths(Path(sys.argv[1]), 0))
while True:
    fill(log, 3)
    settle(log)
    print(log.durable_index, flush=True)
    seal_closed(log)
    if log.last_index > 400:
        drop_before(log, log.last_index - 300)
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_process_killed_while_writing_loses_nothing_it_called_durable(
    tmp_path: Path, seed: int
) -> None:
    files = DiskFiles()
    paths = make_shard(files, tmp_path / "data")
    rng = Random(seed)
    durable = 0
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "data")],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        ) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randint(5, 60)):
                durable = int(writer.stdout.readline())
            writer.kill()
            rest = writer.stdout.read().split("\n")
        # What it said last before the kill counts, if the line is whole.
        durable = max([durable, *(int(line) for line in rest[:-1])])

        log, _ = open_shard(files, paths)
        log.check()
        assert log.last_index >= durable
        entries = list(log.segments.scan(log.first_index, log.last_index))
        assert [entry.index for entry in entries] == list(
            range(log.first_index, log.last_index + 1)
        )
        log.close()
