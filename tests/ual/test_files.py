"""The file port's promises, kept by the real file system and by the simulated one alike.

Whatever the simulated disk allows that the real one does not (or the reverse) would make every
crash test above it worthless, so both run the same tests.
"""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from onelog.ual.files import DiskFile, DiskFiles, Files, replace_file
from tests.simulation.disk import CrashPolicy, SimDisk

REPOSITORY = Path(__file__).parents[2]

# Takes the lock named by its argument, says how that went, and holds it until stdin ends.
LOCK_HOLDER = """
import sys
from pathlib import Path
from onelog.ual.files import DiskFiles
lock = DiskFiles().lock(Path(sys.argv[1]))
sys.stdout.write("refused\\n" if lock is None else "held\\n")
sys.stdout.flush()
sys.stdin.read()
"""


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Files, Path]:
    """An implementation and an empty directory in it."""
    if request.param == "real":
        return DiskFiles(), tmp_path
    disk = SimDisk()
    disk.make_directory(Path("/data/shard"))
    return disk, Path("/data/shard")


def create(files: Files, path: Path, content: bytes) -> None:
    files.open(path, create=True).write(content, 0)


def content_of(files: Files, path: Path) -> bytes:
    file = files.open_read(path)
    return file.read(file.size(), 0)


def test_what_was_written_at_an_offset_is_read_back(place: tuple[Files, Path]) -> None:
    files, root = place
    file = files.open(root / "a", create=True)

    file.write(b"hello", 0)
    file.write(memoryview(b"xxLLxx")[2:4], 2)
    file.sync()

    assert file.size() == 5
    assert file.read(5, 0) == b"heLLo"
    assert content_of(files, root / "a") == b"heLLo"
    assert files.open(root / "a").read(2, 3) == b"Lo"


def test_a_read_is_short_only_at_the_end_of_the_file(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"0123456789")
    file = files.open_read(root / "a")

    assert file.read(4, 6) == b"6789"
    assert file.read(100, 6) == b"6789"
    assert file.read(100, 10) == b""
    assert file.read(100, 50) == b""
    assert file.read(0, 3) == b""


def test_a_write_past_the_end_leaves_zeros_between(place: tuple[Files, Path]) -> None:
    files, root = place
    file = files.open(root / "a", create=True)

    file.write(b"ab", 0)
    file.write(b"cd", 5)
    file.write(b"", 100)

    assert content_of(files, root / "a") == b"ab\0\0\0cd"


def test_truncate_cuts_and_extends_with_zeros(place: tuple[Files, Path]) -> None:
    """What was cut off must not come back when the file grows again."""
    files, root = place
    file = files.open(root / "a", create=True)
    file.write(b"0123456789", 0)

    file.truncate(4)
    assert (file.size(), file.read(100, 0)) == (4, b"0123")

    file.truncate(7)
    assert file.read(100, 0) == b"0123\0\0\0"

    file.truncate(2)
    file.write(b"X", 5)
    assert file.read(100, 0) == b"01\0\0\0X"


def test_create_refuses_a_name_that_exists(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"first")

    with pytest.raises(FileExistsError):
        files.open(root / "a", create=True)

    assert content_of(files, root / "a") == b"first"


