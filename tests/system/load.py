"""Clients that count: each adds one to its own key, again and again, in a session.

A client has one operation under way and retries it with the same sequence until it is answered.
The answer must be the number of the operation: a lost write makes it smaller, a write that took
effect twice makes it larger, at once and for ever.
"""

import asyncio
import random
import time
from itertools import pairwise
from typing import Any

from tests.system.processes import Cluster, Unreachable

RETRY_S = 0.02


class Client:
    """See the module's text."""

    def __init__(self, number: int, cluster: Cluster, patience_s: float) -> None:
        self.key = f"count-{number}"
        self.done = 0
        self.retries = 0
        self.answered_s: list[float] = []
        self.stopped = False
        self._number = number
        self._cluster = cluster
        self._patience_s = patience_s
        self._session = 0
        self._target = random.choice(list(cluster.connections))

    async def run(self) -> None:
        """Count until stopped; the last operation is answered, too."""
        result = await self._propose([{"kind": "open"}])
        self._session = result[0]["number"]
        while not self.stopped:
            self.done += 1
            stamp = {"session": self._session, "unacknowledged": 2 * self.done - 1}
            commands = [
                {
                    "kind": "increment",
                    "key": self.key,
                    "by": 1,
                    "sequence": 2 * self.done - 1,
                    **stamp,
                },
                {
                    "kind": "put",
                    "key": f"put-{self._number}-{self.done % 100}",
                    "value": str(self.done),
                    "sequence": 2 * self.done,
                    **stamp,
                },
            ]
            counted, put = await self._propose(commands)
            assert counted["kind"] in ("applied", "duplicate"), counted
            assert put["kind"] in ("applied", "duplicate"), put
            assert counted["number"] == self.done, (self.key, counted, self.done)
            self.answered_s.append(time.monotonic())

    async def _propose(self, commands: list[dict[str, Any]]) -> list[dict[str, Any]]:
        while True:
            try:
                answer = await self._cluster.connections[self._target].ask(
                    "propose", timeout_s=self._patience_s, commands=commands
                )
            except Unreachable:
                answer = {"error": "UNREACHABLE"}
            if "results" in answer:
                results: list[dict[str, Any]] = answer["results"]
                return results
            self.retries += 1
            self._target = answer.get("leader") or random.choice(list(self._cluster.connections))
            await asyncio.sleep(RETRY_S)


class Load:
    """Some clients that run beside a test.

    ``patience_s`` is how long one attempt may take. Short, a client finds a new leader soon; but
    it must be longer than a healthy answer takes, or every attempt is given up just before it.
    """

    def __init__(self, cluster: Cluster, clients: int = 6, patience_s: float = 1.0) -> None:
        self.clients = [Client(number, cluster, patience_s) for number in range(clients)]
        self._cluster = cluster
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def done(self) -> int:
        return sum(client.done for client in self.clients)

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(client.run()) for client in self.clients]
        return self

    async def __aexit__(self, failed: object, *_: object) -> None:
        for client in self.clients:
            client.stopped = True
        if failed is not None:
            for task in self._tasks:
                task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=failed is not None)

    async def answered(self, count: int) -> None:
        """Wait until so many more operations are answered than now."""
        wanted = sum(len(client.answered_s) for client in self.clients) + count
        while sum(len(client.answered_s) for client in self.clients) < wanted:
            for task in self._tasks:
                if task.done():
                    task.result()
            await asyncio.sleep(0.005)

    def longest_pause_after(self, moment_s: float) -> float:
        """Return the longest time without any answer since a moment."""
        later_s = sorted(
            answered_s
            for client in self.clients
            for answered_s in client.answered_s
            if answered_s > moment_s
        )
        return max(after - before for before, after in pairwise([moment_s, *later_s]))

    async def verify(self) -> None:
        """Read everything back: what was acknowledged is there, once, on every replica."""
        node, _ = await self._cluster.leader()
        expected: dict[str, Any] = {}
        for number, client in enumerate(self.clients):
            assert len(client.answered_s) == client.done
            expected[client.key] = str(client.done)
            for each in range(max(1, client.done - 99), client.done + 1):
                expected[f"put-{number}-{each % 100}"] = str(each)
        answer = await self._cluster.connections[node].ask("read", keys=list(expected))
        assert {key: str(value) for key, value in answer["values"].items()} == expected
        statuses = await self._cluster.settled()
        assert len({status["state_hash"] for status in statuses.values()}) == 1, statuses
        for node in statuses:
            local = await self._cluster.connections[node].ask("stale", keys=list(expected))
            assert local["values"] == answer["values"]
