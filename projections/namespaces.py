"""Namespaces: names for keys, queues, streams and measurements that belong together, with limits.

The namespace ``default`` exists from the start (created at index 0) and cannot be deleted. System
entries create and delete the others. A namespace that is deleted and created again is a new one:
its id is the index of its creation. Limits are read at each write: a lower ``versions_max`` trims a
key when it is next written, not before, so configuring costs the same for one key and for a
million.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from onelog.projections.limits import (
    NAMESPACE_DEFAULT,
    TOMBSTONES_DEFAULT,
    TOMBSTONES_MAX,
    VALUE_SIZE_MAX,
    VERSIONS_DEFAULT,
    VERSIONS_MAX,
    OutOfBounds,
    find_out_of_bounds,
)
from onelog.projections.state_hash import item_hash

LIMITS = struct.Struct("<BIQI")
LIMITS_SIZE = 17
assert LIMITS.size == LIMITS_SIZE

_ITEM = struct.Struct("<BQ")
_ITEM_KIND = 0x01


@dataclass(frozen=True, slots=True)
class Limits:
    """What a namespace allows; each field is enforced by apply."""

    versions_max: int = VERSIONS_DEFAULT
    value_size_max: int = VALUE_SIZE_MAX
    keys_max: int = 0  # 0: no limit
    tombstones_max: int = TOMBSTONES_DEFAULT

    def invalid(self) -> OutOfBounds | None:
        """Return the first field that is outside its bounds, None if all are inside."""
        return find_out_of_bounds((
            ("versions_max", self.versions_max, 1, VERSIONS_MAX),
            ("value_size_max", self.value_size_max, 0, VALUE_SIZE_MAX),
            ("tombstones_max", self.tombstones_max, 0, TOMBSTONES_MAX),
        ))  # fmt: skip

    def encode(self) -> bytes:
        """Return the 17 bytes of docs/payloads.md."""
        return LIMITS.pack(
            self.versions_max, self.value_size_max, self.keys_max, self.tombstones_max
        )


@dataclass(frozen=True, slots=True)
class Namespace:
    """One namespace; ``created_index`` is its id."""

    name: str
    created_index: int
    limits: Limits


class Namespaces:
    """All namespaces by name. Invariant: ``hash_total`` is the sum of their items' hashes."""

    __slots__ = ("_by_name", "hash_total")

    def __init__(self) -> None:
        self._by_name: dict[str, Namespace] = {}
        self.hash_total = 0
        self.add(Namespace(NAMESPACE_DEFAULT, 0, Limits()))

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Namespace]:
        """Iterate in the order of names."""
        return iter([self._by_name[name] for name in sorted(self._by_name)])

    def get(self, name: str) -> Namespace | None:
        """Return the namespace called ``name``."""
        return self._by_name.get(name)

    def add(self, namespace: Namespace) -> None:
        """Add a namespace whose name is free."""
        assert namespace.name not in self._by_name, f"namespace {namespace.name!r} exists"
        assert namespace.limits.invalid() is None, namespace.limits
        self._by_name[namespace.name] = namespace
        self.hash_total += _hash(namespace)

    def configure(self, name: str, limits: Limits) -> Namespace:
        """Replace the limits of a namespace and return it."""
        assert limits.invalid() is None, limits
        before = self._by_name[name]
        after = replace(before, limits=limits)
        self._by_name[name] = after
        self.hash_total += _hash(after) - _hash(before)
        return after

    def remove(self, name: str) -> Namespace:
        """Remove a namespace and return it."""
        namespace = self._by_name.pop(name)
        self.hash_total -= _hash(namespace)
        return namespace

    def check(self) -> None:
        """Assert the invariants of this file."""
        assert NAMESPACE_DEFAULT in self._by_name, "the default namespace is gone"
        assert self.hash_total == sum(map(_hash, self._by_name.values()))
        for name, namespace in self._by_name.items():
            assert namespace.name == name, f"{namespace.name!r} stored as {name!r}"


def _hash(namespace: Namespace) -> int:
    head = _ITEM.pack(_ITEM_KIND, namespace.created_index)
    return item_hash(head + namespace.limits.encode() + namespace.name.encode(), 0)
