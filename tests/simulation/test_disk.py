"""The simulated disk: it keeps what was synced, may forget the rest, and does forget it.

Both halves matter. A disk that loses synced bytes blames innocent code; a disk that is too kind
lets a missing sync pass. So each state that a power loss may leave is also shown to occur.
"""

import errno
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import CrashPolicy, Operation, SimDisk

ROOT = Path("/data")
A, B, C = ROOT / "a", ROOT / "b", ROOT / "c"
SEEDS = range(800)


def new_disk(**contents: bytes) -> SimDisk:
    """A disk with small pages that durably holds these files."""
    disk = SimDisk(page_size=16)
    disk.make_directory(ROOT)
    for name, content in contents.items():
        disk.put(ROOT / name, content)
    return disk


def tree(disk: SimDisk) -> dict[str, bytes]:
    return {name: disk.contents(ROOT / name) for name in disk.list(ROOT)}


def trees(disk: SimDisk) -> list[dict[str, bytes]]:
    """What many power losses leave."""
    return [tree(disk.crash(CrashPolicy.RANDOM, Random(seed))) for seed in SEEDS]


def outcomes(disk: SimDisk) -> set[bytes | None]:
    """What they leave of the file a."""
    return {left.get("a") for left in trees(disk)}


def names(disk: SimDisk) -> set[str]:
    """The names that they leave, all one letter long."""
    return {"".join(left) for left in trees(disk)}


def lost(disk: SimDisk) -> dict[str, bytes]:
    return tree(disk.crash(CrashPolicy.LOST))


def states(disk: SimDisk) -> tuple[dict[str, bytes], ...]:
    return tree(disk), lost(disk), tree(disk.crash(CrashPolicy.KEPT))


@dataclass(eq=False)
class TwinFile:
    """A file as all its states since it was synced: the first is durable, the last visible."""

    states: list[bytes]

    def allows(self, content: bytes) -> bool:
        """Tell whether a power loss may leave ``content``."""
        sizes = [len(state) for state in self.states]
        if not min(sizes) <= len(content) <= max(sizes):
            return False
        resized = len(set(sizes)) > 1  # only then may there be holes
        return all(
            byte in {state[at] for state in self.states if at < len(state)}
            or (byte == 0 and resized)
            for at, byte in enumerate(content)
        )


@dataclass
class Twin:
    """A plain model of the disk."""

    names: dict[Path, TwinFile] = field(default_factory=dict)
    # Per name, what it meant at the last sync of the directory and ever since.
    meanings: dict[Path, list[TwinFile | None]] = field(
        default_factory=lambda: {path: [None] for path in (A, B, C)}
    )

    def name(self, path: Path, file: TwinFile | None) -> None:
        if file is None:
            del self.names[path]
        else:
            self.names[path] = file
        self.meanings[path].append(file)

    def sync_directory(self) -> None:
        self.meanings = {path: [self.names.get(path)] for path in self.meanings}


def step(disk: SimDisk, twin: Twin, action: str, path: Path, at: int, data: bytes) -> None:
    """Do the same to both; what cannot be done is left out."""
    file = twin.names.get(path)
    if action == "sync_directory":
        disk.sync_directory(ROOT)
        twin.sync_directory()
    elif file is None:
        disk.open(path, create=True)
        twin.name(path, TwinFile([b""]))
    elif action == "remove":
        disk.remove(path)
        twin.name(path, None)
    elif action == "rename":
        target = (A, B, C)[at % 3]
        if target != path:
            disk.rename(path, target)
            twin.name(path, None)
            twin.name(target, file)
    elif action == "sync":
        disk.open_read(path).sync()
        del file.states[:-1]
    elif action == "truncate":
        disk.open(path).truncate(at)
        file.states.append(file.states[-1][:at].ljust(at, b"\0"))
    else:
        disk.open(path).write(data, at)
        old = file.states[-1].ljust(at, b"\0")
        file.states.append(old[:at] + data + old[at + len(data) :])


def check_possible(left: dict[str, bytes], twin: Twin) -> None:
    for path, was in twin.meanings.items():
        content = left.get(path.name)
        if content is None:
            assert None in was, path
        else:
            assert any(file.allows(content) for file in was if file is not None), (path, content)


ACTIONS = ["write", "write", "write", "truncate", "sync", "rename", "remove", "sync_directory"]
actions = st.tuples(
    st.sampled_from(ACTIONS),
    st.sampled_from([A, B, C]),
    st.integers(0, 40),
    st.binary(min_size=1, max_size=40),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=25), st.integers(0, 2**32))
