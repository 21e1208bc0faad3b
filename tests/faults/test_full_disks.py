"""Real nodes on real disks that fill up: a tmpfs that is too small, or filled by somebody else."""

import asyncio
import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from onelog import AsyncClient
from onelog.errors import OnelogError
from tests.system.innocent import Innocent
from tests.system.leaders import Leaders, leaders_of
from tests.system.mixed_load import WAIT_S, MixedLoad
from tests.system.nodes import ServeProcess, nodes, until

SMALL, LARGE = "24m", "64m"
VALUE_BYTES = 32 << 10
REFUSALS = 20
BALLAST, BALLAST_PART = "ballast", 1 << 20
POLL_S = 0.05


def find_problem() -> str | None:
    """Return why no disk can be made on this machine, if so."""
    if os.geteuid() != 0:
        return "needs root"
    if shutil.which("mount") is None:
        return "needs mount"
    with tempfile.TemporaryDirectory() as directory:
        tried = ["mount", "-t", "tmpfs", "none", directory]
        if subprocess.run(tried, capture_output=True, check=False).returncode != 0:
            return "needs the right to mount"
        subprocess.run(["umount", directory], capture_output=True, check=True)
    return None


PROBLEM = find_problem()
pytestmark = pytest.mark.skipif(PROBLEM is not None, reason=str(PROBLEM))


@contextmanager
def disk(path: Path, size: str) -> Iterator[Path]:
    """Mount a disk of a size."""
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def resize(path: Path, size: str) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", path], check=True)


def fill(path: Path) -> None:
    """Take all that is left of a disk."""
    with (path / BALLAST).open("wb", buffering=0) as file:
        part = BALLAST_PART
        while part:
            try:
                file.write(bytes(part))
            except OSError:  # no room for so much
                part //= 2


def is_refused(client: Innocent, key: bytes, value: bytes) -> bool:
    """Put; whether the node has no room for it. Any other error is raised."""
    try:
        client.put(key, value)
    except AssertionError as error:
        if "DISK_FULL" not in repr(error):
            raise
        return True
    return False


@pytest.mark.parametrize("kept", ["0", "4MiB"])
def test_a_node_whose_disk_is_full_refuses_writes_keeps_all_and_goes_on_with_more_room(
    kept: str, tmp_path: Path
) -> None:
    """Also when it is killed meanwhile and starts on the full disk."""
    with (
        disk(tmp_path / "disk", SMALL) as path,
        nodes(
            tmp_path, "a", shards="1", log_segment_bytes_max="1MiB", log_free_bytes_min=kept
        ) as made,
    ):
        node = made["a"]
        node.flags |= {"data-dir": str(path / "data"), "log-free-bytes-min": kept}
        node.start().until_ready()
        written: dict[bytes, bytes] = {}
        client, refusals = Innocent(node.flags["listen"]), 0

        def check() -> None:
            for key, value in written.items():
                assert client.get(key) == value, key

        while refusals < REFUSALS:
            key, value = b"%d" % (len(written) + refusals), os.urandom(VALUE_BYTES)
            if is_refused(client, key, value):
                refusals += 1
            else:
                written[key] = value
        assert len(written) > 100
        check()
        client.close()
        node.kill()

        node.start().until_ready()
        client = Innocent(node.flags["listen"])
        check()
        resize(path, LARGE)
        until(lambda: not is_refused(client, b"after", b"more room"))
        written[b"after"] = b"more room"
        check()
        client.close()
        assert node.terminate() == 0
        assert "Traceback" not in node.output

        node.start().until_ready()
        client = Innocent(node.flags["listen"])
        check()
        client.close()