def test_a_missing_file_is_named_in_the_error(place: tuple[Files, Path]) -> None:
    files, root = place
    missing = root / "missing"

    for attempt in (
        lambda: files.open(missing),
        lambda: files.open_read(missing),
        lambda: files.map(missing),
        lambda: files.remove(missing),
        lambda: files.rename(missing, root / "b"),
        lambda: files.list(missing),
        lambda: files.sync_directory(missing),
        lambda: files.free_bytes(missing),
        lambda: files.open(missing / "a", create=True),
        lambda: files.lock(missing / "a"),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            attempt()
        assert str(missing) in str(caught.value)


def test_a_file_opened_for_reading_cannot_be_changed(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"kept")
    file = files.open_read(root / "a")

    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write(b"x", 0)
    with pytest.raises(OSError, match="Invalid argument"):
        file.truncate(0)

    assert file.read(4, 0) == b"kept"


def test_rename_replaces_the_target(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"old")
    create(files, root / "a.tmp", b"new")

    files.rename(root / "a.tmp", root / "a")

    assert content_of(files, root / "a") == b"new"
    assert files.list(root) == ["a"]


def test_a_file_goes_on_working_when_its_name_moves_or_goes(place: tuple[Files, Path]) -> None:
    """A reader in another thread must never be cut off by sealing or by retention."""
    files, root = place
    file = files.open(root / "a", create=True)
    file.write(b"one", 0)

    files.rename(root / "a", root / "b")
    file.write(b"two", 3)
    assert content_of(files, root / "b") == b"onetwo"

    files.remove(root / "b")
    file.write(b"three", 6)
    file.sync()
    assert file.read(100, 0) == b"onetwothree"
    assert files.list(root) == []


def test_a_replaced_file_stays_readable_through_its_handle(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"old")
    create(files, root / "b", b"new")
    old = files.open_read(root / "a")

    files.rename(root / "b", root / "a")

    assert old.read(3, 0) == b"old"
    assert content_of(files, root / "a") == b"new"


def test_a_removed_name_can_be_created_again_as_another_file(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"first")
    first = files.open_read(root / "a")

    files.remove(root / "a")
    create(files, root / "a", b"second")

    assert first.read(100, 0) == b"first"
    assert content_of(files, root / "a") == b"second"


def test_list_is_sorted_and_holds_directories_too(place: tuple[Files, Path]) -> None:
    files, root = place
    for name in ("b", "a", "c.tmp", "B"):
        create(files, root / name, b"")
    files.make_directory(root / "aa")

    assert files.list(root) == ["B", "a", "aa", "b", "c.tmp"]
    assert files.list(root / "aa") == []


def test_make_directory_makes_parents_and_accepts_what_is_there(
    place: tuple[Files, Path],
) -> None:
    files, root = place
    files.make_directory(root / "x" / "y")
    create(files, root / "x" / "y" / "a", b"")

    files.make_directory(root / "x" / "y")

    assert files.list(root / "x" / "y") == ["a"]
    with pytest.raises(FileExistsError):
        files.make_directory(root / "x" / "y" / "a")


def test_exists_knows_files_and_directories(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"")

    assert files.exists(root)
    assert files.exists(root / "a")
    assert not files.exists(root / "b")
    assert not files.exists(root / "a" / "b")


def test_directories_are_not_files(place: tuple[Files, Path]) -> None:
    files, root = place
    files.make_directory(root / "x")
    create(files, root / "a", b"")

    with pytest.raises(IsADirectoryError):
        files.open(root / "x")
    with pytest.raises(IsADirectoryError):
        files.remove(root / "x")
    with pytest.raises(IsADirectoryError):
        files.rename(root / "a", root / "x")
    with pytest.raises(NotADirectoryError):
        files.list(root / "a")


def test_a_map_is_read_only_and_outlives_the_name(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"mapped bytes")

    view = files.map(root / "a")
    files.remove(root / "a")

    assert view.readonly
    assert bytes(view) == b"mapped bytes"
    assert bytes(view[7:]) == b"bytes"
    with pytest.raises(TypeError):
        view[0] = 0


def test_an_empty_file_cannot_be_mapped(place: tuple[Files, Path]) -> None:
    files, root = place
    create(files, root / "a", b"")

    with pytest.raises(ValueError, match="empty"):
        files.map(root / "a")


def test_free_bytes_is_a_count(place: tuple[Files, Path]) -> None:
    files, root = place

    assert files.free_bytes(root) > 0


def test_a_lock_excludes_a_second_taker_until_it_is_released(place: tuple[Files, Path]) -> None:
    files, root = place
    held = files.lock(root / "LOCK")
    assert held is not None
    assert files.lock(root / "LOCK") is None
    other = files.lock(root / "OTHER")
    assert other is not None

    held.release()

    again = files.lock(root / "LOCK")
    assert again is not None
    again.release()
    other.release()
    assert files.list(root) == ["LOCK", "OTHER"]


def test_replace_file_writes_all_chunks_over_old_and_stale_files(
    place: tuple[Files, Path],
) -> None:
    files, root = place
    create(files, root / "a", b"old")
    create(files, root / "a.tmp", b"a longer file that some crash left behind")

    replace_file(files, root / "a", (b"new ", b"", b"bytes"))

    assert content_of(files, root / "a") == b"new bytes"
    assert files.list(root) == ["a"]


@pytest.mark.parametrize("old", [None, b"", b"old " * 20])
@pytest.mark.parametrize("stale", [None, b"stale" * 40])
def test_replace_file_leaves_old_or_new_whichever_operation_a_crash_follows(
    old: bytes | None, stale: bytes | None
) -> None:
    path, new = Path("/data/MANIFEST"), [b"new one" * 9, b"", b"!" * 50]
    disk = SimDisk(page_size=16, tear_writes=True)
    disk.make_directory(path.parent)
    if old is not None:
        disk.put(path, old)
    if stale is not None:
        disk.put(path.with_name("MANIFEST.tmp"), stale)
    outcomes: set[bytes | None] = set()

    def crash_here(operation: str) -> None:
        for policy in CrashPolicy:
            for seed in range(30 if policy is CrashPolicy.RANDOM else 1):
                where = f"after {operation!r}, {policy}, seed {seed}"
                survivor = disk.crash(policy, Random(seed))
                left = survivor.contents(path) if survivor.exists(path) else None
                assert left in (old, b"".join(new)), where
                outcomes.add(left)
                replace_file(survivor, path, new)
                assert survivor.crash(CrashPolicy.LOST).contents(path) == b"".join(new), where

    disk.after_operation = crash_here
    replace_file(disk, path, new)

    assert outcomes == {old, b"".join(new)}
    for seed in range(30):
        assert disk.crash(CrashPolicy.RANDOM, Random(seed)).contents(path) == b"".join(new)
    assert disk.crash(CrashPolicy.LOST).contents(path) == b"".join(new)


def test_replace_file_leaves_the_old_file_when_an_operation_fails() -> None:
    path = Path("/MANIFEST")
    for operation in ("create", "write", "sync", "rename"):
        disk = SimDisk()
        disk.put(path, b"old")
        disk.fail(operation, errno.EIO)

        with pytest.raises(OSError, match="Input/output error"):
            replace_file(disk, path, [b"new"])

        assert disk.contents(path) == b"old", operation
        replace_file(disk, path, [b"new"])
        assert disk.contents(path) == b"new", operation


@pytest.fixture
def lock_holder(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Another process that holds ``tmp_path / "LOCK"``."""
    with start_lock_holder(tmp_path / "LOCK") as process:
        assert answer(process) == "held"
        yield process
        process.kill()


def start_lock_holder(path: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", LOCK_HOLDER, str(path)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_lock_excludes_another_process(tmp_path: Path) -> None:
    held = DiskFiles().lock(tmp_path / "LOCK")
    assert held is not None

    with start_lock_holder(tmp_path / "LOCK") as process:
        assert answer(process) == "refused"

    held.release()
    with start_lock_holder(tmp_path / "LOCK") as process:
        assert answer(process) == "held"


def test_the_lock_of_a_killed_process_is_free(
    lock_holder: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    """No stale lock may keep a node from starting after a kill -9."""
    assert DiskFiles().lock(tmp_path / "LOCK") is None

    lock_holder.kill()
    lock_holder.wait()

    lock = DiskFiles().lock(tmp_path / "LOCK")
    assert lock is not None
    lock.release()


def test_a_descriptor_is_closed_with_the_last_reference_to_its_file(tmp_path: Path) -> None:
    file = DiskFiles().open(tmp_path / "a", create=True)
    assert isinstance(file, DiskFile)
    descriptor, second = file._descriptor, file
    os.fstat(descriptor)

    del file
    os.fstat(descriptor)
    del second

    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_refused_lock_leaves_no_descriptor_behind(tmp_path: Path) -> None:
    files = DiskFiles()
    held = files.lock(tmp_path / "LOCK")
    assert held is not None
    open_before = os.listdir("/proc/self/fd")

    for _ in range(5):
        assert files.lock(tmp_path / "LOCK") is None

    assert len(os.listdir("/proc/self/fd")) == len(open_before)
    held.release()


def test_short_writes_of_the_kernel_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal or the last free bytes make pwrite return early; the caller must not notice."""
    real_pwrite, sizes = os.pwrite, []

    def short_pwrite(descriptor: int, data: bytes | memoryview, offset: int) -> int:
        sizes.append(len(data))
        return real_pwrite(descriptor, memoryview(data)[:7], offset)

    monkeypatch.setattr(os, "pwrite", short_pwrite)
    file = DiskFiles().open(tmp_path / "a", create=True)
    data = bytes(range(100))

    file.write(data, 0)
    file.write(memoryview(data)[:20], 100)

    assert file.read(200, 0) == data + data[:20]
    assert sizes[:3] == [100, 93, 86]


def test_a_write_that_makes_no_progress_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the loop that completes short writes would never end."""
    monkeypatch.setattr(os, "pwrite", lambda _descriptor, _data, _offset: 0)
    file = DiskFiles().open(tmp_path / "a", create=True)

    with pytest.raises(OSError, match="no progress"):
        file.write(b"data", 0)


def test_short_reads_of_the_kernel_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pread = os.pread
    create(DiskFiles(), tmp_path / "a", bytes(range(50)))
    monkeypatch.setattr(
        os, "pread", lambda descriptor, size, at: real_pread(descriptor, min(size, 7), at)
    )

    file = DiskFiles().open_read(tmp_path / "a")

    assert file.read(50, 0) == bytes(range(50))
    assert file.read(100, 30) == bytes(range(30, 50))


def test_a_pipe_where_a_file_belongs_is_refused_and_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    files = DiskFiles()
    for act in (files.open, files.open_read, files.map):
        with pytest.raises(OSError, match="not a regular file"):
            act(path)


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    files = DiskFiles()
    before = os.umask(umask)
    try:
        create(files, tmp_path / "file", b"x")
        replace_file(files, tmp_path / "replaced", [b"x"])
    finally:
        os.umask(before)
    before = os.umask(0)
    try:
        files.make_directory(tmp_path / "directory")
        assert files.lock(tmp_path / "LOCK") is not None
        shared = DiskFiles(is_shared=True)
        create(shared, tmp_path / "export", b"x")
        shared.make_directory(tmp_path / "exports")
    finally:
        os.umask(before)
    assert {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {
        "file": 0o600, "replaced": 0o600, "directory": 0o700, "LOCK": 0o600,
        "export": 0o644, "exports": 0o777,
    }  # fmt: skip


def test_restrict_narrows_what_is_wider_and_nothing_behind_a_link(tmp_path: Path) -> None:
    files, data, elsewhere = DiskFiles(), tmp_path / "data", tmp_path / "elsewhere"
    (data / "shard" / "segs").mkdir(parents=True)
    for each, mode in (
        (data / "NODE", 0o644),
        (data / "shard" / "RAFT", 0o600),
        (elsewhere, 0o644),
    ):
        each.write_bytes(b"x")
        each.chmod(mode)
    (data / "link").symlink_to(elsewhere)
    for each, mode in ((data, 0o755), (data / "shard", 0o700), (data / "shard" / "segs", 0o2775)):
        each.chmod(mode)
    assert sorted(files.restrict(data)) == [data, data / "NODE", data / "shard" / "segs"]
    assert files.restrict(data) == []
    assert {each.stat().st_mode & 0o7777 for each in (data, data / "shard" / "segs")} == {0o700}
    assert (data / "NODE").stat().st_mode & 0o777 == 0o600
    assert elsewhere.stat().st_mode & 0o777 == 0o644
