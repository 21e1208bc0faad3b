"""MANIFEST: validated both ways, damaged never, old or new after a crash."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import DiskFiles
from onelog.ual.json_file import U64_MAX, encode_json_file
from onelog.ual.manifest import (
    Checkpoint,
    ColdRange,
    Manifest,
    SnapshotRecord,
    load,
    save,
)
from tests.simulation.disk import CrashPolicy, SimDisk

EMPTY = Manifest(Checkpoint(1, 1, 0, 0, 0, 0, "", 0))
SAMPLE = Manifest(
    Checkpoint(
        first_index=101,
        first_proposal=11,
        end_index=205,
        end_proposal=30,
        durable_index=200,
        commit_index=300,
        active_file="0000000180.flseg.tmp",
        generation=2,
    ),
    cut_from_index=206,
    snapshots=(
        SnapshotRecord("0000000100.fsnap", 100, 3, 4096, "ab" * 32),
        SnapshotRecord("0000000150.fsnap", 150, 3, 8192, "cd" * 32),
    ),
    cold=(
        ColdRange(1, 60, "cluster/00000/1-60.flseg", 1000, 0xFFFFFFFF),
        ColdRange(61, 100, "cluster/00000/61-100.flseg", 900, 0),
    ),
)


PATH = Path("/MANIFEST")


def encode(manifest: Manifest) -> bytes:
    disk = SimDisk()
    save(disk, PATH, manifest)
    return disk.contents(PATH)


def decode(data: bytes) -> Manifest | None:
    disk = SimDisk()
    disk.put(PATH, data)
    return load(disk, PATH)


def changed(**changes: Any) -> Manifest:
    return replace(SAMPLE, checkpoint=replace(SAMPLE.checkpoint, **changes))


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    first_proposal = draw(st.integers(1, 1 << 40))
    first_index = draw(st.integers(first_proposal, 1 << 50))
    proposals = draw(st.integers(0, 1 << 20))
    entries = draw(st.integers(proposals, proposals * 1000))
    end_index = first_index + entries - 1
    checkpoint = Checkpoint(
        first_index,
        first_proposal,
        end_index,
        first_proposal + proposals - 1,
        draw(st.integers(first_index - 1, end_index)),
        draw(st.integers(0, U64_MAX)),
        draw(st.sampled_from(["", "0000000001.flseg.tmp", "12345678901.flseg.tmp"])),
        draw(st.integers(0, U64_MAX)),
    )
    indexes = sorted(draw(st.sets(st.integers(1, U64_MAX), max_size=3)))
    bounds = sorted(draw(st.sets(st.integers(1, U64_MAX), max_size=6)))
    return Manifest(
        checkpoint,
        draw(st.none() | st.integers(end_index + 1, U64_MAX)),
        tuple(SnapshotRecord(f"{index}.fsnap", index, 7, 1, "00ff") for index in indexes),
        tuple(
            ColdRange(first, last, f"a/{first}", 5, draw(st.integers(0, (1 << 32) - 1)))
            for first, last in zip(bounds[::2], bounds[1::2], strict=False)
        ),
    )


@settings(max_examples=50)
@given(manifests())
def test_what_was_encoded_is_decoded(manifest: Manifest) -> None:
    assert decode(encode(manifest)) == manifest


def test_the_bytes_of_a_manifest_are_as_documented() -> None:
    """The format is on people's disks: this literal only ever gets a sibling."""
    assert encode(EMPTY).decode() == (
        '{\n  "checkpoint": {\n    "active_file": "",\n    "commit_index": 0,\n'
        '    "durable_index": 0,\n    "end_index": 0,\n    "end_proposal": 0,\n'
        '    "first_index": 1,\n    "first_proposal": 1,\n    "generation": 0\n  },\n'
        '  "cold": [],\n  "crc32c": "440a48a9",\n  "cut_from_index": null,\n'
        '  "snapshots": [],\n  "version": 1\n}\n'
    )


def test_every_flipped_bit_is_found() -> None:
    data = encode(SAMPLE)

    for position in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[position >> 3] ^= 1 << (position & 7)
        with pytest.raises(CorruptFile):
            decode(bytes(damaged))


def test_a_newer_manifest_asks_for_an_upgrade() -> None:
    data = encode_json_file({**asdict(SAMPLE), "version": 3})

    with pytest.raises(UnknownVersion, match="upgrade"):
        decode(data)


snapshot, cold = SAMPLE.snapshots[0], SAMPLE.cold[0]