def test_what_was_synced_survives_and_nothing_appears_that_was_never_written(
    steps: list[tuple[str, Path, int, bytes]], seed: int
) -> None:
    disk, twin, rng = new_disk(), Twin(), Random(seed)
    for action, path, at, data in steps:
        step(disk, twin, action, path, at, data)
    visible = {path.name: file.states[-1] for path, file in twin.names.items()}
    durable = {path.name: was[0].states[0] for path, was in twin.meanings.items() if was[0]}

    scribble(disk.crash(CrashPolicy.LOST))  # a disk and its copies share bytes, never changes
    assert states(disk) == (visible, durable, visible)
    for _ in range(5):
        state = rng.getstate()
        survivor = disk.crash(CrashPolicy.RANDOM, rng)
        check_possible(tree(survivor), twin)
        assert lost(survivor) == tree(survivor), "what a power loss leaves is durable"
        rng.setstate(state)
        assert tree(disk.crash(CrashPolicy.RANDOM, rng)) == tree(survivor), "all from the seed"
    killed = disk.crash(CrashPolicy.KEPT)
    assert states(killed) == (visible, durable, visible)
    check_possible(tree(killed.crash(CrashPolicy.RANDOM, rng)), twin)
    scribble(disk.crash(CrashPolicy.KEPT))
    assert states(disk) == (visible, durable, visible)
    scribble(disk)
    assert states(killed) == (visible, durable, visible)


def scribble(disk: SimDisk) -> None:
    for name in disk.list(ROOT):
        disk.open(ROOT / name).write(b"scribble", 0)
        disk.open(ROOT / name).sync()


def test_unsynced_pages_survive_in_any_combination() -> None:
    """Writeback has no order: a later page may be there when an earlier one is not."""
    disk = new_disk(a=b"." * 48)
    disk.open(A).write(b"x" * 48, 0)

    page = [b"." * 16, b"x" * 16]
    assert {one + two + three for one in page for two in page for three in page} < outcomes(disk)


def test_a_page_may_be_torn_or_hold_what_was_written_in_between() -> None:
    """Writeback may run after each of two writes to a page, so the middle is a state too."""
    disk = new_disk(a=b"." * 16)
    disk.open(A).write(b"x" * 16, 0)
    assert outcomes(disk) == {b"x" * size + b"." * (16 - size) for size in range(17)}

    disk.open(A).write(b"y" * 16, 0)
    assert {b"." * 16, b"x" * 16, b"y" * 16, b"y" * 8 + b"x" * 8} < outcomes(disk)


def test_an_extension_may_leave_any_size_and_holes_of_zeros() -> None:
    disk = new_disk(a=b"." * 8)
    disk.open(A).write(b"x" * 40, 8)

    left = outcomes(disk)

    assert {len(content) for content in left if content} == set(range(8, 49))
    assert b"." * 8 + bytes(8) + b"x" * 32 in left, "a hole, and valid bytes behind it"
    assert b"." * 8 + b"x" * 8 + bytes(32) in left
    assert {content[:8] for content in left if content} == {b"." * 8}


def test_an_unsynced_truncate_may_or_may_not_have_happened() -> None:
    old = bytes(range(1, 41))
    disk = new_disk(a=old)
    disk.open(A).truncate(20)

    zeroed = old[:20] + bytes(12) + old[32:]  # its page is written, its size is not
    assert {old, old[:20], zeroed} < outcomes(disk)
    assert {len(content) for content in outcomes(disk) if content} == {20, 40}


def test_what_a_truncate_cut_off_does_not_come_back_above_it() -> None:
    """Once the cut is on disk, the file grows again over zeros, never over the old bytes."""
    disk = new_disk(a=b"o" * 64)
    disk.open(A).write(b"o" * 64, 0)  # nor over unsynced ones
    disk.open(A).truncate(8)
    disk.open(A).write(b"n" * 16, 32)

    left = outcomes(disk)

    cut = {content for content in left if content and len(content) < 64}
    assert {len(content) for content in cut} == set(range(8, 49))
    assert all(b"o" not in content[8:] for content in cut)
    assert {b"o" * 8 + bytes(40), b"o" * 8 + bytes(24) + b"n" * 16} < left
    assert b"o" * 32 + b"n" * 16 + b"o" * 16 in left, "the write without the truncate"


def test_sync_makes_content_and_size_durable_but_not_the_name() -> None:
    disk = new_disk()
    disk.open(A, create=True).write(b"x" * 100, 0)
    disk.open(A).sync()

    assert outcomes(disk) == {None, b"x" * 100}
    assert lost(disk) == {}


