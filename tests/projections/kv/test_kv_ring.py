"""Rings: keys that are put over and over in place, and nobody may tell that they are."""

from collections import Counter
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from onelog.projections.kv import commands as kv
from onelog.projections.kv import store
from onelog.projections.kv.reads import History
from onelog.projections.kv.record import (
    OUTSIDE,
    TRIMMED,
    encode_version,
    find_newest,
    to_record,
    to_ring,
)
from onelog.projections.kv.store import Store
from onelog.projections.namespaces import Limits
from onelog.projections.result import Refused
from onelog.projections.system.commands import NamespaceConfigure, encode_batch
from onelog.projections.system.commands import encode_command as encode_system
from onelog.ual.entry import Draft
from tests.projections.world import NAMESPACE, SECOND, World

KEYS = [b"a", b"b", b"c", b"long key", b"other"]
HOUR = 3_600 * SECOND
HISTORIES, STEPS = 16, 250
# Most have one size. Two versions of 42 bytes are as long as four of 8; the last stands outside.
SIZES = (8, 8, 8, 8, 8, 8, 8, 42, 42, 600)


class Twins:
    """Two worlds that get the same entries; one makes no rings."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)
        self.world, self.copying = World(), World()
        self.seen: Counter[str] = Counter()
        self.is_evicted = False
        self.configure()

    def configure(self) -> None:
        limits = Limits(
            versions_max=self.draw.choice((1, 2, 3, 4)),
            value_size_max=self.draw.choice((4, 30, 2_000, 2_000, 2_000)),
            keys_max=self.draw.choice((4, 0)),
        )
        self.send([encode_system(NamespaceConfigure(limits), NAMESPACE)])

    def key(self) -> bytes:
        return self.draw.choice(KEYS)

    def value(self) -> bytes:
        return self.draw.randbytes(self.draw.choice(SIZES))

    def command(self) -> kv.Command:
        draw, key, value = self.draw, self.key(), self.value()
        kind = draw.random()
        if kind < 0.45:
            return kv.Put(key, value)
        if kind < 0.9:
            keys = [self.key() for _ in range(draw.randint(1, 6))]
            if draw.random() < 0.7:
                keys = sorted(set(keys))
            values = [self.value() if draw.random() < 0.3 else bytes(8) for _ in keys]
            return kv.PutMany(kv.put_bodies(keys, values, HOUR if draw.random() < 0.1 else None))
        return draw.choice(
            (
                kv.Put(key, value, ttl_ns=draw.choice((SECOND, HOUR))),
                kv.Put(key, value, expected=draw.randrange(3)),
                kv.Delete(key),
                kv.Append(key, b"more"),
                kv.Touch(key, HOUR),
                kv.DeleteRange(b"b", b"d", 10),
            )
        )

    def step(self) -> None:
        draw, kind = self.draw, self.draw.random()
        if kind < 0.04:
            self.configure()
        elif kind < 0.05:
            for world in (self.world, self.copying):
                world.pass_time(2 * SECOND)
        elif kind < 0.06:
            self.is_evicted = True
            self.world.state.kv.evict(draw.choice((100, 10_000)))
        else:
            drafts = [
                kv.encode_command(self.command(), NAMESPACE) for _ in range(draw.randint(1, 6))
            ]
            if draw.random() < 0.4:
                # Refused as a whole, more often than not: there is no such key.
                missing = kv.Touch(b"missing" if draw.random() < 0.7 else self.key(), HOUR)
                drafts = encode_batch([*drafts, kv.encode_command(missing, NAMESPACE)])
            self.send(drafts)
        self.compare()

    def send(self, drafts: list[Draft]) -> None:
        before = {key: to_record(each) for key, each in self.rings().items()}
        results = self.world.group(drafts)
        with patch.object(store, "to_ring", lambda _key, record, *_: record):
            assert self.copying.group(drafts) == results
        after = self.rings()
        for key, record in before.items():
            if key in after and to_record(after[key]) != record:
                self.seen["written over"] += 1
        if before and isinstance(results[0], Refused):
            self.seen["refused"] += 1

    def rings(self) -> dict[bytes, bytearray]:
        records = self.world.state.kv.stores[NAMESPACE].records
        return {key: each for key, each in records.items() if isinstance(each, bytearray)}

    def compare(self) -> None:
        world, copying = self.world.state, self.copying.state
        world.router.check()
        assert world.router.state_hashes() == copying.router.state_hashes()
        assert self.world.sections() == self.copying.sections()
        assert world.router.counts() | {"values_spilled": 0} == copying.router.counts()
        if not self.is_evicted:
            assert world.kv.memory()["records"] == copying.kv.memory()["records"]
        as_of = self.world.index - self.draw.randrange(10)
        for key in KEYS:
            for index in (None, as_of):
                found = world.kv.get(NAMESPACE, key, index)
                assert found == copying.kv.get(NAMESPACE, key, index)
            history = world.kv.history(NAMESPACE, key)
            assert isinstance(history, History)
            assert history == copying.kv.history(NAMESPACE, key)


def test_nobody_can_tell_a_ring_from_a_record() -> None:
    """Puts that go on, are refused or taken back, and all that others do to their keys."""
    seen: Counter[str] = Counter()
    for seed in range(HISTORIES):
        twins = Twins(seed)
        for _ in range(STEPS):
            twins.step()
        seen += twins.seen
    assert min(seen["written over"], seen["refused"]) > 10 * HISTORIES, seen


def test_a_key_that_is_full_of_values_of_one_size_is_written_over_in_place() -> None:
    world = World()
    records = world.state.kv.stores[NAMESPACE].records
    for number in range(8):
        world.put(b"k", b"value %d" % number)
        assert isinstance(records[b"k"], bytes)
    world.put(b"k", b"value 8")
    ring = records[b"k"]
    assert isinstance(ring, bytearray)
    for number in range(9, 30):
        world.put(b"k", b"value %d" % (number % 10))
        assert records[b"k"] is ring
    many = kv.PutMany(kv.put_bodies([b"k"], [b"at once"], None))
    world.kv(many)
    assert records[b"k"] is ring
    assert world.value(b"k") == b"at once"
    world.put(b"k", b"of another size")
    assert isinstance(records[b"k"], bytes)
    world.state.router.check()


def at_once(*pairs: tuple[bytes, bytes]) -> kv.PutMany:
    return kv.PutMany(kv.put_bodies([key for key, _ in pairs], [each for _, each in pairs], None))


def test_puts_that_are_alike_are_written_over_rings_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What they have in common is looked at once."""
    done: list[bool] = []
    write_over = Store.write_over

    def noted(self: Store, *arguments: Any) -> bool:
        done.append(write_over(self, *arguments))
        return done[-1]

    monkeypatch.setattr(Store, "write_over", noted)
    old, new = b"old " * 2, b"new " * 2
    for puts, is_alike in (
        ([(b"a", new), (b"b", new), (b"c", new)], True),
        ([(b"a", new)], True),
        ([(b"a", new), (b"b", new + b"and longer")], False),
        ([(b"a", new), (b"bb", new[1:])], False),  # of the same length as a whole
        ([(b"a", new), (b"b", new), (b"a", b"twice it")], False),
        ([(b"a", new), (b"new", new)], False),
    ):
        world = World()
        for _ in range(9):
            world.kv(at_once((b"a", old), (b"b", old), (b"c", old)))
        assert not any(done)
        done.clear()
        world.kv(at_once(*puts))
        assert done.count(True) == is_alike, puts
        done.clear()
        expected = {b"a": old, b"b": old, b"c": old} | dict(puts)
        assert {key: world.value(key) for key in expected} == expected
        world.state.router.check()


