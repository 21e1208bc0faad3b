"""The spill store: it returns what was put or says that it cannot, and never anything else."""

import errno
import os
import resource
import subprocess
import sys
from pathlib import Path
from random import Random

import lmdb
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from onelog.node.replica import spill as spill_module
from onelog.node.replica.spill import LmdbSpill, SpillFull
from onelog.projections.errors import SpillLost
from onelog.projections.shard_state import build_projections
from onelog.ual.entry import decode_entries, encode_group
from onelog.ual.segments.notes import ApplyNotes
from tests.snapshot.live import Work


class SpillModel(RuleBasedStateMachine):
    """The store against a dict, with a buffer so small that it is written all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[int, bytes] = {}
        self.next_id = 1

    @initialize(pending=st.sampled_from((0, 300, 1 << 20)))
    def start(self, pending: int) -> None:
        self.directory = Path(os.environ["SPILL_TEST_DIRECTORY"]) / str(id(self))
        spill_module.PENDING_BYTES_MAX = pending
        self.spill = LmdbSpill(self.directory)

    @rule(value=st.binary(max_size=200), times=st.sampled_from((1, 40)))
    def put(self, value: bytes, times: int) -> None:
        self.values[self.next_id] = value * times
        self.spill.put(self.next_id, value * times)
        self.next_id += 1

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def get(self, data: st.DataObject) -> None:
        value_id = data.draw(st.sampled_from(sorted(self.values)))
        assert self.spill.get(value_id) == self.values[value_id]

    @precondition(lambda self: self.values)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        value_id = data.draw(st.sampled_from(sorted(self.values)))
        self.spill.delete(value_id)
        del self.values[value_id]
        with pytest.raises(SpillLost):
            self.spill.get(value_id)

    @rule()
    def flush(self) -> None:
        self.spill.flush()
        assert self.spill.pending_bytes() == 0

    @invariant()
    def all_is_there(self) -> None:
        if self.next_id % 7 == 0:
            assert {value_id: self.spill.get(value_id) for value_id in self.values} == self.values

    def teardown(self) -> None:
        if hasattr(self, "spill"):
            self.spill.close()


def test_the_store_is_a_dict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPILL_TEST_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(spill_module, "PENDING_BYTES_MAX", 1 << 20)
    case = SpillModel.TestCase
    case.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
    case("runTest").runTest()


def flushed(path: Path, count: int, size: int = 100) -> LmdbSpill:
    store = LmdbSpill(path)
    for value_id in range(count):
        store.put(value_id, b"%08d" % value_id + bytes(size))
    store.flush()
    return store


def test_what_an_earlier_run_left_is_deleted(tmp_path: Path) -> None:
    """Its ids mean something else now."""
    flushed(tmp_path / "spill.lmdb", 10).close()
    store = LmdbSpill(tmp_path / "spill.lmdb")
    with pytest.raises(SpillLost, match="not there"):
        store.get(3)
    store.close()


def test_a_value_that_was_never_put_is_lost_not_empty(tmp_path: Path) -> None:
    store = flushed(tmp_path / "spill.lmdb", 1)
    with pytest.raises(SpillLost, match="spilled value 99: is not there"):
        store.get(99)
    store.close()


@pytest.mark.parametrize("what", ["bit", "swap", "cut"])
def test_a_damaged_value_is_never_returned(tmp_path: Path, what: str) -> None:
    store = flushed(tmp_path / "spill.lmdb", 50)
    keys = [value_id.to_bytes(8, "big") for value_id in (7, 8)]
    with store._environment.begin(write=True) as transaction:
        stored = transaction.get(keys[0])
        assert stored is not None
        if what == "bit":
            damaged = bytearray(stored)
            damaged[20] ^= 4
            transaction.put(keys[0], bytes(damaged))
        elif what == "cut":
            transaction.put(keys[0], stored[:3])
        else:
            other = transaction.get(keys[1])
            assert other is not None
            transaction.put(keys[0], other)
    with pytest.raises(SpillLost, match="checksum"):
        store.get(7)
    assert store.get(9).startswith(b"00000009")
    store.close()


def test_a_flipped_bit_anywhere_in_the_values_is_found(tmp_path: Path) -> None:
    """On the file itself: whatever is returned is what was put."""
    path = tmp_path / "spill.lmdb"
    store = flushed(path, 300, size=300)
    expected = [store.get(value_id) for value_id in range(300)]
    data = path / "data.mdb"
    content = data.read_bytes()
    rng = Random(5)
    found = 0
    for _ in range(60):
        at = content.index(b"%08d" % rng.randrange(300)) + rng.randrange(300)
        with data.open("r+b") as file:
            file.seek(at)
            file.write(bytes((content[at] ^ 1 << rng.randrange(8),)))
        for value_id in range(300):
            try:
                assert store.get(value_id) == expected[value_id]
            except SpillLost:
                found += 1
        with data.open("r+b") as file:
            file.seek(at)
            file.write(content[at : at + 1])
    assert found > 30, "most of the flips hit a value that is in use"
    store.close()


def test_the_map_grows_up_to_its_limit_and_then_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spill_module, "MAP_SIZE_MIN", 64 << 10)
    monkeypatch.setattr(spill_module, "PENDING_BYTES_MAX", 10_000)
    store = LmdbSpill(tmp_path / "spill.lmdb", size_max=1 << 20)
    kept: dict[int, bytes] = {}

    def fill() -> None:
        for value_id in range(2000):
            value = Random(value_id).randbytes(1000)
            store.put(value_id, value)
            kept[value_id] = value

    with pytest.raises(SpillFull, match="limit of 1048576"):
        fill()
    assert len(kept) > 400, "it has grown from the 64 KiB that it began with"
    assert store.used_bytes() <= 1 << 20
    assert store.size_bytes() <= (1 << 20) * 5 // 4
    # Refused is refused, and all that was taken is still there, in the file or waiting.
    with pytest.raises(SpillLost):
        store.get(len(kept))
    assert all(store.get(value_id) == value for value_id, value in kept.items())
    with pytest.raises(SpillFull):
        store.put(5000, bytes(1000))
    # What is deleted makes room.
    for value_id in range(400):
        store.delete(value_id)
        del kept[value_id]
    for value_id in range(6000, 6200):
        store.put(value_id, b"%d" % value_id)
    store.flush()
    assert store.get(6100) == b"6100"
    assert all(store.get(value_id) == value for value_id, value in kept.items())
    store.close()


def test_a_full_disk_refuses_the_put_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = flushed(tmp_path / "spill.lmdb", 10)

    real = store._environment

    class FullDisk:
        """Stands where the environment was; its transactions meet ENOSPC."""

        def begin(self, *, write: bool = False) -> object:
            raise lmdb.Error("mdb_txn_commit: No space left on device", errno.ENOSPC)

        def stat(self) -> object:
            return real.stat()

    store.put(20, b"waiting")
    monkeypatch.setattr(spill_module, "PENDING_BYTES_MAX", 0)
    store._environment = FullDisk()  # type: ignore[assignment]
    with pytest.raises(SpillFull, match="check the disk's space"):
        store.put(21, b"refused")
    store._environment = real
    assert store.get(20) == b"waiting"
    with pytest.raises(SpillLost):
        store.get(21)
    store.put(21, b"again")
    assert store.get(21) == b"again"
    store.close()


FULL_DISK = """
import resource, sys
from pathlib import Path
from onelog.node.replica.spill import LmdbSpill, SpillFull
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
store = LmdbSpill(Path(sys.argv[1]))
kept = 0
try:
    for value_id in range(20000):
        store.put(value_id, b"%08d" % value_id + bytes(1000))
        kept += 1
