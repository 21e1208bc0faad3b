"""A lock that all clients share, with a fencing token: ``client.kv.lock(name)``.

The lock is a key that exists while somebody holds it, and goes with its holder's lease. Its version
is the fencing token: whoever holds the lock later has a higher one. A holder that was suspended for
longer than its lease may believe that it still holds the lock, and no lock can prevent that; what
the lock protects should therefore remember the highest token it has seen and refuse lower ones.
"""

import asyncio
import os
import secrets
from typing import Self

from onelog.client.connection import Connection
from onelog.client.leases import AsyncLease
from onelog.client.options import Scope
from onelog.client.retrying import Backoff
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Key, to_bytes
from onelog.errors import AlreadyExists, DeadlineExceeded, LeaseLost
from onelog.v1 import pipeline_pb2

# How long a waiter waits before it looks again: from, to.
WAIT_S_MIN = 0.02
WAIT_S_MAX = 0.5


@refuse_unsendable
class AsyncLock:
    """Not reentrant. One object is one holder; make another one for another task."""

    def __init__(self, connection: Connection, scope: Scope, name: Key, ttl_s: float) -> None:
        self._connection = connection
        self._scope = scope
        self._name = to_bytes(name)
        self._ttl_s = ttl_s
        self._lease: AsyncLease | None = None
        self._token = 0
        # For people who look at the key.
        self._holder = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}".encode()

    @property
    def token(self) -> int:
        """The fencing token; raises LeaseLost if the lock is not held."""
        if not self.is_held:
            raise LeaseLost(f"the lock {self._name.decode(errors='replace')} is not held")
        return self._token

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, as far as it can know."""
        return self._lease is not None and not self._lease.is_lost

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait for the lock and return the fencing token; DeadlineExceeded if it takes too long."""
        assert not self.is_held, "the lock is held by this object"
        try:
            async with asyncio.timeout(timeout_s):
                return await self._acquire()
        except TimeoutError:
            name = self._name.decode(errors="replace")
            raise DeadlineExceeded(
                f"the lock {name} was not free in {timeout_s} s", reason="EXPIRED"
            ) from None

    async def try_acquire(self) -> bool:
        """Take the lock if it is free; tell whether it was."""
        lease = await AsyncLease.grant(self._connection, self._scope, self._ttl_s, self._name)
        try:
            self._token = await self._put(lease)
        except AlreadyExists:
            await lease.revoke()
            return False
        except BaseException:
            # Whatever became of it, nobody shall wait for the lease to end by itself.
            await asyncio.shield(lease.revoke())
            raise
        self._lease = await lease.__aenter__()
        return True

    async def release(self) -> None:
        """Give the lock back; harmless if it is lost."""
        lease, self._lease = self._lease, None
        if lease is not None:
            await lease.__aexit__()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.release()

    async def _acquire(self) -> int:
        backoff = Backoff(WAIT_S_MIN, WAIT_S_MAX)
        while True:
            if await self.try_acquire():
                return self._token
            await asyncio.sleep(backoff.next_s())

    async def _put(self, lease: AsyncLease) -> int:
        def build(operation: pipeline_pb2.Operation) -> None:
            put = operation.put
            put.namespace = self._scope.namespace
            put.key = self._name
            put.value = self._holder
            put.lease_id = lease.lease_id
            put.expected_version = 0

        version: int = await self._connection.write(
            self._name,
            len(self._name) + len(self._holder),
            self._scope.timeout_s,
            build,
            lambda result: result.put.header.index,
        )
        return version
