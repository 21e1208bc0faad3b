"""RAFT: a vote that was given is never forgotten, whatever one crash or one rotten slot does."""

import errno
import struct
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.ual.errors import CorruptFile, DiskFull, LogFailed, UnknownVersion
from onelog.ual.files import DiskFiles, Files
from onelog.ual.hard_state import (
    FILE_SIZE,
    HINT_OFFSET,
    SLOT_SIZE,
    HardState,
    HardStateFile,
    Hint,
    inspect_hard_state,
)
from tests.simulation.disk import CrashPolicy, Operation, SimDisk

PATH = Path("/shard/RAFT")
ALICE, BOB = UUID(int=0xA11CE), UUID(int=0xB0B)
RANDOM_SEEDS = range(16)


def new_disk() -> SimDisk:
    # Pages so small that a crash tears a record: the term in the first, vote and crc in the next.
    disk = SimDisk(page_size=32, tear_writes=True)
    disk.make_directory(PATH.parent)
    return disk


def open_new(files: Files, path: Path = PATH) -> HardStateFile:
    """Open the file; make it first if there is none."""
    HardStateFile.create(files, path)
    return HardStateFile.open(files, path)


def saved_disk() -> SimDisk:
    """Return a disk whose RAFT file says term 7, vote for Alice, and has a hint."""
    disk = new_disk()
    file = open_new(disk)
    file.save(6, BOB)
    file.save(7, ALICE)
    file.save_hint(100, 90, 3)
    return disk


def loaded(disk: SimDisk) -> tuple[int, UUID | None]:
    file = HardStateFile.open(disk, PATH)
    return file.term, file.vote


def crashes(disk: SimDisk, seeds: range = RANDOM_SEEDS) -> list[tuple[str, SimDisk]]:
    """Return what each kind of crash may leave, with a label that repeats it."""
    random = CrashPolicy.RANDOM
    return [
        ("kept", disk.crash(CrashPolicy.KEPT)),
        ("lost", disk.crash(CrashPolicy.LOST)),
        *((f"random, seed {seed}", disk.crash(random, Random(seed))) for seed in seeds),
    ]


def test_a_new_file_has_term_0_and_no_vote(tmp_path: Path) -> None:
    file = open_new(DiskFiles(), tmp_path / "RAFT")

    assert (file.term, file.vote, file.hint, file.repaired) == (0, None, None, ())
    assert (tmp_path / "RAFT").stat().st_size == FILE_SIZE


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "RAFT"
    file = open_new(DiskFiles(), path)
    file.save(3, None)
    file.save(3, ALICE)
    file.save_hint(12, 11, 1)
    assert (file.term, file.vote, file.hint) == (3, ALICE, Hint(12, 11, 1))

    again = HardStateFile.open(DiskFiles(), path)

    assert (again.term, again.vote, again.hint) == (3, ALICE, Hint(12, 11, 1))
    assert again.repaired == ()
    assert inspect_hard_state(path.read_bytes()).problems == ()


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.uuids(allow_nil=False)), max_size=6),
    st.lists(st.integers(0, (1 << 64) - 1), min_size=3, max_size=3),
)
def test_any_sequence_of_saves_ends_with_the_last(
    steps: list[tuple[int, UUID | None]], numbers: list[int]
) -> None:
    disk = new_disk()
    file = open_new(disk)
    for growth, vote in steps:
        in_same_term = growth == 0 and file.vote is not None
        file.save(file.term + growth, file.vote if in_same_term else vote)
        file.save_hint(*numbers)

    again = HardStateFile.open(disk.crash(CrashPolicy.KEPT), PATH)

    assert (again.term, again.vote) == (file.term, file.vote)
    assert again.hint == (Hint(*numbers) if steps else None)


def test_the_bytes_are_as_documented() -> None:
    """The format is on people's disks: the table in the module, written out by hand."""
    data = saved_disk().contents(PATH)
    # The third save since creation wrote sequence 3: term 0 was 1, term 6 was 2.
    state = b"FLORAFT\0" + bytes.fromhex(
        "0100 0100 00000000 0300000000000000 0700000000000000 000000000000000000000000000a11ce"
    )
    hint = b"FLOHINT\0" + bytes.fromhex(
        "0100 0000 00000000 6400000000000000 5a00000000000000 0300000000000000"
    )

    slot = (state + struct.pack("<I", crc32c(state))).ljust(4096, b"\0")
    assert data[:4096] == slot
    assert data[4096:8192] == slot
    assert data[8192:] == (hint + struct.pack("<I", crc32c(hint))).ljust(4096, b"\0")