@pytest.mark.parametrize(
    ("manifest", "rule"),
    [
        (changed(first_index=0), "first_index is 0"),
        (changed(first_proposal=0), "first_proposal is 0"),
        (changed(first_proposal=102), "first_proposal 102 above first_index 101"),
        (changed(first_index=207), "end_index 205 below first_index 207 - 1"),
        (changed(end_proposal=9), "end_proposal 9 below first_proposal 11 - 1"),
        (changed(end_proposal=10), "0 proposals in 105 entries"),
        (changed(end_proposal=116), "106 proposals in 105 entries"),
        (changed(durable_index=206), "durable_index 206 above end_index 205"),
        (changed(durable_index=99), "durable_index 99 below first_index 101 - 1"),
        (changed(durable_index=True), "durable_index is True, not an integer"),
        (changed(commit_index=-1), "commit_index is -1"),
        (changed(commit_index=1 << 64), "commit_index is 18446744073709551616"),
        (changed(generation=-1), "generation is -1"),
        (changed(active_file="../0000000180.flseg.tmp"), "active_file"),
        (changed(active_file="0000000180.flseg"), "active_file"),
        (changed(active_file="180.flseg.tmp"), "active_file"),
        (changed(active_file="00000000180.flseg.tmp"), "active_file"),
        (replace(SAMPLE, cut_from_index=205), "cut_from_index 205 not above end_index 205"),
        (replace(SAMPLE, cut_from_index=0), "cut_from_index is 0"),
        (replace(SAMPLE, snapshots=SAMPLE.snapshots[::-1]), r"snapshots\[1\].index 100 after 150"),
        (replace(SAMPLE, snapshots=(snapshot, snapshot)), r"snapshots\[1\].index 100 after 100"),
        (
            replace(SAMPLE, snapshots=(snapshot, replace(SAMPLE.snapshots[1], term=2))),
            r"snapshots\[1\].term 2 after 3",
        ),
        (replace(SAMPLE, snapshots=(replace(snapshot, file="../x"),)), "not a plain file name"),
        (replace(SAMPLE, snapshots=(replace(snapshot, file=".x"),)), "not a plain file name"),
        (replace(SAMPLE, snapshots=(replace(snapshot, file=""),)), "file has 0 characters"),
        (replace(SAMPLE, snapshots=(replace(snapshot, state_hash="AB"),)), "lowercase hex"),
        (replace(SAMPLE, snapshots=(replace(snapshot, size=0),)), "size is 0"),
        (replace(SAMPLE, snapshots=(snapshot,) * 1001), "1001 items, limit 1000"),
        (replace(SAMPLE, cold=SAMPLE.cold[::-1]), r"cold\[1\].first_index 1 after 100"),
        (
            replace(SAMPLE, cold=(cold, replace(SAMPLE.cold[1], first_index=60))),
            r"cold\[1\].first_index 60 after 60",
        ),
        (replace(SAMPLE, cold=(replace(cold, last_index=0),)), "last_index is 0"),
        (
            replace(SAMPLE, cold=(replace(cold, first_index=9, last_index=8),)),
            r"cold\[0\].last_index 8 below 9",
        ),
        (replace(SAMPLE, cold=(replace(cold, object="a/../b"),)), "not a plain object name"),
        (replace(SAMPLE, cold=(replace(cold, object="/a"),)), "not a plain object name"),
        (replace(SAMPLE, cold=(replace(cold, crc32c=1 << 32),)), "crc32c is 4294967296"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_manifest_that_breaks_a_rule_is_neither_read_nor_written(
    manifest: Manifest, rule: str
) -> None:
    """Read: somebody's bytes, so an error with a name. Written: our mistake, so an assertion."""
    data = encode_json_file({**asdict(manifest), "version": 2})

    with pytest.raises(CorruptFile, match=rule):
        decode(data)
    with pytest.raises(AssertionError, match=rule):
        encode(manifest)


def test_a_missing_or_unknown_field_is_refused() -> None:
    fields = json.loads(json.dumps(asdict(SAMPLE)))
    for name in ("checkpoint", "cut_from_index", "snapshots", "cold"):
        left = {key: value for key, value in fields.items() if key != name}
        with pytest.raises(CorruptFile, match=f"field {name} missing"):
            decode(encode_json_file({**left, "version": 2}))
    with pytest.raises(CorruptFile, match="field colour unknown"):
        decode(encode_json_file({**fields, "version": 2, "colour": 1}))
    del fields["checkpoint"]["generation"]
    with pytest.raises(CorruptFile, match=r"field checkpoint\.generation missing"):
        decode(encode_json_file({**fields, "version": 2}))


def test_a_commit_may_be_known_before_its_entries() -> None:
    manifest = changed(commit_index=1_000_000)

    assert decode(encode(manifest)) == manifest


def test_a_shard_without_a_manifest_has_none(tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.tmp").write_bytes(b"left by a crash")

    assert load(DiskFiles(), tmp_path / "MANIFEST") is None


def test_a_saved_manifest_is_loaded(tmp_path: Path) -> None:
    files, path = DiskFiles(), tmp_path / "MANIFEST"

    save(files, path, EMPTY)
    save(files, path, SAMPLE)

    assert load(files, path) == SAMPLE
    assert load(files, path, durable=False) == SAMPLE


def test_a_crash_anywhere_leaves_the_old_manifest_or_the_new() -> None:
    """And one that was loaded after the crash is not lost by a second one."""
    path = Path("/shard/MANIFEST")
    disk = SimDisk(tear_writes=True)
    disk.make_directory(path.parent)
    versions = [
        replace(EMPTY, checkpoint=replace(EMPTY.checkpoint, generation=n)) for n in range(3)
    ]
    saved, crashes = 0, 0

    def crash_here(operation: str) -> None:
        nonlocal crashes
        for policy in CrashPolicy:
            for seed in range(20 if policy is CrashPolicy.RANDOM else 1):
                left = disk.crash(policy, Random(seed))
                found = load(left, path)
                generation = -1 if found is None else found.checkpoint.generation
                assert generation in (saved - 1, saved), (operation, policy, seed)
                again = load(left.crash(CrashPolicy.LOST), path)
                assert again == found, (operation, policy, seed)
                crashes += 1

    disk.after_operation = crash_here
    for manifest in versions:
        save(disk, path, manifest)
        saved += 1
        disk.after_operation = None
        assert load(disk.crash(CrashPolicy.LOST), path) == manifest
        disk.after_operation = crash_here
    assert crashes > 3 * 5 * 22