def test_sync_directory_makes_the_name_durable_but_not_the_content() -> None:
    disk = new_disk()
    disk.open(A, create=True).write(b"x" * 20, 0)
    disk.sync_directory(ROOT)

    assert {b"", b"x" * 20, bytes(20), b"x" * 16 + bytes(4)} < outcomes(disk)
    assert names(disk) == {"a"}
    assert lost(disk) == {"a": b""}


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    """The log goes on appending while fdatasync runs in a thread, and may sync again there."""
    disk = new_disk(a=b"")
    file = disk.open(A)

    def meanwhile(description: str) -> None:
        assert description == "sync a"
        disk.before_sync = None
        file.write(b"two", 3)
        file.sync()
        file.write(b"three", 6)

    file.write(b"one", 0)
    disk.before_sync = meanwhile
    file.sync()

    assert lost(disk) == {"a": b"onetwo"}
    assert tree(disk) == {"a": b"onetwothree"}
    disk.before_sync = lambda _description: file.write(b"four", 11)
    file.sync()
    assert lost(disk) == {"a": b"onetwothree"}


def test_unsynced_names_may_vanish_and_removed_ones_come_back() -> None:
    disk = new_disk(a=b"old")
    disk.remove(A)
    disk.open(B, create=True)

    assert names(disk) == {"a", "", "ab", "b"}
    disk.sync_directory(ROOT)
    assert names(disk) == {"b"}
    survivor = disk.crash(CrashPolicy.LOST)
    survivor.remove(B)
    assert names(survivor) == {"b", ""}


def test_a_rename_is_atomic() -> None:
    """The target is the old file or the new one, and the source is gone only with the latter."""
    disk = new_disk(a=b"old", b=b"new")
    disk.rename(B, A)

    assert names(disk) == {"a", "ab"}
    assert all(left["a"] == (b"old" if "b" in left else b"new") for left in trees(disk))


def test_an_operation_that_builds_on_a_lost_one_is_lost_too() -> None:
    disk = new_disk(a=b"old")
    disk.open(B, create=True)
    disk.rename(B, C)
    disk.remove(C)
    assert names(disk) == {"a", "ab", "ac"}

    disk = new_disk(a=b"old")
    disk.rename(A, B)
    disk.open(A, create=True)
    disk.remove(A)
    assert names(disk) == {"a", "b", "ab"}, "removing the new a never hits the old one"
    assert outcomes(disk) == {b"old", b"", None}


def test_a_directory_may_vanish_if_asked_for() -> None:
    disk = SimDisk(forget_directories=True)
    disk.make_directory(ROOT / "segs")
    disk.sync_directory(Path("/"))
    assert disk.crash(CrashPolicy.LOST).list(ROOT) == []
    disk.sync_directory(ROOT)
    assert disk.crash(CrashPolicy.LOST).list(ROOT) == ["segs"]


def test_a_killed_process_leaves_everything_and_all_of_it_as_unsynced_as_before() -> None:
    """Recovery reads the page cache; to rely on what it finds there, it must sync it."""
    disk = new_disk(a=b"old")
    disk.open(A).write(b"new", 0)
    disk.open(B, create=True)

    new, old = {"a": b"new", "b": b""}, {"a": b"old"}
    assert states(disk.crash(CrashPolicy.KEPT)) == (new, old, new)


def test_a_crash_releases_locks_and_leaves_hooks_and_faults_behind() -> None:
    disk = new_disk(a=b"old")
    assert disk.lock(ROOT / "LOCK") is not None
    disk.fail("open", errno.EIO)
    disk.after_operation = disk.before_sync = lambda _description: pytest.fail("hook was kept")

    survivor = disk.crash(CrashPolicy.KEPT)

    assert survivor.lock(ROOT / "LOCK") is not None
    survivor.open(A).sync()
    assert disk.lock(ROOT / "LOCK") is None


def test_changes_are_reported_to_the_hook_and_reads_and_maps_are_counted() -> None:
    disk, seen = SimDisk(tear_writes=True), list[str]()
    disk.after_operation = seen.append

    disk.make_directory(ROOT)
    file = disk.open(A, create=True)
    file.write(b"12345", 64)
    file.write(b"6", 69)
    assert file.read(100, 60) == bytes(4) + b"123456"
    assert len(disk.map(A)) == 70
    file.truncate(3)
    file.sync()
    disk.rename(A, B)
    disk.sync_directory(ROOT)
    disk.remove(B)

    assert "; ".join(seen) == (
        "make_directory data; create a; torn write a 64+2; write a 64+5; write a 69+1; "
        "truncate a 3; sync a; rename a -> b; sync_directory data; remove b"
    )
    assert (disk.operations, disk.bytes_read, disk.bytes_mapped) == (len(seen), 10, 70)