def test_a_save_that_changes_nothing_writes_nothing() -> None:
    """Raft saves term and vote through separate calls; a sync costs milliseconds."""
    disk = saved_disk()
    file = HardStateFile.open(disk, PATH)
    before = disk.operations

    file.save(7, ALICE)

    assert disk.operations == before


def test_a_hint_costs_one_write_and_no_sync() -> None:
    disk = saved_disk()
    disk.tear_writes = False
    file = HardStateFile.open(disk, PATH)
    operations: list[str] = []
    disk.after_operation = operations.append

    file.save_hint(1, 2, 3)

    assert operations == ["write RAFT 8192+4096"]


@pytest.mark.parametrize(
    ("term", "vote"), [(6, None), (7, BOB), (7, None), (8, UUID(int=0)), (1 << 64, None)]
)
def test_a_save_that_would_break_raft_is_a_programming_error(term: int, vote: UUID | None) -> None:
    file = HardStateFile.open(saved_disk(), PATH)

    with pytest.raises(AssertionError):
        file.save(term, vote)

    assert (file.term, file.vote) == (7, ALICE)


def test_a_crash_anywhere_leaves_the_last_state_or_the_one_being_saved() -> None:
    """Also when a second crash hits the repair, and when the power fails after it."""
    disk = new_disk()
    done: tuple[int, UUID | None] | None = None  # what the last call that returned promised
    under_way: tuple[int, UUID | None] = (0, None)
    crash_count = 0

    def check(label: str, left: SimDisk) -> None:
        again = open_new(left) if done is None else HardStateFile.open(left, PATH)
        found = (again.term, again.vote)
        assert found in (done, under_way), label
        first, second = (left.contents(PATH)[at : at + SLOT_SIZE] for at in (0, SLOT_SIZE))
        assert first == second, label
        # Whatever was reported now is acted upon, so a power loss must not take it back.
        assert loaded(left.crash(CrashPolicy.LOST)) == found, label
        again.save(again.term + 1, BOB)
        assert loaded(left.crash(CrashPolicy.LOST)) == (again.term, BOB), label

    def crash_twice(operation: str) -> None:
        nonlocal crash_count
        for label, left in crashes(disk):
            if label in ("kept", "random, seed 0", "random, seed 1"):
                for second_label, left_twice in crash_points_of_open(left):
                    check(f"{operation}, {label}, then {second_label}", left_twice)
            check(f"{operation}, {label}", left)
            crash_count += 1

    def crash_points_of_open(left: SimDisk) -> list[tuple[str, SimDisk]]:
        fork = left.crash(CrashPolicy.KEPT)
        points: list[tuple[str, SimDisk]] = []
        fork.after_operation = lambda operation: points.extend(
            (f"{operation}, {label}", again) for label, again in crashes(fork, range(1))
        )
        if done is None:
            open_new(fork)
        else:
            HardStateFile.open(fork, PATH)
        return points

    disk.after_operation = crash_twice
    file = open_new(disk)
    done = (0, None)
    for term, vote in [(1, None), (1, ALICE), (4, BOB)]:
        under_way = (term, vote)
        file.save(term, vote)
        done = (term, vote)
        file.save_hint(term, term, 0)
    assert crash_count > 30 * len(RANDOM_SEEDS)


def test_a_single_flipped_bit_is_always_reported_and_never_changes_the_vote() -> None:
    """Every bit of the three records, and one bit of every byte of the padding."""
    data = bytearray(saved_disk().contents(PATH))
    saved = HardState(3, 7, ALICE)
    assert inspect_hard_state(bytes(data)).problems == ()

    for position in range(len(data) * 8):
        byte, bit = position >> 3, position & 7
        if byte % SLOT_SIZE >= 52 and bit != byte & 7:
            continue
        data[byte] ^= 1 << bit
        report = inspect_hard_state(bytes(data))
        data[byte] ^= 1 << bit
        assert report.problems, position
        assert {slot.state for slot in report.slots} <= {saved, None}, position
        assert any(slot.state for slot in report.slots), position
        assert report.hint.hint in (Hint(100, 90, 3), None), position


