"""The state of a directory without a server: rebuilt at any index, saved, and proved."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onelog.projections.kv.commands import Increment, encode_command
from onelog.projections.kv.reads import KeyValue
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import encode_batch
from onelog.snapshot.errors import NoSnapshot
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.offline import (
    LastRecords,
    choose_shards,
    make_snapshot,
    read_key,
    rebuild_state,
)
from onelog.snapshot.progress import Phase
from onelog.snapshot.proof import Verdict, prove_shard
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import hash_text, write_state
from onelog.ual.directory import DataDirectory
from onelog.ual.errors import (
    CorruptFile,
    DirectoryError,
    DirectoryInUse,
    IndexInFuture,
    MissingSegment,
)
from onelog.ual.manifest import load as load_manifest
from onelog.ual.manifest import save as save_manifest
from onelog.ual.offline.reader import ReadOnlyFiles
from onelog.ual.segments.notes import ApplyNotes, SegmentNotes
from onelog.ual.segments.sealed import SealedSegment
from onelog.ual.segments.sealing import compact_segment
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.snapshot.live import DATA, SMALL, LiveShard, Work, put
from tests.ual.shards import drop_before, seal_closed


def lived(seed: int = 1, groups: int = 40, snapshot_every: int = 12) -> LiveShard[Projections]:
    live = LiveShard(SimDisk(), build_projections)
    work = Work(seed)
    for number in range(1, groups + 1):
        live.do(work.group(live.log.last_index + 1))
        seal_closed(live.log)
        if number % snapshot_every == 0:
            live.snapshot()
    live.log.checkpoint()
    return live


def value_at(live: LiveShard[Projections], key: bytes, index: int) -> bytes | None:
    found = read_key(rebuild_state(live.files, DATA, 0, index=index), "default", key)
    return None if found is None else found.value


def test_the_whole_state_is_rebuilt_from_the_newest_snapshot() -> None:
    live = lived()
    steps: list[Phase] = []
    rebuilt = rebuild_state(
        ReadOnlyFiles(live.files), DATA, 0, progress=lambda phase, *_: steps.append(phase)
    )
    newest = live.store.newest
    assert newest is not None
    assert rebuilt.state_hash == live.state_hash
    assert (rebuilt.index, rebuilt.base_index) == (live.log.applied_index, newest.index)
    assert rebuilt.entry_count == live.log.applied_index - newest.index
    assert rebuilt.counts["keys"] == live.state.router.counts()["keys"]
    assert set(steps) == {Phase.VERIFY, Phase.LOAD, Phase.REPLAY}
    rebuilt.projections.router.check()


def test_the_state_at_every_index_is_what_was_applied_then() -> None:
    """Whichever snapshot it starts from, and inside of groups too."""
    live = lived(2, groups=30, snapshot_every=9)
    entries = list(live.log.segments.scan(1, live.log.last_index))
    for target in range(1, len(entries) + 1, 5):
        expected = build_projections(ApplyNotes()).router
        for entry in entries[:target]:
            expected.apply(entry)
        rebuilt = rebuild_state(live.files, DATA, 0, index=target)
        if expected.in_batch:
            assert rebuilt.state_hash is None
        else:
            assert rebuilt.state_hash == hash_text(expected)
        assert rebuilt.projections.router.applied_index == target


def test_a_key_is_what_it_was_even_in_the_midst_of_a_group() -> None:
    live = LiveShard(SimDisk(), build_projections)
    live.do([put(b"k", b"one"), put(b"k", b"two"), put(b"other", b"x"), put(b"k", b"three")])
    live.do(encode_batch([put(b"k", b"four"), put(b"l", b"four")], (), "default"))
    live.do([encode_command(Increment(b"n", 5), "default")])
    live.log.checkpoint()
    values = [value_at(live, b"k", index) for index in range(1, 9)]
    # A batch is there when its last entry is; before, nothing of it.
    assert values == [b"one", b"two", b"two", b"three", b"three", b"three", b"four", b"four"]
    assert value_at(live, b"n", 7) is None
    found = read_key(rebuild_state(live.files, DATA, 0), "default", b"n")
    assert found == KeyValue(b"n", b"5", 8)
    assert read_key(rebuild_state(live.files, DATA, 0), "nowhere", b"n") is None


def test_entries_that_are_not_known_to_be_committed_are_applied_only_if_they_are_named() -> None:
    """A directory learns with the next sync what is committed; its server knows at once."""
    live = lived(groups=5)
    known = live.log.commit_index
    live.write([put(b"a", b"b")])
    live.log.sync()
    assert rebuild_state(live.files, DATA, 0).index == known
    live.commit()
    rebuilt = rebuild_state(live.files, DATA, 0, index=live.log.last_index)
    assert (rebuilt.index, rebuilt.committed_index) == (live.log.last_index, known)
    assert rebuilt.state_hash == live.state_hash
    with pytest.raises(IndexInFuture):
        rebuild_state(live.files, DATA, 0, index=live.log.last_index + 1)


def test_a_damaged_snapshot_is_said_and_does_not_matter() -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    live.files.flip(live.store.path(live.store.records[-1]), 1000)
    rebuilt = rebuild_state(live.files, DATA, 0)
    assert rebuilt.state_hash == live.state_hash
    assert rebuilt.base_index == live.store.records[0].index
    assert [at.record for at in rebuilt.rejected] == [live.store.records[-1]]


def test_the_past_below_a_shortened_log_is_refused() -> None:
    live = lived(snapshot_every=10)
    drop_before(live.log, live.store.keep_from_index)
    assert live.log.first_index > 1
    older = live.store.records[0]
    assert rebuild_state(live.files, DATA, 0, index=older.index).entry_count == 0
    with pytest.raises(NoSnapshot, match="ask for a later index"):
        rebuild_state(live.files, DATA, 0, index=older.index - 1)


def test_without_a_manifest_nothing_is_said_about_the_state() -> None:
    live = lived(groups=3)
    assert isinstance(live.files, SimDisk)
    live.files.flip(live.paths.manifest, 99)
    with pytest.raises(CorruptFile):
        rebuild_state(live.files, DATA, 0)


def test_a_log_that_lost_its_end_is_not_taken_for_a_shorter_one() -> None:
    live = lived(groups=40, snapshot_every=50)
    parts = live.log.segments.segments
    assert len(parts) > 2, "there is nothing to lose"
    for part in parts[-2:]:
        live.files.remove(part.path)
    for ask in (rebuild_state, prove_shard):
        with pytest.raises(MissingSegment):
            ask(live.files, DATA, 0)


def test_shards_are_chosen_from_what_there_is() -> None:
    live = lived(groups=1)
    assert choose_shards(live.files, DATA, None) == (0,)
    assert choose_shards(live.files, DATA, 0) == (0,)
    with pytest.raises(DirectoryError, match="shard 3"):
        choose_shards(live.files, DATA, 3)


# Snapshots


def test_a_snapshot_is_made_offline_and_used_by_the_next_start() -> None:
    live = lived(snapshot_every=15)
    live.log.close()
    made = make_snapshot(live.files, DATA, 0, 1_800_000_000, config=SMALL)
    assert made is not None
    assert made.is_new
    assert made.record.index == live.log.applied_index
    assert made.record.state_hash == live.state_hash
    assert made.counts["keys"] == live.state.router.counts()["keys"]

    again = make_snapshot(live.files, DATA, 0, 1_800_000_001, config=SMALL)
    assert again is not None
    assert (again.is_new, again.record) == (False, made.record)

    assert isinstance(live.files, SimDisk)
    started = LiveShard(live.files.crash(CrashPolicy.LOST), build_projections)
    assert started.recovered.snapshot is not None
    assert started.recovered.snapshot.record == made.record
    assert len(started.store.records) == 3, "only a server knows how many its settings keep"
    header = started.recovered.snapshot.header
    assert header.proposal == started.log.proposals.of_index(made.record.index)


def test_an_offline_snapshot_waits_for_nobody() -> None:
    live = lived(groups=2)
    with (
        DataDirectory.open_existing(live.files, DATA, lock=True),
        pytest.raises(DirectoryInUse, match="stop it first"),
    ):
        make_snapshot(live.files, DATA, 0, 1, config=SMALL)


def test_an_empty_shard_has_no_snapshot() -> None:
    live = LiveShard(SimDisk(), build_projections)
    live.log.close()
    assert make_snapshot(live.files, DATA, 0, 1, config=SMALL) is None


# Proofs


@pytest.mark.parametrize("seed", range(4))
def test_a_whole_log_proves_the_newest_snapshot_from_index_1(seed: int) -> None:
    live = lived(seed)
    proof = prove_shard(ReadOnlyFiles(live.files), DATA, 0)
    newest = live.store.records[-1]
    assert proof.verdict is Verdict.EQUAL
    assert (proof.index, proof.base_index, proof.entry_count) == (newest.index, 0, newest.index)
    assert proof.replayed_hash == proof.snapshot_hash == proof.manifest_hash == newest.state_hash


def test_a_shortened_log_proves_it_from_the_older_snapshot() -> None:
    live = lived(snapshot_every=10)
    drop_before(live.log, live.store.keep_from_index)
    older, newest = live.store.records
    proof = prove_shard(live.files, DATA, 0)
    assert proof.verdict is Verdict.EQUAL
    assert (proof.base_index, proof.entry_count) == (older.index, newest.index - older.index)


def test_a_compacted_log_is_not_whole() -> None:
    live = lived(snapshot_every=10)
    first = live.log.segments.segments[0]
    assert isinstance(first, SealedSegment)
    assert first.last_index < live.store.keep_from_index
    compact_segment(live.files, first.path, np.array([first.first_index], np.uint64))
    proof = prove_shard(live.files, DATA, 0)
    assert proof.verdict is Verdict.EQUAL
    assert proof.base_index == live.store.records[0].index


@pytest.mark.parametrize("which", [0, 1])
def test_a_recorded_hash_that_is_wrong_is_a_mismatch(which: int) -> None:
    live = lived()
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    records = list(manifest.snapshots)
    records[which] = replace(records[which], state_hash="ab" * 8)
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=tuple(records)))
    proof = prove_shard(live.files, DATA, 0)
    assert proof.verdict is Verdict.MISMATCH
    assert "rebuild this replica" in proof.message


def test_a_snapshot_of_another_state_is_a_mismatch() -> None:
    """Its checksums hold, its record fits, and yet it is not what the log leads to."""
    live, other = lived(5, snapshot_every=40), lived(5, snapshot_every=40)
    record = live.store.records[-1]
    other.do([put(b"one more", b"")])
    entry = other.log.read(other.log.last_index)
    # The same state but for one key, moved back to the same index: as a wrong replay would be.
    router = build_projections(ApplyNotes()).router
    entries = list(live.log.segments.scan(1, record.index))
    for old in entries[:-1]:
        router.apply(old)
    router.apply(entry._replace(index=record.index, timestamp_ns=entries[-1].timestamp_ns))
    header = SnapshotReader.open(live.files, live.store.path(record)).header
    notes = CoveredNotes(record.index + 1, live.log.notes.select(record.index + 1, record.index))
    created_s = int(record.file.split("-")[1].split(".")[0])
    written = write_state(
        live.files, live.paths.snapshots, header, created_s, router, notes, free_bytes_min=0
    )
    manifest = load_manifest(live.files, live.paths.manifest)
    assert manifest is not None
    changed = replace(record, size=written.header.size)
    save_manifest(live.files, live.paths.manifest, replace(manifest, snapshots=(changed,)))

    proof = prove_shard(live.files, DATA, 0)

    assert proof.verdict is Verdict.MISMATCH
    assert proof.replayed_hash == proof.manifest_hash == record.state_hash
    assert proof.snapshot_hash == hash_text(router)


@pytest.mark.parametrize("what", ["snapshot", "segment"])
def test_damage_is_a_verdict_of_its_own(what: str) -> None:
    live = lived()
    assert isinstance(live.files, SimDisk)
    path: Path = live.store.path(live.store.records[-1])
    if what == "segment":
        path = live.log.segments.segments[0].path
    live.files.flip(path, 8 * 120)
    proof = prove_shard(live.files, DATA, 0)
    assert proof.verdict is Verdict.DAMAGED
    assert path.name in proof.message


def test_without_a_snapshot_there_is_nothing_to_compare() -> None:
    live = lived(groups=3)
    assert prove_shard(live.files, DATA, 0).verdict is Verdict.NOTHING


def test_of_the_records_of_each_stream_only_the_last_are_kept() -> None:
    """A replay may pass millions of them."""
    records = LastRecords(2)
    noted = {7: np.array([1, 3, 5], np.uint64), 8: np.array([2], np.uint64)}
    records.add_covered(CoveredNotes(1, SegmentNotes(noted)))
    assert (records.of(7), records.of(8), records.of(9)) == ((3, 5), (2,), ())
    for index in (6, 8, 9):
        records.add_record(8, index)
    assert (records.of(7), records.of(8)) == ((3, 5), (8, 9))
    none = LastRecords()
    none.add_covered(CoveredNotes(1, SegmentNotes(noted)))
    none.add_record(7, 6)
    assert none.of(7) == ()