def test_an_exception_from_the_hook_ends_the_workload_half_way_through_a_write() -> None:
    disk = new_disk(a=b"")
    disk.tear_writes = True
    disk.after_operation = pytest.fail

    with pytest.raises(pytest.fail.Exception, match=r"torn write a 0\+4"):
        disk.open(A).write(b"12345678", 0)
    assert tree(disk) == {"a": b"1234"}


def test_a_full_disk_takes_what_fits_and_works_again_with_more_room() -> None:
    disk = new_disk(a=b"12345")
    disk.capacity = 10
    file = disk.open(B, create=True)
    assert disk.free_bytes(ROOT) == 5

    with pytest.raises(OSError, match="No space left"):
        file.write(b"abcdefgh", 0)
    assert disk.contents(B) == b"abcde"
    assert disk.free_bytes(ROOT) == 0

    file.write(b"ABCDE", 0)  # needs no more room
    for offset in (4, 7):
        with pytest.raises(OSError, match="No space left"):
            file.write(b"12", offset)
    assert disk.contents(B) == b"ABCD1"

    disk.remove(A)
    file.write(b"12", 5)
    disk.capacity = 1000
    file.write(b"x" * 1000, 0)
    assert disk.free_bytes(ROOT) == 0


def test_a_lying_sync_and_a_failed_one_make_nothing_durable() -> None:
    disk = new_disk(a=b"old")
    disk.open(A).write(b"new", 0)
    disk.open(B, create=True)
    disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        disk.open(A).sync()
    assert lost(disk) == {"a": b"old"}

    for lie, left in ((True, {"a": b"old"}), (False, {"a": b"new", "b": b""})):
        disk.lie_about_sync = lie
        disk.open(A).sync()
        disk.sync_directory(ROOT)
        assert lost(disk) == left


ATTEMPTS: dict[Operation, Callable[[SimDisk], object]] = {
    "open": lambda disk: disk.open(A),
    "create": lambda disk: disk.open(C, create=True),
    "read": lambda disk: disk.open(A).read(1, 0),
    "map": lambda disk: disk.map(A),
    "write": lambda disk: disk.open(A).write(b"1234", 0),
    "truncate": lambda disk: disk.open(A).truncate(0),
    "sync": lambda disk: disk.open(A).sync(),
    "list": lambda disk: disk.list(ROOT),
    "make_directory": lambda disk: disk.make_directory(ROOT / "x"),
    "rename": lambda disk: disk.rename(A, C),
    "remove": lambda disk: disk.remove(A),
    "sync_directory": lambda disk: disk.sync_directory(ROOT),
    "lock": lambda disk: disk.lock(A),
}


@pytest.mark.parametrize("operation", ATTEMPTS)
def test_every_operation_can_be_made_to_fail_and_then_works(operation: Operation) -> None:
    disk = new_disk(a=b"old!")
    disk.fail(operation, errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        ATTEMPTS[operation](disk)

    assert tree(disk) == {"a": b"12d!" if operation == "write" else b"old!"}, "half of a write"
    ATTEMPTS[operation](disk)


def test_faults_choose_by_path_by_count_and_by_order() -> None:
    disk = new_disk(a=b"a", b=b"b")
    disk.fail("read", errno.EIO, path_contains="data/b", after=1, times=2)

    def reads(path: Path) -> str:
        results = ""
        for _ in range(5):
            try:
                results += disk.open(path).read(1, 0).decode()
            except OSError:
                results += "!"
        return results

    assert (reads(A), reads(B)) == ("aaaaa", "b!!bb")
    disk.fail("read", errno.EIO, times=math.inf)
    assert reads(A) == "!!!!!"
    disk.heal()
    assert reads(A) == "aaaaa"

    disk.fail("rename", errno.EACCES, path_contains="data/c")  # the target's name counts too
    with pytest.raises(PermissionError):
        disk.rename(A, C)


def test_flip_and_put_are_durable_whatever_was_pending() -> None:
    disk = SimDisk(page_size=16, forget_directories=True)
    disk.put(A, b"first")
    reader = disk.open_read(A)
    disk.flip(A, 11)
    assert reader.read(5, 0) == b"f\x61rst"
    assert outcomes(disk) == {b"f\x61rst"}

    disk.remove(A)
    disk.put(A, b"second")
    assert outcomes(disk) == {b"second"}
    assert disk.operations == 1, "of the workload, which has removed a file"


def test_a_replacement_that_forgets_its_sync_is_caught() -> None:
    """The point of it all: rename without a sync leaves an empty file under the final name."""
    disk = new_disk(a=b"old content")
    disk.open(B, create=True).write(b"new content", 0)
    disk.rename(B, A)
    disk.sync_directory(ROOT)

    assert {b"", b"new content"} < outcomes(disk)
    assert lost(disk) == {"a": b""}
