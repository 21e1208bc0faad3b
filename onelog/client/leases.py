"""Leases: keys that live as long as somebody says so.

Inside of ``with`` a lease is kept alive in the background and revoked at the end. ``is_lost`` turns
true when the server says that it is over, and also when nobody could be asked for a whole lifetime:
what it protected may belong to others then.

Lock
----
A lock that all clients share, with a fencing token: ``client.kv.lock(name)``.

The lock is a key that exists while somebody holds it, and goes with its holder's lease. Its version
is the fencing token: whoever holds the lock later has a higher one. A holder that was suspended for
longer than its lease may believe that it still holds the lock, and no lock can prevent that; what
the lock protects should therefore remember the highest token it has seen and refuse lower ones.
"""

import asyncio
import os
import secrets
from typing import Self

from onelog.client.calls import Backoff
from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Key, LeaseInfo, milliseconds, to_bytes
from onelog.errors import AlreadyExists, DeadlineExceeded, LeaseLost, NotFound, OnelogError
from onelog.v1 import kv_pb2, pipeline_pb2

# A lease is renewed so often in its lifetime: one renewal may be lost.
RENEWALS = 3


@refuse_unsendable
class AsyncLease:
    """A lease in the shard of one key."""

    def __init__(
        self, connection: Connection, scope: Scope, lease_id: int, ttl_s: float, key: bytes
    ) -> None:
        self._connection = connection
        self._scope = scope
        self._key = key
        self._ttl_s = ttl_s
        self._keeper: asyncio.Task[None] | None = None
        self._is_lost = False
        self._lease_id = lease_id
        # By this client's clock; the server's lease ends later, since it began later.
        self._safe_until_s = 0.0

    @classmethod
    async def grant(
        cls, connection: Connection, scope: Scope, ttl_s: float, key: Key
    ) -> "AsyncLease":
        """Ask for a lease."""
        name = to_bytes(key)
        request = kv_pb2.GrantLeaseRequest(
            namespace=scope.namespace, ttl_ms=milliseconds(ttl_s), routing_key=name
        )
        await connection.ready(scope.timeout_s)
        began_s = connection.loop.time()
        answer = await connection.call_write("KV/GrantLease", request, scope.timeout_s, name=name)
        lease = cls(connection, scope, answer.lease_id, ttl_s, name)
        lease._safe_until_s = began_s + ttl_s
        return lease

    @classmethod
    async def find(
        cls, connection: Connection, scope: Scope, lease_id: int, key: Key
    ) -> "AsyncLease":
        """Ask about a lease that somebody else was granted."""
        lease = cls(connection, scope, lease_id, 0.0, to_bytes(key))
        lease._ttl_s = (await lease.info()).ttl_s
        return lease

    @property
    def lease_id(self) -> int:
        """The number that keys are put with."""
        return self._lease_id

    @property
    def is_lost(self) -> bool:
        """Whether the lease is over, as far as this client can know."""
        return self._is_lost or self._connection.loop.time() >= self._safe_until_s

    async def keep(self) -> None:
        """Let the lease live for its lifetime from now on."""
        request = kv_pb2.KeepLeaseRequest(
            namespace=self._scope.namespace, lease_id=self._lease_id, routing_key=self._key
        )
        began_s = self._connection.loop.time()
        try:
            await self._connection.call_write(
                "KV/KeepLease", request, min(self._scope.timeout_s, self._ttl_s), name=self._key
            )
        except (NotFound, LeaseLost):
            self._is_lost = True
            raise
        self._safe_until_s = began_s + self._ttl_s

    async def revoke(self) -> int:
        """End the lease, and its keys with it; return how many there were."""
        await self._stop()
        request = kv_pb2.RevokeLeaseRequest(
            namespace=self._scope.namespace, lease_id=self._lease_id, routing_key=self._key
        )
        answer = await self._connection.call_write(
            "KV/RevokeLease", request, self._scope.timeout_s, name=self._key
        )
        self._is_lost = True
        count: int = answer.deleted_count
        return count

    async def info(self) -> LeaseInfo:
        """Show the lease."""
        request = kv_pb2.GetLeaseRequest(
            namespace=self._scope.namespace, lease_id=self._lease_id, routing_key=self._key
        )
        answer = await self._connection.call_read(
            "KV/GetLease", request, self._scope.timeout_s, name=self._key
        )
        return LeaseInfo(answer.ttl_ms / 1000, answer.expires_ns, list(answer.keys))

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._keeper = loop.create_task(self._keep_alive(), name=f"onelog lease {self._lease_id}")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()
        if not self.is_lost:
            try:
                await self.revoke()
            except (NotFound, LeaseLost):
                self._is_lost = True

    async def _keep_alive(self) -> None:
        while not self._is_lost:
            await asyncio.sleep(self._ttl_s / RENEWALS)
            try:
                await self.keep()
            except OnelogError:
                continue  # is_lost says whether that was the end

    async def _stop(self) -> None:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


# Lock

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
