"""``onelog/client/kv.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from onelog.client.blocking import Facade, Items, unwrap
from onelog.client.sync.leases import Lease, Lock
from onelog.client.sync.transactions import Txn
from onelog.client.tables import Rows
from onelog.client.values import Item, Key, Path, Read, Value, Version


class Document(Facade):
    """A JSON document in a key, read and changed in parts.

    A path is a member name, an element number, or a sequence of these; () is the whole document.
    """

    def get(self, path: Path = (), *, read: Read | None = None) -> Any:
        """Return a part of the document; None if the key does not exist."""
        found: Any = self._thread.run(self._core.get(path, read=read))
        return found

    def set(self, path: Path, value: Any, *, create_parents: bool = True) -> int:
        """Set a part of the document and return the key's new version."""
        found: int = self._thread.run(self._core.set(path, value, create_parents=create_parents))
        return found

    def delete(self, path: Path) -> int:
        """Delete a part of the document and return the key's new version."""
        found: int = self._thread.run(self._core.delete(path))
        return found


class KV(Facade):
    """Keys with versions, lifetimes, leases, counters and documents."""

    def put(
        self,
        key: Key,
        value: Value,
        *,
        ttl_s: float | None = None,
        lease: Lease | int = 0,
        expected_version: int | None = None,
    ) -> int:
        """Write a key and return its new version.

        The key expires after ``ttl_s``, or with its ``lease``. With ``expected_version`` it is
        written only if that is its version (else ConditionFailed); 0: only if the key does not
        exist (else AlreadyExists).
        """
        found: int = self._thread.run(
            self._core.put(
                key, value, ttl_s=ttl_s, lease=unwrap(lease), expected_version=expected_version
            )
        )
        return found

    def put_many(
        self,
        items: Mapping[str, Value] | Mapping[bytes, Value] | Iterable[tuple[Key, Value]],
        *,
        ttl_s: float | None = None,
    ) -> list[int]:
        """Write many keys and return their versions in the same order.

        Keys of one shard are written together, up to 1,000 keys or 256 KiB at a time: all of these
        with one version, or none. If a key is given twice, the last value counts. All keys are
        tried; if some fail, the first error is raised, with a note of how many failed.
        """
        found: list[int] = self._thread.run(self._core.put_many(items, ttl_s=ttl_s))
        return found

    def get(self, key: Key, *, read: Read | None = None) -> Item | None:
        """Return a key, or None if it does not exist."""
        found: Item | None = self._thread.run(self._core.get(key, read=read))
        return found

    def get_many(self, keys: Iterable[Key], *, read: Read | None = None) -> Rows[Item | None]:
        """Return many keys in the same order; None where one does not exist."""
        found: Rows[Item | None] = self._thread.run(self._core.get_many(keys, read=read))
        return found

    def exists(self, key: Key, *, read: Read | None = None) -> bool:
        """Return whether a key exists."""
        found: bool = self._thread.run(self._core.exists(key, read=read))
        return found

    def delete(self, key: Key, *, expected_version: int | None = None) -> bool:
        """Delete a key; return whether it existed.

        With ``expected_version`` it is deleted only if that is its version (else ConditionFailed).
        """
        found: bool = self._thread.run(self._core.delete(key, expected_version=expected_version))
        return found

    def touch(self, key: Key, ttl_s: float | None, *, expected_version: int | None = None) -> int:
        """Make a key expire ``ttl_s`` from now (None: never); return its version, which stays."""
        found: int = self._thread.run(
            self._core.touch(key, ttl_s, expected_version=expected_version)
        )
        return found

    def increment(self, key: Key, by: int = 1) -> int:
        """Add to a number and return the new value; a missing key counts as 0."""
        found: int = self._thread.run(self._core.increment(key, by))
        return found

    def lower_to(self, key: Key, limit: int) -> int:
        """Lower a number to ``limit`` if it is above it; return the new value."""
        found: int = self._thread.run(self._core.lower_to(key, limit))
        return found

    def raise_to(self, key: Key, limit: int) -> int:
        """Raise a number to ``limit`` if it is below it; return the new value."""
        found: int = self._thread.run(self._core.raise_to(key, limit))
        return found

    def append(self, key: Key, data: Value) -> int:
        """Append bytes to a value and return its new size."""
        found: int = self._thread.run(self._core.append(key, data))
        return found

    def history(self, key: Key, *, read: Read | None = None) -> Rows[Version]:
        """Return the versions of a key that are kept, newest first."""
        found: Rows[Version] = self._thread.run(self._core.history(key, read=read))
        return found

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        end: Key | None = None,
        limit: int = 0,
        reverse: bool = False,
        keys_only: bool = False,
        routing_key: Key = b"",
        read: Read | None = None,
    ) -> Items[Item]:
        """Yield keys in order: those with a prefix, or from ``start`` to before ``end``.

        Pages are fetched as the caller needs them; after a broken connection the scan resumes. With
        ``routing_key`` only keys in its shard, and then all from one state unless it had to resume.
        """
        return self._thread.iterate(
            self._core.scan(
                prefix,
                start=start,
                end=end,
                limit=limit,
                reverse=reverse,
                keys_only=keys_only,
                routing_key=routing_key,
                read=read,
            )
        )

    def delete_range(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        end: Key | None = None,
        routing_key: Key = b"",
    ) -> int:
        """Delete all keys of a range, some thousands at a time; return how many were deleted."""
        found: int = self._thread.run(
            self._core.delete_range(prefix, start=start, end=end, routing_key=routing_key)
        )
        return found

    def json(self, key: Key) -> "Document":
        """Return the JSON document in a key; makes no call to the server."""
        return Document(self._core.json(key), self._thread)

    def txn(self) -> "Txn":
        """Begin a transaction: if all conditions hold one list of operations, else another."""
        return Txn(self._core.txn(), self._thread)

    def lease(self, ttl_s: float, *, key: Key) -> "Lease":
        """Grant a lease for keys in the shard of ``key``; they are deleted when it ends."""
        return Lease(self._thread.run(self._core.lease(ttl_s, key=key)), self._thread)

    def find_lease(self, lease_id: int, *, key: Key) -> "Lease":
        """Return a lease that another process was granted for ``key``; LeaseLost if it has ended.

        ``is_lost`` is true until the first ``keep``: before that this client cannot tell how long
        the lease lasts.
        """
        return Lease(self._thread.run(self._core.find_lease(lease_id, key=key)), self._thread)

    def lock(self, name: Key, *, ttl_s: float = 10.0) -> "Lock":
        """Return a lock that all clients share; its holder renews it within ``ttl_s``."""
        return Lock(self._core.lock(name, ttl_s=ttl_s), self._thread)
