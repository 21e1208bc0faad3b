"""The path of one operation through the code: calls, functions and files, in lines of JSON.

A node and a client run in one process, over a real socket. Every Python call into a file of this
project is counted, in all threads, from the call of the operation to its result. A heartbeat in
between adds its own calls, so the shortest of ``REPEATS`` walks is shown.

``python bench/walk.py --files`` lists the files in the order in which they are entered.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

from onelog.client.client import AsyncClient
from onelog.node.config.schema import ClusterSettings, Config, ListenSettings, NodeSettings
from onelog.node.config.settings import Address
from onelog.node.server.server import Server
from onelog.node.services import SERVICES

ROOT = Path(__file__).resolve().parent.parent
REPEATS = 40
READY_S = 30.0

Operation = Callable[[AsyncClient], Awaitable[object]]


class Walk:
    """The calls of one operation, in order: file and name of each function entered."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, str]] = []
        self.is_on = False
        self._files: dict[str, str | None] = {}  # by the name that code has, in this project

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        """See ``sys.setprofile``."""
        if event == "call" and self.is_on:
            code = frame.f_code
            file = self._file(code.co_filename)
            if file is not None:
                self.steps.append((file, code.co_qualname))

    def _file(self, name: str) -> str | None:
        if name not in self._files:
            path = Path(name).resolve()
            is_written = not name.startswith("<")  # such code is made by dataclasses
            is_ours = is_written and path.is_relative_to(ROOT) and ".venv" not in path.parts
            self._files[name] = path.relative_to(ROOT).as_posix() if is_ours else None
        return self._files[name]

    async def of(self, work: Awaitable[object]) -> list[tuple[str, str]]:
        """Return the calls that the work takes."""
        self.steps = []
        self.is_on = True
        try:
            await work
        finally:
            self.is_on = False
        return [step for step in self.steps if not step[0].startswith("bench/")]


def changes(names: list[str]) -> int:
    """Return how often the name differs from the one before it."""
    return sum(before != after for before, after in pairwise(names))


def shown(name: str, steps: list[tuple[str, str]]) -> dict[str, object]:
    """Return what is printed about a walk."""
    files = [file for file, _ in steps]
    return {
        "bench": "walk",
        "operation": name,
        "calls": len(steps),
        "functions": len(set(steps)),
        "files": len(set(files)),
        "file_changes": changes(files),
        "package_changes": changes([file.partition("/")[0] for file in files]),
    }


async def put(client: AsyncClient) -> object:
    """Write a key."""
    return await client.kv.put("key", "value")


async def get(client: AsyncClient) -> object:
    """Read a key."""
    return await client.kv.get("key")


async def lease_and_ack(client: AsyncClient) -> None:
    """Lease a message and acknowledge it."""
    queue = client.queue("jobs")
    (message,) = await queue.lease(1)
    await queue.ack(message)


OPERATIONS: dict[str, Operation] = {"put": put, "get": get, "lease + ack": lease_and_ack}


async def main(*, with_files: bool) -> None:
    walk = Walk()
    threading.setprofile(walk)
    sys.setprofile(walk)
    any_port = Address("127.0.0.1", 0)
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            node=NodeSettings(name="walk", data_dir=Path(directory) / "data"),
            listen=ListenSettings(api=any_port, peers=any_port, http=any_port),
            cluster=ClusterSettings(shards=1, balance_leaders=False),
        )
        server = Server(config, SERVICES)
        task = asyncio.create_task(server.run())
        async with asyncio.timeout(READY_S):
            while not server.api_port and not task.done():  # noqa: ASYNC110 - sets no event
                await asyncio.sleep(0.01)
        async with AsyncClient(f"127.0.0.1:{server.api_port}") as client:
            queue = client.queue("jobs")
            await queue.create()
            await queue.enqueue_many(["job"] * (REPEATS + 1))
            for name, operation in OPERATIONS.items():
                await operation(client)  # connections and sessions are there already
                walks = [await walk.of(operation(client)) for _ in range(REPEATS)]
                shortest = min(walks, key=len)
                print(json.dumps(shown(name, shortest)))
                if with_files:
                    for file in dict.fromkeys(file for file, _ in shortest):
                        print(f"  {file}")
        server.stop()
        await task


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files of each walk")
    asyncio.run(main(with_files=parser.parse_args().files))
