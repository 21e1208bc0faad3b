"""Bytes that rot in a sealed segment of a running or stopped process: found, named, repaired."""

import sys
import time
from pathlib import Path
from typing import Any

from onelog.ual.files import DiskFiles
from onelog.ual.segments.sealed import SealedSegment
from tests.system.load import Load
from tests.system.processes import Cluster, Status, cluster, until
from tests.system.test_kills import run

SETTINGS: dict[str, Any] = {
    "segment_bytes": 64 << 10,
    "shipping": {"chunk_bytes": 16 << 10, "scrub_pause_s": 0.2, "scrub_bytes_per_s": 64 << 20},
}


def segments(nodes: Cluster, node: int) -> list[Path]:
    home = Path(nodes.processes[node].settings["data_dir"])
    found = sorted((home / "00000" / "segs").glob("*.flseg"))
    return [path for path in found if path.stat().st_size > 10_000]


def rot(path: Path, offset: int) -> None:
    """Flip some bits in the middle of a file, in place."""
    with path.open("r+b") as file:
        file.seek(offset, 2 if offset < 0 else 0)
        byte = file.read(1)
        file.seek(offset, 2 if offset < 0 else 0)
        file.write(bytes([byte[0] ^ 0x55]))


def is_whole(path: Path) -> bool:
    SealedSegment.open(DiskFiles(), path).check_file()
    return True


async def repaired(nodes: Cluster, node: int, path: Path) -> Status:
    """Wait until a node says that it has replaced a file, and what was wrong with it."""

    async def found() -> Status | None:
        status = (await nodes.statuses()).get(node)
        mended = status["shipping"]["mended"] if status is not None else []
        named: list[Status] = [each for each in mended if each["path"] == str(path)]
        return named[-1] if named else None

    return await until(found)


def test_a_sealed_segment_that_rots_is_found_named_and_repaired_while_serving(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with cluster(tmp_path, settings=SETTINGS) as nodes:
            leader, before = await nodes.leader()
            async with Load(nodes) as load:
                await load.answered(1200)
                for node in nodes.processes:
                    answer = await nodes.connections[node].ask("snapshot", timeout_s=10.0)
                    assert "index" in answer, answer
                follower = next(node for node in nodes.processes if node != leader)
                for node in (follower, leader):
                    path = segments(nodes, node)[1]
                    good = path.read_bytes()
                    began_s = time.monotonic()
                    rot(path, 5000)
                    damage = await repaired(nodes, node, path)
                    took_s = time.monotonic() - began_s
                    sys.stdout.write(f"node {node}: {damage} after {took_s:.2f} s\n")
                    assert damage["first_index"] == int(path.name.split(".")[0])
                    assert "checksum" in damage["rule"], damage
                    assert damage["found_by"] in ("scrub", "reading")
                    assert is_whole(path)
                    assert path.read_bytes() == good, "the same entries, streams and voids"
                await load.answered(100)

                # While it is down: an entry in one file, the footer of another.
                nodes.processes[follower].kill()
                entry, footer = segments(nodes, follower)[0], segments(nodes, follower)[2]
                rot(entry, 5000)
                rot(footer, -100)
                nodes.start(follower)
                for path, found_by in ((entry, "scrub"), (footer, "opening")):
                    damage = await repaired(nodes, follower, path)
                    assert damage["found_by"] == found_by, damage
                    assert is_whole(path)
                await load.answered(100)
                _, after = await nodes.leader()
            await load.verify()
            nodes.assert_running()
            assert after["term"] == before["term"]
            statuses = await nodes.settled()
            for status in statuses.values():
                assert not status["shipping"]["damages"]

    run(test())


def test_a_range_that_nobody_has_stays_named(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, settings=SETTINGS) as nodes:
            await nodes.leader()
            async with Load(nodes) as load:
                await load.answered(1200)
                for node in nodes.processes:
                    await nodes.connections[node].ask("snapshot", timeout_s=10.0)
                paths = {node: segments(nodes, node)[0] for node in nodes.processes}
                for path in paths.values():
                    rot(path, 5000)

                async def alarmed() -> bool | None:
                    shown = [
                        each["shipping"]["damages"] for each in (await nodes.statuses()).values()
                    ]
                    return (
                        len([each for each in shown if each and each[0]["is_alarming"]]) == 3
                        or None
                    )

                await until(alarmed)
                await load.answered(200)
            await load.verify()
            nodes.assert_running()

    run(test())
