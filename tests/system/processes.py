"""A cluster of real processes, and clients that never give up on an operation."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.system.ports import free_addresses

ROOT = Path(__file__).parent.parent.parent
WAIT_S = 120.0
POLL_S = 0.01
REQUEST_S = 2.0

Status = dict[str, Any]
T = TypeVar("T")


class Unreachable(Exception):
    """A process does not answer: it is dead, stopped, or not up yet."""


@dataclass
class Process:
    """One server; knows how to start it again on its directory."""

    node: int
    settings: dict[str, Any]
    directory: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self.process is None
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.system.server", json.dumps(self.settings)],
                cwd=ROOT,
                env=os.environ | self.environment,
                stdout=output,
                stderr=output,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it at once, stopped or not, and wait until it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def terminate(self) -> int:
        """Ask it to stop; return its exit status."""
        assert self.process is not None
        self.process.terminate()
        status = self.process.wait(timeout=WAIT_S)
        self.process = None
        return status

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text()


class Connection:
    """Requests to one process, many at a time; reconnects with the next request."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._next_id = 0
        self._connecting = asyncio.Lock()

    async def ask(self, op: str, timeout_s: float = REQUEST_S, **fields: Any) -> dict[str, Any]:
        """Return the answer; ``Unreachable`` if there is none in time."""
        self._next_id += 1
        number = self._next_id
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                async with self._connecting:
                    if self._writer is None:
                        await self._connect()
                assert self._writer is not None
                self._waiting[number] = future
                request = {"id": number, "op": op, "timeout_s": timeout_s * 0.8, **fields}
                self._writer.write(json.dumps(request).encode() + b"\n")
                return await future
        except (TimeoutError, OSError) as error:
            raise Unreachable(self._address) from error
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _connect(self) -> None:
        host, port = self._address.rsplit(":", 1)
        reader, self._writer = await asyncio.open_connection(host, int(port))
        self._reading = asyncio.create_task(self._read_all(reader, self._writer))

    async def _read_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = json.loads(line)
                future = self._waiting.get(answer["id"])
                if future is not None and not future.done():
                    future.set_result(answer)
        except OSError:
            pass
        finally:
            self._writer = None
            writer.close()
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(ConnectionResetError())


class Cluster:
    """Processes 1 … n and a connection to each."""

    def __init__(
        self, directory: Path, nodes: int = 3, settings: dict[str, Any] | None = None
    ) -> None:
        peer = free_addresses(2 * nodes)
        client = peer[nodes:]
        self.peer_addresses = dict(enumerate(peer[:nodes], start=1))
        self.processes: dict[int, Process] = {}
        self.connections: dict[int, Connection] = {}
        for node, listen in self.peer_addresses.items():
            home = directory / f"node-{node}"
            home.mkdir()
            own = {
                **(settings or {}),
                "node": node,
                "data_dir": str(home / "data"),
                "listen": listen,
                "client": client[node - 1],
                "peers": {
                    str(other): at for other, at in self.peer_addresses.items() if other != node
                },
            }
            self.processes[node] = Process(node, own, home)
            self.connections[node] = Connection(client[node - 1])

    def add_process(self, directory: Path) -> int:
        """Make one more node, which knows the first ones and waits to be added."""
        node = len(self.processes) + 1
        listen, client = free_addresses(2)
        home = directory / f"node-{node}"
        home.mkdir()
        settings = dict(self.processes[1].settings) | {
            "node": node,
            "data_dir": str(home / "data"),
            "listen": listen,
            "client": client,
            "peers": {str(other): at for other, at in self.peer_addresses.items()},
            "joins": True,
        }
        self.peer_addresses[node] = listen
        self.processes[node] = Process(node, settings, home)
        self.connections[node] = Connection(client)
        return node

    def start(self, *nodes: int) -> None:
        for node in nodes or self.processes:
            self.processes[node].start()

    async def status(self, node: int) -> Status:
        return await self.connections[node].ask("status")

    async def statuses(self) -> dict[int, Status]:
        """Return what each process that answers says of itself."""

        async def ask(node: int) -> Status | None:
            if not self.processes[node].is_running:
                return None
            try:
                return await self.connections[node].ask("status", timeout_s=0.5)
            except Unreachable:
                return None

        answers = await asyncio.gather(*map(ask, self.connections))
        return {
            node: status
            for node, status in zip(self.connections, answers, strict=True)
            if status is not None
        }

    async def leader(self, term_above: int = 0, within_s: float = WAIT_S) -> tuple[int, Status]:
        """Wait until somebody leads in a term above; return it and its status."""

        async def found() -> tuple[int, Status] | None:
            for node, status in (await self.statuses()).items():
                if status["leads"] and status["term"] > term_above:
                    return node, status
            return None

        return await until(found, within_s=within_s)

    async def settled(self) -> dict[int, Status]:
        """Wait until all that run have applied the same; return what they say."""

        async def same() -> dict[int, Status] | None:
            statuses = await self.statuses()
            running = [node for node, each in self.processes.items() if each.is_running]
            positions = {(each["applied"], each["last"]) for each in statuses.values()}
            if sorted(statuses) == running and len(positions) == 1:
                return statuses
            return None

        return await until(same)

    def assert_running(self, *nodes: int) -> None:
        for node in nodes or self.processes:
            process = self.processes[node]
            assert process.is_running, process.output[-3000:]

    async def close(self) -> None:
        for connection in self.connections.values():
            await connection.close()
        for process in self.processes.values():
            process.kill()


@asynccontextmanager
async def cluster(
    directory: Path, *, start: bool = True, settings: dict[str, Any] | None = None
) -> AsyncIterator[Cluster]:
    """Make a cluster, and end all of its processes whatever happens."""
    made = Cluster(directory, settings=settings)
    try:
        if start:
            made.start()
        yield made
    finally:
        await made.close()


async def until(condition: Callable[[], Awaitable[T | None]], *, within_s: float = WAIT_S) -> T:
    """Ask again and again until there is an answer."""
    until_s = time.monotonic() + within_s
    while True:
        answer = await condition()
        if answer is not None and answer is not False:
            return answer
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {within_s} s")
        await asyncio.sleep(POLL_S)
