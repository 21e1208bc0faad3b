"""The log in a directory: what a job may see of it, whatever happens to the files meanwhile."""

import pickle
import shutil
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from onelog.errors import DataLoss, FailedPrecondition, InvalidArgument, NotFound, OutOfRange
from onelog.projections import limits
from onelog.spark import directory as directory_module
from onelog.spark.columns.log import VIEW
from onelog.spark.columns.selection import Selection
from onelog.spark.columns.view import Request
from onelog.spark.directory import BATCH_ENTRIES_MAX, DirectoryOrigin
from onelog.spark.origin import Range, Split
from onelog.ual.files import DiskFiles, File
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE, Footer
from onelog.ual.segments.sealing import compact_segment
from tests.spark.shard_dirs import LARGE, Row, Shard, read_all, rows_of
from tests.ual.shards import drop_before, make_directory

EVERYTHING = Selection()
SMALL_SPLIT = 700


def origin_of(shard: Shard) -> DirectoryOrigin:
    return DirectoryOrigin(str(shard.path))


def range_of(origin: DirectoryOrigin) -> Range:
    (part,) = origin.cut().shards
    return Range(part.shard, part.first_index, part.last_index)


def sealed_files(shard: Shard) -> list[Path]:
    return sorted(shard.segments.glob("*.flseg"))


def shard_with_tail(path: Path, seed: int = 1) -> Shard:
    """Return a shard with sealed files and a tail that a snapshot covers."""
    shard = Shard(path, seed)
    shard.write(60)
    shard.seal()
    shard.write(30)
    shard.live.snapshot()
    assert 0 < shard.sealed_index < shard.last_index
    return shard


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_read_as_they_were_applied(tmp_path: Path, seed: int) -> None:
    shard = Shard(tmp_path / "data", seed)
    for step in range(6):
        shard.write(shard.rng.randint(5, 40))
        if shard.rng.random() < 0.6:
            shard.seal()
        if shard.rng.random() < 0.6 or step == 5:
            shard.live.snapshot()
        origin = origin_of(shard)
        last_index = range_of(origin).last_index
        assert last_index >= shard.sealed_index
        expected = shard.expected(last_index)
        for size in (SMALL_SPLIT, 3_000, 64 << 20):
            assert read_all(origin, size_bytes=size) == expected
    # Refused ones were among them, in sealed files and in the tail.
    assert len(expected) < last_index


def test_a_shard_without_a_snapshot_ends_at_its_last_sealed_entry(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "data")
    shard.write(60)
    origin = origin_of(shard)
    assert range_of(origin) == Range(0, 1, 0)
    assert origin.splits([range_of(origin)], EVERYTHING) == []
    shard.seal()
    assert range_of(origin).last_index == shard.sealed_index > 0
    assert "a running server may have more" in origin.cut().note


