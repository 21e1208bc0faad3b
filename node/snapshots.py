"""Taking a snapshot of a running shard, on request.

The builder is another process (snapshot/builder_process.py); here it is started, waited for without
holding up the loop, and its result accepted if it has the hash that the live state had. One build
of a shard at a time: who asks meanwhile waits, and is given the newest one if nothing is newer.
"""

import asyncio
import os

from node.shard_driver import ShardDriver
from snapshot.build import BuildResult, Capture, plan_build
from snapshot.builder_process import BuilderProcess
from snapshot.errors import NotDurable
from ual.files import DiskFiles
from ual.manifest import SnapshotRecord

DURABLE_POLL_S = 0.005


class Snapshots:
    """Takes the snapshots that somebody asks for."""

    def __init__(self) -> None:
        self._locks: dict[int, asyncio.Lock] = {}

    async def take(self, driver: ShardDriver, created_s: int) -> SnapshotRecord:
        """Return a snapshot that holds everything that was applied when it was asked for."""
        async with self._locks.setdefault(driver.number, asyncio.Lock()):
            shard = driver.shard
            store = shard.snapshots
            capture = Capture.of(shard.router)
            if store.newest is not None and store.newest.index >= capture.index:
                return store.newest
            while capture.index > shard.log.durable_index:  # noqa: ASYNC110 - a sync sets no event
                await asyncio.sleep(DURABLE_POLL_S)
            try:
                request = plan_build(
                    capture,
                    shard.log,
                    store,
                    data_dir=store.directory.parent.parent,
                    shard=driver.number,
                    created_s=created_s,
                )
            except NotDurable as error:
                raise AssertionError("waited for") from error
            result = await _run(BuilderProcess(DiskFiles(), request))
            store.accept(result.record, capture.state_hash)
            return result.record


async def _run(builder: BuilderProcess) -> BuildResult:
    """Wait for a builder; it is stopped with whoever waits."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    # A descriptor of our own: the builder closes its own before the loop could let go of it.
    descriptor = os.dup(builder.fileno())
    loop.add_reader(descriptor, readable.set)
    try:
        while (result := builder.poll()) is None:
            readable.clear()
            await readable.wait()
    except asyncio.CancelledError:
        builder.cancel()
        raise
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return result