@asynccontextmanager
async def running(
    directory: Path,
) -> AsyncIterator[tuple[dict[str, Path], list[ServeProcess], Leaders]]:
    """Three nodes, each on a disk of its own."""
    flags = {"shards": "1", "balance_leaders": "false", "log_free_bytes_min": "0"}
    with (
        disk(directory / "disk-a", LARGE) as a,
        disk(directory / "disk-b", LARGE) as b,
        disk(directory / "disk-c", LARGE) as c,
        nodes(directory, "a", "b", "c", **flags) as made,
    ):
        disks = {"a": a, "b": b, "c": c}
        processes = list(made.values())
        for each in processes:
            each.flags["data-dir"] = str(disks[each.name] / "data")
            each.start()
        for each in processes:
            await asyncio.to_thread(each.until_ready)
        async with leaders_of(processes) as leaders:
            yield disks, processes, leaders


def test_a_follower_whose_disk_fills_stays_behind_and_catches_up(tmp_path: Path) -> None:
    """The others go on with a load of all models; with room again it follows."""

    async def test() -> None:
        async with running(tmp_path) as (disks, processes, leaders):
            endpoints = [each.flags["listen"] for each in processes]
            async with MixedLoad(endpoints, random.Random()) as load:
                await load.progress()
                leader = await leaders.of(0)
                follower = next(each for each in processes if each is not leader.process)
                full = disks[follower.name]
                await asyncio.to_thread(fill, full)
                await load.progress()
                await until_alarmed(load.clients[0], follower.flags["listen"])
                await load.progress()
                (full / BALLAST).unlink()
                await load.progress()
                await load.verify()
                await until_well(load.clients[0], endpoints)
            for each in processes:
                assert each.is_running, each.output[-3000:]
                assert "Traceback" not in each.output

    asyncio.run(asyncio.wait_for(test(), 6 * WAIT_S))


def test_a_leader_whose_disk_fills_refuses_reads_on_and_can_hand_over(tmp_path: Path) -> None:
    """Then the others write again, and nothing that was acknowledged is lost."""

    async def test() -> None:
        async with running(tmp_path) as (disks, processes, leaders):
            endpoints = [each.flags["listen"] for each in processes]
            leader = await leaders.of(0)
            full = disks[leader.process.name]
            async with AsyncClient(endpoints, timeout_s=WAIT_S) as client:
                await client.kv.put("before", "1")
                await asyncio.to_thread(fill, full)
                written = await put_until_refused(leader.process)
                assert await client.kv.get("before") is not None
                await client.admin.transfer_leadership(0)
                successor = await leaders.of(0, above_term=leader.term, but=leader.process)
                assert successor.process is not leader.process
                await client.kv.put("after", "2")
                (full / BALLAST).unlink()
                await until_well(client, endpoints)
                for key, value in written.items():
                    found = await client.kv.get(key)
                    assert found is not None
                    assert found.value == value

    asyncio.run(asyncio.wait_for(test(), 6 * WAIT_S))


async def put_until_refused(process: ServeProcess) -> dict[bytes, bytes]:
    """Put until a disk is full; return what was acknowledged."""

    def work() -> dict[bytes, bytes]:
        client, written = Innocent(process.flags["listen"]), dict[bytes, bytes]()
        while True:
            key, value = b"full/%d" % len(written), os.urandom(VALUE_BYTES)
            if is_refused(client, key, value):
                client.close()
                return written
            written[key] = value

    return await asyncio.to_thread(work)


async def until_alarmed(client: AsyncClient, endpoint: str) -> None:
    """Wait until a node says that its disk is full."""
    async with asyncio.timeout(WAIT_S):
        while True:
            status = await client.admin.status(endpoint=endpoint)
            if "DISK_FULL" in {each.reason for each in status.alarms}:
                return
            await asyncio.sleep(POLL_S)


async def until_well(client: AsyncClient, endpoints: list[str]) -> None:
    """Wait until nobody alarms, and all have applied the same."""
    async with asyncio.timeout(WAIT_S):
        while True:
            try:
                said = [await client.admin.status(endpoint=each) for each in endpoints]
            except OnelogError:
                continue
            applied = {each.shards[0].applied_index for each in said}
            if len(applied) == 1 and not any(each.alarms for each in said):
                return
            await asyncio.sleep(POLL_S)