def test_a_single_flipped_bit_in_a_file_without_a_hint_is_reported() -> None:
    disk = new_disk()
    open_new(disk)
    data = bytearray(disk.contents(PATH))

    for position in range(HINT_OFFSET * 8, FILE_SIZE * 8, 7):
        data[position >> 3] ^= 1 << (position & 7)
        assert inspect_hard_state(bytes(data)).problems, position
        data[position >> 3] ^= 1 << (position & 7)


@pytest.mark.parametrize("slot", [0, 1])
def test_a_flipped_bit_in_a_slot_is_repaired_from_the_other(slot: int) -> None:
    undamaged = saved_disk().contents(PATH)
    for position in [*range(52 * 8), *range(52 * 8, SLOT_SIZE * 8, 997)]:
        disk = saved_disk()
        disk.flip(PATH, slot * SLOT_SIZE * 8 + position)

        file = HardStateFile.open(disk, PATH)

        assert (file.term, file.vote, file.hint) == (7, ALICE, Hint(100, 90, 3))
        assert len(file.repaired) == 1
        assert file.repaired[0].startswith(f"slot {slot}: ")
        assert disk.crash(CrashPolicy.LOST).contents(PATH)[:HINT_OFFSET] == undamaged[:HINT_OFFSET]
        assert HardStateFile.open(disk, PATH).repaired == ()


def test_a_damaged_hint_is_no_hint_and_no_error() -> None:
    for position in [*range(44 * 8), SLOT_SIZE * 8 - 1]:
        disk = saved_disk()
        disk.flip(PATH, HINT_OFFSET * 8 + position)

        file = HardStateFile.open(disk, PATH)

        in_padding = position >= 44 * 8
        assert file.hint == (Hint(100, 90, 3) if in_padding else None)
        assert (file.term, file.vote, file.repaired) == (7, ALICE, ())


def test_two_bad_slots_stop_the_replica_and_say_what_to_do() -> None:
    disk = saved_disk()
    disk.flip(PATH, 200)
    disk.flip(PATH, SLOT_SIZE * 8 + 300)

    with pytest.raises(CorruptFile, match="add it as a new one") as caught:
        HardStateFile.open(disk, PATH)

    assert "slot 0: checksum; slot 1: checksum" in caught.value.rule


@pytest.mark.parametrize("content", [b"", b"x", bytes(FILE_SIZE), b"\xff" * FILE_SIZE])
def test_a_file_without_any_slot_is_corrupt_and_not_new(content: bytes) -> None:
    """A new file is complete before it has its name, so an empty one has lost its content."""
    disk = new_disk()
    disk.put(PATH, content)

    with pytest.raises(CorruptFile, match="vote twice"):
        HardStateFile.open(disk, PATH)


def test_a_missing_file_is_a_forgotten_vote() -> None:
    with pytest.raises(CorruptFile, match=r"missing; .*vote twice"):
        HardStateFile.open(new_disk(), PATH)


@pytest.mark.parametrize("size", [52, SLOT_SIZE, SLOT_SIZE + 51, HINT_OFFSET, FILE_SIZE - 1])
def test_a_shortened_file_is_reported_and_opens_if_a_slot_is_left(size: int) -> None:
    disk = saved_disk()
    disk.put(PATH, disk.contents(PATH)[:size])
    assert f"file: {size} bytes where {FILE_SIZE} belong" in (
        inspect_hard_state(disk.contents(PATH)).problems
    )

    file = HardStateFile.open(disk, PATH)

    assert (file.term, file.vote) == (7, ALICE)
    file.save(8, BOB)
    file.save_hint(1, 1, 1)
    assert inspect_hard_state(disk.contents(PATH)).problems == ()


def test_trailing_bytes_are_reported() -> None:
    data = saved_disk().contents(PATH)

    assert inspect_hard_state(data + b"\0").problems == (
        f"file: {FILE_SIZE + 1} bytes where {FILE_SIZE} belong",
    )


def slot_of(
    *, version: int = 1, flags: int = 1, reserved: int = 0, sequence: int = 9, vote: UUID = BOB
) -> bytes:
    record = struct.pack(
        "<8sHHIQQ16s", b"FLORAFT\0", version, flags, reserved, sequence, 8, vote.bytes
    )
    return (record + struct.pack("<I", crc32c(record))).ljust(SLOT_SIZE, b"\0")