def test_a_ring_of_more_versions_than_are_kept_by_now_is_left_alone() -> None:
    """Four versions of 8 bytes are as long as two of 42."""
    world = World()
    world.system(NamespaceConfigure(Limits(versions_max=4)), NAMESPACE)
    for number in range(6):
        world.kv(at_once((b"a", b"%08d" % number), (b"b", bytes(8))))
    world.system(NamespaceConfigure(Limits(versions_max=2)), NAMESPACE)
    world.kv(at_once((b"a", bytes(42)), (b"b", bytes(42))))
    history = world.state.kv.history(NAMESPACE, b"a")
    assert isinstance(history, History)
    assert [each.value for each in history.versions] == [bytes(42), b"00000005"]
    world.state.router.check()


def version(number: int, value: bytes, flags: int = 0, count: int = 1) -> bytes:
    return encode_version(number, number, flags, count, 0, 0, value)


def test_only_a_record_of_versions_of_one_size_becomes_a_ring() -> None:
    first, second = version(2, b"new", TRIMMED, 2), version(1, b"old")
    ring = to_ring(b"k", first + second, len(first), 2)

    assert ring == bytes((0, 2, 2)) + first + second
    assert to_record(ring) == first + second
    assert find_newest(ring) == first
    reference = version(1, b"old", OUTSIDE)
    assert to_ring(b"k", first + reference, len(first), 2) == bytes((0, 0, 2)) + first + reference
    assert to_ring(b"cg:k", first + second, len(first), 2) == first + second
    for others in (
        first + version(1, b"older"),
        first,
        first + second + second,
        version(2, b"longer", TRIMMED, 2) + version(1, b""),
    ):
        assert to_ring(b"k", others, len(first), 2) == others
        assert to_record(others) == find_newest(others) == others
