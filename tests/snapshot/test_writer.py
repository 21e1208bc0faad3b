"""Writing ``.fsnap`` files: durable or not there, in bounded memory, and never the last bytes."""

import errno
from collections.abc import Iterator
from random import Random

import pytest

from onelog.snapshot import writer as writer_module
from onelog.snapshot.progress import Phase
from onelog.snapshot.writer import write_snapshot
from onelog.ual.errors import DiskFull
from tests.simulation.disk import CrashPolicy, Operation, SimDisk
from tests.snapshot.files_of import CREATED_S, HEADER, SNAPS, read, write

SECTIONS = {0: b"system" * 5, 1: bytes(range(256)) * 3, 16: b""}
NAME = "0000001234-1700000000.fsnap"


def test_a_crash_after_any_operation_leaves_no_file_or_the_whole_file() -> None:
    """Only the rename makes it a snapshot, and then all of it is durable."""
    disk = SimDisk(page_size=64, tear_writes=True)
    disk.make_directory(SNAPS)
    crashes = Random(1)
    found = set()

    def crash_here(operation: str) -> None:
        for policy in (CrashPolicy.LOST, CrashPolicy.KEPT, *[CrashPolicy.RANDOM] * 20):
            left = disk.crash(policy, crashes)
            names = left.list(SNAPS)
            assert set(names) <= {NAME, NAME + ".tmp"}
            if NAME in names:
                assert read(left, SNAPS / NAME) == SECTIONS, operation
            found.update(names)

    disk.after_operation = crash_here
    write(SECTIONS, disk)
    assert disk.crash(CrashPolicy.LOST).list(SNAPS) == [NAME], "not durable on return"
    assert found == {NAME, NAME + ".tmp"}


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_failed_operation_leaves_nothing_behind(operation: Operation, after: int) -> None:
    disk = SimDisk()
    disk.make_directory(SNAPS)
    after = after if operation == "write" else 0
    disk.fail(operation, errno.EIO, after=after)
    with pytest.raises(OSError, match="Input/output"):
        write(SECTIONS, disk)
    assert disk.list(SNAPS) == []
    write(SECTIONS, disk)


def test_a_full_disk_is_named_and_leaves_nothing_behind() -> None:
    disk = SimDisk(capacity=500)
    disk.make_directory(SNAPS)
    with pytest.raises(DiskFull, match="free some space"):
        write_snapshot(disk, SNAPS, HEADER, 1, [(1, [bytes(1000)])], free_bytes_min=0)
    assert disk.list(SNAPS) == []


def test_the_space_that_the_log_needs_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "SYNC_BYTES", 1000)
    monkeypatch.setattr(writer_module, "WRITE_SIZE", 100)
    disk = SimDisk(capacity=10_000)
    disk.make_directory(SNAPS)
    with pytest.raises(DiskFull, match="6000 must stay free"):
        write_snapshot(disk, SNAPS, HEADER, 1, [(1, [bytes(100)] * 60)], free_bytes_min=6000)
    assert disk.list(SNAPS) == []


def test_an_interrupted_source_leaves_nothing_behind() -> None:
    disk = SimDisk()
    disk.make_directory(SNAPS)

    def content() -> Iterator[bytes]:
        yield bytes(300_000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_snapshot(disk, SNAPS, HEADER, 1, [(1, content())])
    assert disk.list(SNAPS) == []


def test_a_leftover_of_the_same_name_is_replaced() -> None:
    disk = SimDisk()
    disk.put(SNAPS / (NAME + ".tmp"), b"left by a crash" * 1000)
    _, path = write(SECTIONS, disk)
    assert read(disk, path) == SECTIONS
    assert disk.list(SNAPS) == [NAME]


def test_small_chunks_are_collected_and_large_files_synced_on_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "SYNC_BYTES", 10_000)
    monkeypatch.setattr(writer_module, "WRITE_SIZE", 1000)
    disk = SimDisk()
    disk.make_directory(SNAPS)
    operations: list[str] = []
    disk.after_operation = operations.append
    steps: list[tuple[Phase, int, int]] = []

    written = write_snapshot(
        disk, SNAPS, HEADER, CREATED_S, [(1, [b"x" * 10] * 5000)],
        free_bytes_min=0, progress=lambda *step: steps.append(step),
    )  # fmt: skip

    writes = [operation for operation in operations if operation.startswith("write")]
    syncs = [operation for operation in operations if operation.startswith("sync ")]
    assert len(writes) == 50 + 3, "fifty pieces, a section's header, footer and header"
    assert len(syncs) == 5 + 1
    size = written.header.size
    assert steps[-1] == (Phase.WRITE, size, size)


def test_sections_that_do_not_ascend_are_a_programming_error() -> None:
    disk = SimDisk()
    disk.make_directory(SNAPS)
    with pytest.raises(AssertionError, match="do not ascend"):
        write_snapshot(disk, SNAPS, HEADER, 1, [(4, [b""]), (1, [b""])])
    assert disk.list(SNAPS) == []
