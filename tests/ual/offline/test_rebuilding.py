"""Rebuilding sealed segments: every derived byte comes back, and nothing is ever guessed."""

from pathlib import Path
from random import Random

import pytest

from onelog.ual.offline.verify import RebuildTables
from onelog.ual.segments.format import FOOTER_SIZE, HEADER_SIZE, Footer
from tests.simulation.disk import SimDisk
from tests.ual.directories import Built, built_disk, fork, tree
from tests.ual.offline.repairs import apply, plan_for, repaired


@pytest.fixture(scope="module")
def healthy() -> tuple[SimDisk, Built]:
    return built_disk()


def derived_bytes(disk: SimDisk, path: Path) -> list[range]:
    """Return where a sealed file holds what follows from the rest of it."""
    data = disk.contents(path)
    footer = Footer.decode("", data[-FOOTER_SIZE:], 0)
    first, last = footer.offsets.position, footer.streams.position
    return [
        range(12),  # magic, version, shard
        range(16, 24),  # first index
        range(32, HEADER_SIZE) if path.name != "0000000001.flseg" else range(56, HEADER_SIZE),
        range(first, last),
        range(len(data) - FOOTER_SIZE, len(data)),
    ]


@pytest.mark.parametrize("which", ["compacted", "sealed"])
def test_what_follows_from_the_entries_is_rebuilt(
    healthy: tuple[SimDisk, Built], which: str
) -> None:
    """Any bit of it, to the byte that was there before."""
    disk, built = healthy
    path: Path = getattr(built, which)
    good = disk.contents(path)
    places = [byte for span in derived_bytes(disk, path) for byte in span]
    seed = 3
    rng = Random(seed)
    for byte in rng.sample(places, 40):
        damaged = fork(disk)
        damaged.flip(path, 8 * byte + rng.randrange(8))
        plan = plan_for(damaged, built)
        assert [type(repair.remedy) for repair in plan] == [RebuildTables], (seed, byte, plan)
        apply(damaged, built, plan)
        assert damaged.contents(path) == good, (seed, byte)


def test_a_rebuilt_segment_keeps_every_promise(healthy: tuple[SimDisk, Built]) -> None:
    disk, built = healthy
    for which in (built.compacted, built.sealed):
        data = bytearray(disk.contents(which))
        footer = Footer.decode("", bytes(data[-FOOTER_SIZE:]), 0)
        damaged = fork(disk)
        # All of the derived tables at once; the footer still vouches for the rest.
        for at in range(footer.offsets.position, footer.time.end):
            data[at] ^= 0xFF
        damaged.put(which, bytes(data))
        repaired(damaged, built, RebuildTables)


def test_a_footer_and_tables_that_are_gone_are_rebuilt_by_the_file_checksum(
    healthy: tuple[SimDisk, Built],
) -> None:
    """Nothing says where streams and voids end; the checksum of the file proves the answer."""
    disk, built = healthy
    for which in (built.compacted, built.sealed):
        good = disk.contents(which)
        footer = Footer.decode("", good[-FOOTER_SIZE:], 0)
        data = bytearray(good)
        data[footer.offsets.position : footer.offsets.end] = bytes(footer.offsets.size)
        data[-FOOTER_SIZE:-12] = bytes(FOOTER_SIZE - 12)
        damaged = fork(disk)
        damaged.put(which, bytes(data))
        repaired(damaged, built, RebuildTables)
        assert damaged.contents(which) == good


def test_no_damage_to_entries_streams_or_voids_is_ever_repaired(
    healthy: tuple[SimDisk, Built],
) -> None:
    """An entry that fails its checksum stays unreadable, whatever else is done."""
    disk, built = healthy
    seed = 4
    rng = Random(seed)
    for path in (built.compacted, built.sealed):
        data = disk.contents(path)
        footer = Footer.decode("", data[-FOOTER_SIZE:], 0)
        spans = [
            range(HEADER_SIZE, footer.entries_end),
            range(footer.streams.position, footer.streams.end),
            range(footer.voids.position, footer.voids.end),
        ]
        for span in spans:
            for byte in rng.sample(list(span), min(len(span), 25)):
                damaged = fork(disk)
                damaged.flip(path, 8 * byte + rng.randrange(8))
                before = tree(damaged, built.data_dir)
                (repair,) = [item for item in plan_for(damaged, built) if item.path == path]
                assert not repair.is_possible, (seed, path, byte)
                assert "peer" in repair.advice
                assert tree(damaged, built.data_dir) == before


def test_damage_in_two_places_is_not_guessed_at(healthy: tuple[SimDisk, Built]) -> None:
    """A table and an entry; a footer and the checksum that could prove it."""
    disk, built = healthy
    good = disk.contents(built.sealed)
    size = len(good)
    footer = Footer.decode("", good[-FOOTER_SIZE:], 0)
    for places in (
        (footer.offsets.position, HEADER_SIZE + 50),
        (size - FOOTER_SIZE, size - 10),
        (size - FOOTER_SIZE, footer.streams.end - 1),
        (size - FOOTER_SIZE, 13),
    ):
        damaged = fork(disk)
        for byte in places:
            damaged.flip(built.sealed, 8 * byte)
        assert not any(repair.is_possible for repair in plan_for(damaged, built)), places