def test_a_snapshot_that_is_damaged_tells_nothing_and_the_cut_is_earlier(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    (snapshot,) = shard.live.paths.snapshots.glob("*.fsnap")
    data = bytearray(snapshot.read_bytes())
    data[-40] ^= 1  # in the notes, which come last
    snapshot.write_bytes(data)
    assert range_of(origin_of(shard)).last_index == shard.sealed_index


def test_voids_are_in_sealed_files_and_in_the_tail_and_nobody_sees_them(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    log = shard.live.log
    in_tail = log.segments.notes.voids(shard.sealed_index + 1, shard.last_index)
    sealed_voids = [getattr(part, "voids", np.empty((0, 2))) for part in log.segments.segments]
    assert len(in_tail)
    assert sum(map(len, sealed_voids))
    seen = {row[0] for row in read_all(origin_of(shard))}
    for first, last in [*in_tail.tolist(), *np.concatenate(sealed_voids).tolist()]:
        assert not seen & set(range(int(first), int(last) + 1))


def test_entries_that_were_never_committed_are_not_seen(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    expected = shard.expected(shard.last_index)
    committed = shard.last_index
    # A leader writes on, and is deposed before anybody else has it; another one's entries follow.
    for _ in range(8):
        shard.live.write(shard.work.group(shard.last_index + 1))
    shard.live.log.sync()
    assert read_all(origin_of(shard)) == expected
    shard.live.log.truncate_from(committed + 1)
    for _ in range(8):
        shard.live.write(shard.work.group(shard.last_index + 1), term=2)
    shard.live.log.sync()
    assert shard.last_index > committed
    assert read_all(origin_of(shard)) == expected


def test_a_torn_tail_is_not_seen_and_does_no_harm(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    expected = shard.expected(shard.last_index)
    (active,) = sorted(shard.segments.glob("*.flseg.tmp"))[-1:]
    for tail in (b"\0" * 39, b"\xff" * 100, active.read_bytes()[64:90]):
        whole = active.read_bytes()
        active.write_bytes(whole + tail)
        assert read_all(origin_of(shard)) == expected
        active.write_bytes(whole)


def test_a_flipped_bit_in_any_region_of_a_sealed_file_is_refused(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    path = sealed_files(shard)[1]
    whole = path.read_bytes()
    footer = Footer.decode("", whole[-FOOTER_SIZE:], 0)
    regions = {"header": (0, HEADER_SIZE), "entries": (HEADER_SIZE, footer.entries_end)}
    for name in ("offsets", "sparse", "time", "streams", "voids"):
        span = getattr(footer, name)
        regions[name] = (span.position, span.end)
    regions["footer"] = (len(whole) - FOOTER_SIZE, len(whole))
    origin, before = origin_of(shard), shard.expected(shard.last_index)
    assert read_all(origin) == before
    tried = 0
    for name, (start, end) in regions.items():
        for at in shard.rng.sample(range(start, end), min(12, end - start)):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << shard.rng.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(DataLoss) as refused:
                read_all(origin)
            assert path.name in str(refused.value), (name, at)
            tried += 1
    assert tried > 60
    path.write_bytes(whole)
    assert read_all(origin) == before


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    """A shard whose first segment is large enough to be read in parts."""
    shard = Shard(tmp_path_factory.mktemp("large") / "data", 7, LARGE)
    shard.write_much(4_000)
    shard.seal()
    return shard


def test_a_large_file_is_cut_where_groups_end(large: Shard) -> None:
    origin = origin_of(large)
    everything = range_of(origin)
    ends = {
        entry.index
        for entry in large.live.log.segments.scan(1, everything.last_index)
        if entry.group_left == 0
    }
    expected = large.expected(everything.last_index)
    counts = []
    for size in (30_000, 100_000):
        splits = origin.splits([everything], EVERYTHING, size)
        counts.append(len(splits))
        assert {split.last_index for split in splits} <= ends
        assert [split.first_index for split in splits[1:]] == [
            split.last_index + 1 for split in splits[:-1]
        ]
        assert read_all(origin, size_bytes=size) == expected
    assert counts[0] > counts[1] > 2


def test_a_small_part_of_a_damaged_file_is_refused_where_it_is_damaged(large: Shard) -> None:
    path = sealed_files(large)[0]
    whole = path.read_bytes()
    origin, before = origin_of(large), set(large.expected(large.sealed_index))
    splits = origin.splits([range_of(origin)], EVERYTHING, 10_000)
    assert len(splits) > 8
    refused = 0
    try:
        for at in large.rng.sample(range(HEADER_SIZE, len(whole) - FOOTER_SIZE), 12):
            damaged = bytearray(whole)
            damaged[at] ^= 4
            path.write_bytes(damaged)
            seen: list[Row] = []
            for split in splits:
                try:
                    seen += rows_of(origin.blocks(split, EVERYTHING))
                except DataLoss:
                    refused += 1
            assert before >= set(seen)
            assert seen
    finally:
        path.write_bytes(whole)
    assert refused >= 8


def test_a_flipped_bit_in_the_tail_is_refused_up_to_the_cut(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin, expected = origin_of(shard), shard.expected(shard.last_index)
    path = sorted(shard.segments.glob("*.flseg.tmp"))[-1]
    whole = path.read_bytes()
    for at in range(0, len(whole), 29):
        if 32 <= at < 60:
            continue  # the summary, which means nothing in an unsealed file
        damaged = bytearray(whole)
        damaged[at] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(DataLoss):
            read_all(origin)
    path.write_bytes(whole)
    assert read_all(origin) == expected


def test_what_was_sealed_since_the_plan_is_read_under_its_new_name(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin, expected = origin_of(shard), shard.expected(shard.last_index)
    splits = origin.splits([range_of(origin)], EVERYTHING, SMALL_SPLIT)
    shard.write(40)
    shard.seal()
    shard.live.snapshot()
    shard.write(40)
    shard.live.snapshot()
    assert [
        row for split in splits for row in rows_of(origin.blocks(split, EVERYTHING))
    ] == expected


def test_a_file_that_is_sealed_while_it_is_read_is_read_to_its_end(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin, expected = origin_of(shard), shard.expected(shard.last_index)
    seen: list[Row] = []
    for split in origin.splits([range_of(origin)], EVERYTHING):
        for block in origin.blocks(split, EVERYTHING):
            seen += rows_of([block])
            shard.write(10)
            shard.seal()
            shard.live.snapshot()
    assert seen == expected


def test_what_was_compacted_since_the_plan_is_read_without_what_is_gone(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin, expected = origin_of(shard), shard.expected(shard.last_index)
    splits = origin.splits([range_of(origin)], EVERYTHING)
    path = sealed_files(shard)[1]
    first = int(path.name[:10])
    kept = [first, first + 3, first + 4]
    compact_segment(DiskFiles(), path, np.array(kept, np.uint64))
    after = int(sealed_files(shard)[2].name[:10])
    left = [row for row in expected if not first <= row[0] < after or row[0] in kept]
    seen = [row for split in splits for row in rows_of(origin.blocks(split, EVERYTHING))]
    assert seen == left
    assert read_all(origin) == read_all(origin, size_bytes=1) == left


def test_what_was_dropped_since_the_plan_is_an_error_with_the_range(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin = origin_of(shard)
    everything = range_of(origin)
    splits = origin.splits([everything], EVERYTHING, SMALL_SPLIT)
    first_kept = int(sealed_files(shard)[2].name[:10])
    drop_before(shard.live.log, first_kept)
    with pytest.raises(OutOfRange) as refused:
        rows_of(origin.blocks(splits[0], EVERYTHING))
    assert refused.value.reason == "COMPACTED"
    assert f"entries 1 to {splits[0].last_index} of shard 0 are not kept" in str(refused.value)
    assert refused.value.metadata == {"first_index": str(first_kept)}
    with pytest.raises(OutOfRange, match=f"entries 1 to {first_kept - 1} of shard 0"):
        origin.splits([everything], EVERYTHING)
    assert read_all(origin) == shard.expected(shard.last_index)


def test_a_file_that_is_missing_is_an_error_with_the_range(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin = origin_of(shard)
    splits = origin.splits([range_of(origin)], EVERYTHING)
    path, after = sealed_files(shard)[1:3]
    first, last = int(path.name[:10]), int(after.name[:10]) - 1
    path.unlink()
    with pytest.raises(DataLoss, match=f"no file holds entries {first} to {last}"):
        origin.splits([range_of(origin)], EVERYTHING)
    with pytest.raises(DataLoss, match="MISSING_SEGMENT"):
        rows_of(origin.blocks(splits[0], EVERYTHING))


def test_a_file_of_another_shard_is_refused(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    copy = tmp_path / "copy" / "00003"
    copy.mkdir(parents=True)
    for path in sealed_files(shard):
        shutil.copy(path, copy)
    with pytest.raises(DataLoss, match="belongs to shard 0, not to 3"):
        DirectoryOrigin(str(tmp_path / "copy")).cut()


def test_a_directory_of_another_cluster_is_refused_after_the_cut(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin = origin_of(shard)
    everything = range_of(origin)
    travelled: DirectoryOrigin = pickle.loads(pickle.dumps(origin))
    shutil.rmtree(shard.path)
    make_directory(DiskFiles(), shard.path, cluster_id=UUID(int=9)).close()
    for each in (origin, travelled):
        with pytest.raises(FailedPrecondition) as refused:
            each.splits([everything], EVERYTHING)
        assert refused.value.reason == "OTHER_CLUSTER"
        with pytest.raises(FailedPrecondition, match="OTHER_CLUSTER"):
            rows_of(each.blocks(Split(0, 1, 5, 0), EVERYTHING))


def test_what_is_no_data_directory_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    empty = tmp_path / "empty"
    empty.mkdir()
    for path, said in (
        (tmp_path / "nothing", "does not exist"),
        (file, "is a file"),
        (empty, "no data directory"),
    ):
        with pytest.raises(InvalidArgument, match=said) as refused:
            DirectoryOrigin(str(path)).cut()
        assert refused.value.reason == "NOT_A_DATA_DIRECTORY"


def test_a_directory_that_is_gone_during_the_job_is_said(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin = origin_of(shard)
    splits = origin.splits([range_of(origin)], EVERYTHING)
    shutil.rmtree(shard.path)
    with pytest.raises(InvalidArgument, match="does not exist"):
        rows_of(origin.blocks(splits[0], EVERYTHING))


def test_a_copy_of_segments_is_read_without_anything_else(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    expected = shard.expected(shard.sealed_index)
    for copy in (tmp_path / "bare", tmp_path / "shards" / "00000", tmp_path / "root/00000/segs"):
        copy.mkdir(parents=True)
        for path in sealed_files(shard):
            shutil.copy(path, copy)
    for name in ("bare", "shards", "root"):
        origin = DirectoryOrigin(str(tmp_path / name))
        assert origin.cut().cluster_id == ""
        assert read_all(origin) == expected, name


def test_the_directory_of_a_node_with_workers_is_read_whole(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "node" / "worker-0")
    system = tmp_path / "node" / "worker-1"
    shutil.copytree(shard.path, system)
    shutil.rmtree(system / "00000" / "segs")
    (system / "00000" / "segs").mkdir()
    (tmp_path / "node" / "LOCK").touch()
    origin = DirectoryOrigin(str(tmp_path / "node"))
    assert read_all(origin) == shard.expected(shard.last_index)
    (tmp_path / "node" / "worker-1").rename(tmp_path / "node" / "worker-2")
    with pytest.raises(FailedPrecondition, match="lacks a worker's directory"):
        origin.cut()


def test_a_shard_that_is_not_there_is_refused(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data")
    with pytest.raises(NotFound, match="SHARD_UNKNOWN: shard 4 is not in"):
        origin_of(shard).cut([4])


def test_splits_hold_whole_groups_and_every_entry_keeps_its_transaction(tmp_path: Path) -> None:
    shard = shard_with_tail(tmp_path / "data", seed=3)
    origin = origin_of(shard)
    everything = range_of(origin)

    def transactions(splits: list[Split]) -> dict[int, int | None]:
        request = Request(EVERYTHING, frozenset(("index", "transaction")))
        batches = [
            batch
            for split in splits
            for block in origin.blocks(split, EVERYTHING)
            for batch in VIEW.batches(block, request)
        ]
        return {row["index"]: row["transaction"] for each in batches for row in each.to_pylist()}

    whole = transactions(origin.splits([everything], EVERYTHING))
    inner = [index for index, head in whole.items() if head is not None and head < index]
    assert len(inner) > 5
    ends = {entry.index for entry in shard.live.log.segments.scan(1, everything.last_index)
            if entry.group_left == 0}  # fmt: skip
    splits = origin.splits([everything], EVERYTHING, 1)
    assert {split.last_index for split in splits} <= ends
    assert transactions(splits) == whole
    # Also where a reader begins in the midst of one.
    for index in inner:
        begun = transactions([Split(0, index, everything.last_index, 0)])
        assert begun == {at: head for at, head in whole.items() if at >= index}
    assert BATCH_ENTRIES_MAX == limits.BATCH_ENTRIES_MAX


def test_planning_reads_headers_and_footers_and_prunes_by_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = shard_with_tail(tmp_path / "data")
    origin = origin_of(shard)
    everything = range_of(origin)
    read: dict[str, int] = {}

    class Counting(DiskFiles):
        def open_read(self, path: Path) -> File:
            file = super().open_read(path)

            class Counted:
                def read(self, size: int, offset: int) -> bytes:
                    read[path.name] = read.get(path.name, 0) + size
                    return file.read(size, offset)

                def __getattr__(self, name: str) -> object:
                    return getattr(file, name)

            return Counted()  # type: ignore[return-value]

    monkeypatch.setattr(directory_module, "DiskFiles", Counting)
    origin.splits([everything], EVERYTHING)
    sealed = [size for name, size in read.items() if name.endswith(".flseg")]
    assert sealed == [HEADER_SIZE + FOOTER_SIZE] * len(sealed_files(shard))
    # By time: each file has its seconds.
    middle = shard.expected(shard.last_index)[len(sealed) * 20][3]
    late = Selection(from_time_ns=middle)
    early = Selection(to_time_ns=middle)
    for selection in (late, early):
        splits = origin.splits([everything], selection, 1)
        assert len(splits) < len(origin.splits([everything], EVERYTHING, 1))
        wanted = [
            row
            for row in shard.expected(shard.last_index)
            if selection.from_time_ns <= row[3] <= selection.to_time_ns
        ]
        assert [row for split in splits for row in rows_of(origin.blocks(split, selection))] == (
            wanted
        )
    # By owner: nobody wrote points.
    points = Selection(owners=frozenset((3,)))
    assert all(
        split.first_index > shard.sealed_index for split in origin.splits([everything], points, 1)
    )