@pytest.mark.parametrize(
    "slot",
    [
        slot_of(version=0),
        slot_of(flags=3),
        slot_of(flags=0),
        slot_of(reserved=1),
        slot_of(sequence=0),
        slot_of(vote=UUID(int=0)),
    ],
    ids=["version 0", "unknown flag", "vote without flag", "reserved", "sequence 0", "no vote"],
)
def test_a_slot_that_breaks_a_rule_is_not_believed_despite_its_checksum(slot: bytes) -> None:
    disk = saved_disk()
    disk.put(PATH, slot + disk.contents(PATH)[SLOT_SIZE:])

    assert loaded(disk) == (7, ALICE)


@pytest.mark.parametrize("newer", [0, 1])
def test_the_newer_of_two_good_slots_wins(newer: int) -> None:
    """A disk may have dropped a write that it had acknowledged, in either slot."""
    disk = saved_disk()
    data = disk.contents(PATH)
    slots = [data[:SLOT_SIZE], data[:SLOT_SIZE]]
    slots[newer] = slot_of(sequence=4)
    disk.put(PATH, b"".join(slots) + data[HINT_OFFSET:])
    assert inspect_hard_state(disk.contents(PATH)).problems == (
        "slots 0 and 1 differ: sequence 3 and 4, an interrupted save",
    )

    file = HardStateFile.open(disk, PATH)

    assert (file.term, file.vote) == (8, BOB)
    assert file.repaired == (f"slot {1 - newer}: behind, an interrupted save",)
    assert disk.contents(PATH)[:HINT_OFFSET] == slot_of(sequence=4) * 2


def test_slots_that_contradict_each_other_stop_the_replica() -> None:
    disk = saved_disk()
    disk.put(PATH, slot_of(sequence=3) + disk.contents(PATH)[SLOT_SIZE:])

    with pytest.raises(CorruptFile, match="differ in the same sequence 3"):
        HardStateFile.open(disk, PATH)


def test_a_newer_version_in_either_slot_asks_for_an_upgrade() -> None:
    """Falling back to the older slot would forget what the newer onelog voted."""
    for slot in (0, 1):
        disk = saved_disk()
        data = disk.contents(PATH)
        at = slot * SLOT_SIZE
        disk.put(PATH, data[:at] + slot_of(version=2) + data[at + SLOT_SIZE :])

        with pytest.raises(UnknownVersion, match="upgrade"):
            HardStateFile.open(disk, PATH)


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_after_a_failed_save_only_a_reopen_tells(
    operation: Operation, after: int, error: int
) -> None:
    disk = saved_disk()
    file = HardStateFile.open(disk, PATH)
    disk.fail(operation, error, after=after)

    with pytest.raises(LogFailed, match="restart"):
        file.save(8, BOB)

    assert (file.term, file.vote) == (7, ALICE)
    with pytest.raises(LogFailed):
        file.save(8, BOB)
    with pytest.raises(LogFailed):
        file.save_hint(1, 1, 1)
    for label, left in crashes(disk):
        assert loaded(left) in ((7, ALICE), (8, BOB)), label


def test_a_repair_that_fails_does_not_open() -> None:
    disk = saved_disk()
    disk.flip(PATH, 100)
    disk.fail("write", errno.EIO)

    with pytest.raises(LogFailed):
        HardStateFile.open(disk, PATH)


def test_a_full_disk_costs_the_hint_and_nothing_else() -> None:
    disk = saved_disk()
    file = HardStateFile.open(disk, PATH)
    disk.fail("write", errno.ENOSPC)

    with pytest.raises(DiskFull):
        file.save_hint(200, 200, 3)

    assert file.hint == Hint(100, 90, 3)
    file.save(8, BOB)
    assert loaded(disk) == (8, BOB)


def test_a_failing_disk_under_the_hint_stops_the_replica() -> None:
    disk = saved_disk()
    file = HardStateFile.open(disk, PATH)
    disk.fail("write", errno.EIO)

    with pytest.raises(LogFailed):
        file.save_hint(200, 200, 3)
    with pytest.raises(LogFailed):
        file.save(8, BOB)
