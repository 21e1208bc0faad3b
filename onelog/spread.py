"""Several connections to one endpoint: for calls that stay, so that none keeps others from going.

A server limits the calls under way on one connection (``streams_max``); one more waits in the
client until another ends. Watches, tails and long polls do not end. So each takes a place on a
channel that has one, and another channel is made when all places are taken. One that nobody uses
costs nothing for long: its connection is closed when it is idle (onelog/channel.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

# Far below what a server takes, and what proxies in between do: 100 is the usual least.
CALLS_PER_CONNECTION = 100

ConnectionT = TypeVar("ConnectionT")


class Spread(Generic[ConnectionT]):
    """The connections to one endpoint, made by ``connect``; used on one loop."""

    def __init__(self, connect: Callable[[], ConnectionT]) -> None:
        self._connect = connect
        self.connections: list[ConnectionT] = []
        self._calls: list[int] = []  # by connection

    @contextmanager
    def place(self) -> Iterator[ConnectionT]:
        """Take a place for a call on the first connection that has one."""
        for at, calls in enumerate(self._calls):  # noqa: B007 - where there is room
            if calls < CALLS_PER_CONNECTION:
                break
        else:
            at = len(self.connections)
            self.connections.append(self._connect())
            self._calls.append(0)
        self._calls[at] += 1
        try:
            yield self.connections[at]
        finally:
            self._calls[at] -= 1
            assert self._calls[at] >= 0, self._calls
