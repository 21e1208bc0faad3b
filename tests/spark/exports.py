"""What tests of exports share: a log of three days in a directory, and exports without Spark."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onelog.spark.export.job import Numbered, Outcome, Progress, Task, run_export
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.object_target import ObjectTarget
from onelog.spark.export.plan import EXPORTED_VIEWS, ExportRequest
from onelog.spark.export.target import DirectoryTarget, Output, Target, open_target
from onelog.spark.options import ReadOptions
from onelog.spark.state import AS_OF_OPTIONS, AsOf
from onelog.spark.table import open_origin
from tests.simulation.disk import SimDisk
from tests.spark.shard_dirs import Shard
from tests.ual.shards import close_active

DAY_NS = 86_400 * 10**9
SPLIT_BYTES = 5_000  # a few segments of the small shards of tests


def three_days(path: Path, groups: int = 20) -> Shard:
    """Make a shard whose sealed segments span two midnights, one of them inside of a segment."""
    shard = Shard(path)
    for step_ns in (0, DAY_NS, DAY_NS):
        shard.live.write(shard.work.group(shard.last_index + 1), step_ns=step_ns + 1)
        shard.live.log.sync()
        shard.live.commit()
        shard.write(groups)
    return seal(shard)


def seal(shard: Shard) -> Shard:
    """Make everything that was written readable from files."""
    close_active(shard.live.log)
    shard.seal()
    return shard


def serial(
    work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
) -> None:
    """Run the tasks one by one, in this process."""
    for number, split in work:
        on_done([task(number, split)])


def ask(path: Path, target: Target, **given: Any) -> ExportRequest:
    """Return a request; options of reading are given as text."""
    own = {
        name: given.pop(name)
        for name in ("format", "since", "from_kept", "as_table")
        if name in given
    }
    texts = {"view": "log", "path": str(path), **given}
    options = ReadOptions.parse(texts, EXPORTED_VIEWS, others=AS_OF_OPTIONS)
    return ExportRequest(
        options,
        open_origin(options),
        target,
        split_bytes=SPLIT_BYTES,
        as_of=AsOf.parse(texts),
        **own,
    )


def export(path: Path, target: Target, progress: Progress | None = None, **given: Any) -> Outcome:
    """Export without Spark."""
    return run_export(ask(path, target, **given), serial, progress)


def directory(path: Path) -> DirectoryTarget:
    """Return a target on the real disk."""
    return DirectoryTarget(str(path), path)


class FullTarget(DirectoryTarget):
    """A target whose disk is full for the files of one day, as long as a file says so."""

    def create(self, name: str) -> Output:
        if "date=1970-01-02" in name and (self.path.parent / "full").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return super().create(name)


def simulated(disk: SimDisk) -> DirectoryTarget:
    """Return a target on a disk that fails."""
    return DirectoryTarget("/out", Path("/out"), disk)


def everything(target: Target) -> dict[str, bytes]:
    """Return all files of a target."""
    return {name: target.read(name) or b"" for name in target.names()}


@contextmanager
def object_store() -> Iterator[str]:
    """Run moto's S3 on loopback, with a bucket; yield the options of URLs in it."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    try:
        host, port = running.get_host_and_port()
        options = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
        root, _ = fs.FileSystem.from_uri(f"{store_url(options, '')}&allow_bucket_creation=true")
        root.create_dir("exports")
        yield options
    finally:
        running.stop()


def store_url(options: str, path: str) -> str:
    """Return the URL of a path in the bucket."""
    return f"s3://key:secret@exports/{path}?{options}"


def open_store(options: str, path: str) -> ObjectTarget:
    """Return a target in the bucket."""
    target = open_target(store_url(options, path))
    assert isinstance(target, ObjectTarget)
    return target
