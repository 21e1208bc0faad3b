"""Leases (``client.kv.lease``) and locks built on them (``client.kv.lock``).

A lease is a lifetime that many keys share: they are deleted when it ends. Inside ``with`` it is
renewed in the background, and revoked at the end. ``is_lost`` becomes true when the server says
that the lease has ended, and also when no server answered for a whole lifetime: what the lease
protected may then belong to others.

A lock is a key that exists while somebody holds it, and is deleted with its holder's lease. The
key's version is the fencing token: every later holder has a higher one. A holder that was suspended
for longer than its lease may believe that it still holds the lock, and no lock can prevent that.
What the lock protects should therefore remember the highest token it has seen and refuse lower
ones.
"""

import asyncio
import os
import secrets
from typing import Self

from onelog.client.calls import Backoff
from onelog.client.connection import Connection
from onelog.client.options import Scope
from onelog.client.validation import refuse_unsendable
from onelog.client.values import Key, LeaseInfo, positive_ms, to_bytes
from onelog.errors import (
    AlreadyExists,
    DeadlineExceeded,
    FailedPrecondition,
    LeaseLost,
    NotFound,
    OnelogError,
)
from onelog.v1 import kv_pb2, pipeline_pb2

# Renewals in one lifetime of a lease: one may be lost.
RENEWALS = 3


@refuse_unsendable
class AsyncLease:
    """A lifetime shared by keys of one shard. Inside ``with`` it is renewed in the background."""

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
        # By this client's clock, from before the request: the server's lease ends later.
        self._safe_until_s = 0.0

    @classmethod
    async def grant(
        cls, connection: Connection, scope: Scope, ttl_s: float, key: Key
    ) -> "AsyncLease":
        """Ask the server for a new lease."""
        name = to_bytes(key)
        request = kv_pb2.GrantLeaseRequest(
            namespace=scope.namespace, ttl_ms=positive_ms(ttl_s), routing_key=name
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
        """Look up a lease that another process was granted."""
        lease = cls(connection, scope, lease_id, 0.0, to_bytes(key))
        lease._ttl_s = (await lease.info()).ttl_s
        return lease

    @property
    def lease_id(self) -> int:
        """The id to pass as ``lease`` when putting keys."""
        return self._lease_id

    @property
    def is_lost(self) -> bool:
        """Whether the lease has ended, or may have as far as this client can tell."""
        return self._is_lost or self._connection.loop.time() >= self._safe_until_s

    async def keep(self) -> None:
        """Renew the lease for its full lifetime from now; LeaseLost if it has ended."""
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
        """End the lease and delete its keys; return how many there were."""
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
        """Return the lease's lifetime, when it expires, and its keys."""
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


# Locks

# How long a waiter sleeps before it tries again: first, at most.
WAIT_S_MIN = 0.02
WAIT_S_MAX = 0.5


@refuse_unsendable
class AsyncLock:
    """A lock that all clients share, with a fencing token.

    It is not reentrant. One object is one holder: make another one for another task.
    """

    def __init__(self, connection: Connection, scope: Scope, name: Key, ttl_s: float) -> None:
        self._connection = connection
        self._scope = scope
        self._name = to_bytes(name)
        self._ttl_s = ttl_s
        self._lease: AsyncLease | None = None
        self._token = 0
        # The key's value: tells people who holds the lock.
        self._holder = f"{os.uname().nodename}:{os.getpid()}:{secrets.token_hex(4)}".encode()

    @property
    def token(self) -> int:
        """The fencing token; raises LeaseLost if the lock is not held."""
        if not self.is_held:
            raise LeaseLost(f"the lock {self._name.decode(errors='replace')} is not held")
        return self._token

    @property
    def is_held(self) -> bool:
        """Whether this object holds the lock, as far as this client can tell."""
        return self._lease is not None and not self._lease.is_lost

    async def acquire(self, timeout_s: float | None = None) -> int:
        """Wait for the lock and return the fencing token; DeadlineExceeded after ``timeout_s``."""
        if self.is_held:
            what = f"this object holds the lock {self._name.decode(errors='replace')} already"
            raise FailedPrecondition(what, reason="LOCK_HELD")
        try:
            async with asyncio.timeout(timeout_s):
                return await self._acquire()
        except TimeoutError:
            name = self._name.decode(errors="replace")
            raise DeadlineExceeded(
                f"the lock {name} was not free in {timeout_s} s", reason="EXPIRED"
            ) from None

    async def try_acquire(self) -> bool:
        """Acquire the lock if it is free; return whether it was."""
        lease = await AsyncLease.grant(self._connection, self._scope, self._ttl_s, self._name)
        try:
            self._token = await self._put(lease)
        except AlreadyExists:
            await lease.revoke()
            return False
        except BaseException:
            # Others should not have to wait until the lease expires.
            await asyncio.shield(lease.revoke())
            raise
        self._lease = await lease.__aenter__()
        return True

    async def release(self) -> None:
        """Release the lock; does nothing if it was lost."""
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