except Exception as error:
    name = type(error).__name__
else:
    name = "no error"
good = sum(store.get(at) == b"%08d" % at + bytes(1000) for at in range(kept))
print(name, kept > 1000, good == kept)
"""


def test_a_file_that_cannot_grow_loses_nothing_that_was_taken(tmp_path: Path) -> None:
    """A real write that really fails, in a process of its own because of the limit."""
    ended = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "spill.lmdb")],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert ended.stdout.split() == ["SpillFull", "True", "True"]


def test_a_damaged_file_is_lost_not_full(tmp_path: Path) -> None:
    store = flushed(tmp_path / "spill.lmdb", 10)

    class Damaged:
        def begin(self, *, write: bool = False) -> object:
            raise lmdb.CorruptedError("mdb_get")

    real = store._environment
    store._environment = Damaged()  # type: ignore[assignment]
    with pytest.raises(SpillLost, match="mdb_get"):
        store.get(3)
    store._environment = real
    store.close()


def test_waiting_values_take_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    store = LmdbSpill(tmp_path / "spill.lmdb")
    for value_id in range(20_000):
        store.put(value_id, bytes(200))
        assert store.pending_bytes() <= spill_module.PENDING_BYTES_MAX
        if value_id % 3 == 0:
            store.delete(value_id // 2)
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_the_projections_are_the_same_with_their_values_in_the_store(
    tmp_path: Path, seed: int
) -> None:
    work = Work(seed)
    store = LmdbSpill(tmp_path / "spill.lmdb")
    plain = build_projections(ApplyNotes())
    spilling = build_projections(ApplyNotes(), store)
    rng = Random(seed)
    first = 1
    for number in range(150):
        group = encode_group(
            work.group(first), term=1, first_index=first, timestamp_ns=number * 10**9
        )
        entries = decode_entries(group.data)
        plain.router.apply_group(entries)
        spilling.router.apply_group(entries)
        first += len(entries)
        if rng.random() < 0.2:
            spilling.router.evict(rng.choice((100, 10_000)))
        assert spilling.router.state_hash() == plain.router.state_hash()
    spilling.router.evict(1 << 30)
    spilling.router.check()
    dumps = [
        {owner: b"".join(chunks) for owner, chunks in at.router.dump().items()}
        for at in (plain, spilling)
    ]
    assert dumps[0] == dumps[1]
    store.close()


def test_the_store_does_not_grow_the_process(tmp_path: Path) -> None:
    """Values that went to the file are the system's to keep or drop, not the process's."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    store = LmdbSpill(tmp_path / "spill.lmdb")
    value = os.urandom(4000)
    for value_id in range(10_000):
        store.put(value_id, value)
    store.flush()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert store.size_bytes() > 40_000_000
    assert (after - before) * 1024 < 20_000_000
    store.close()
