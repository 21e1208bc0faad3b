"""A snapshot's sections as tables: the rows that loaded projections answer, however it is cut."""

from pathlib import Path
from random import Random

import numpy as np
import pytest

from onelog.projections.kv.commands import Put
from onelog.projections.namespaces import Limits
from onelog.projections.shard_state import Projections, build_projections
from onelog.projections.system.commands import NamespaceCreate
from onelog.snapshot.format import SnapshotHeader
from onelog.snapshot.notes import CoveredNotes
from onelog.snapshot.reader import SnapshotReader
from onelog.snapshot.state import load_state, write_state
from onelog.spark.columns import kv_section, section_bytes, series_section
from onelog.spark.columns.sections import SECTION_TABLES
from onelog.ual.errors import CorruptPayload
from onelog.ual.files import DiskFiles
from onelog.ual.segments.notes import SegmentNotes
from tests.projections.histories import Writer
from tests.projections.world import SECOND, VoidNotes, World
from tests.spark.columns.rare_state import add_rare_state
from tests.spark.columns.section_rows import EXPECTED, Row
from tests.spark.columns.series_rows import micros

STEPS = 400
TABLES = sorted(SECTION_TABLES)


def write_snapshot(world: World, directory: Path) -> SnapshotReader:
    """Write a snapshot of a world and open it."""
    header = SnapshotHeader(0, world.index, 1, world.index, world.now_ns)
    notes = CoveredNotes(world.index + 1, SegmentNotes())
    files = DiskFiles()
    written = write_state(files, directory, header, 5, world.state.router, notes, free_bytes_min=0)
    return SnapshotReader.open(files, written.path)


@pytest.fixture(scope="module", params=range(2))
def snapshot(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[SnapshotReader, Projections]:
    """A snapshot of a random history of all models, and projections that loaded it."""
    world = Writer(request.param).write(STEPS)
    add_rare_state(world)
    reader = write_snapshot(world, tmp_path_factory.mktemp("snaps"))
    reader.verify()
    state = build_projections(VoidNotes())
    load_state(reader, state.router)
    return reader, state


def rows_of(table: str, data: bytes, chunk_size: int = 1 << 20) -> list[Row]:
    chunks = [data[at : at + chunk_size] for at in range(0, len(data), chunk_size)]
    rows = []
    for batch in SECTION_TABLES[table].rows(chunks):
        assert batch.schema.equals(SECTION_TABLES[table].schema)
        assert batch.num_rows
        batch.validate(full=True)
        rows += batch.to_pylist()
    for row in rows:
        moment = row.pop("time", None)
        assert moment is None or micros(moment) == row["time_ns"] // 1_000
    return rows


def section_of(reader: SnapshotReader, table: str) -> bytes:
    return b"".join(reader.chunks(SECTION_TABLES[table].section_type))


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_rows_that_the_loaded_state_answers(
    snapshot: tuple[SnapshotReader, Projections], table: str
) -> None:
    reader, state = snapshot
    expected = list(EXPECTED[table](state))

    assert rows_of(table, section_of(reader, table)) == expected


def test_whatever_a_column_can_say_some_history_says() -> None:
    """So the comparisons here leave nothing out."""
    silent = {name: set(table.schema.names) - {"time"} for name, table in SECTION_TABLES.items()}
    for seed in range(8):
        world = Writer(seed).write(STEPS)
        add_rare_state(world)
        for name, columns in silent.items():
            for row in EXPECTED[name](world.state):
                columns -= {column for column in columns if row[column]}
        if not any(silent.values()):
            return
    seldom = {"redrives", "missed", "purged", "cancelled", "duplicates", "schedules", "deleted"}
    seldom |= {"dead_letters", "age_ns", "size_max", "count_max", "messages_max", "expired"}
    assert set[str]().union(*silent.values()) <= seldom


@pytest.mark.parametrize("table", TABLES)
def test_where_a_section_is_cut_means_nothing(
    snapshot: tuple[SnapshotReader, Projections], table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, _ = snapshot
    data = section_of(reader, table)
    expected = rows_of(table, data)
    draw = Random(table)
    for piece in (1, 70, 3_000):
        monkeypatch.setattr(section_bytes, "PIECE_BYTES", piece)
        monkeypatch.setattr(series_section, "PIECE_BYTES", piece)
        monkeypatch.setattr(section_bytes, "BATCH_ROWS_MAX", draw.choice([1, 7, 1_000]))
        for chunk_size in (1, draw.randint(2, 50), draw.randint(100, 5_000)):
            if piece == 1 and chunk_size == 1 and len(data) > 20_000:
                continue
            assert rows_of(table, data, chunk_size) == expected


@pytest.mark.parametrize("table", TABLES)
def test_a_section_that_ends_too_early_or_too_late_is_damaged(
    snapshot: tuple[SnapshotReader, Projections], table: str
) -> None:
    reader, _ = snapshot
    data = section_of(reader, table)
    draw = Random(table)
    ends = {0, 1, 2, len(data) - 1, *(draw.randrange(len(data)) for _ in range(60))}
    for end in sorted(ends):
        with pytest.raises(CorruptPayload):
            rows_of(table, data[:end])
    with pytest.raises(CorruptPayload):
        rows_of(table, data + b"\0")
    with pytest.raises(CorruptPayload):
        rows_of(table, b"\x09" + data[1:])


@pytest.mark.parametrize("table", TABLES)
def test_changed_bytes_are_damage_or_other_values_and_nothing_else(
    snapshot: tuple[SnapshotReader, Projections], table: str
) -> None:
    reader, _ = snapshot
    data = section_of(reader, table)
    draw = Random(table)
    for _ in range(60):
        changed = bytearray(data)
        for _ in range(draw.randint(1, 3)):
            changed[draw.randrange(len(data))] = draw.randrange(256)
        try:
            for batch in SECTION_TABLES[table].rows([bytes(changed)]):
                batch.validate(full=True)
        except CorruptPayload:
            continue


@pytest.mark.parametrize("table", TABLES)
def test_a_section_of_nothing_has_no_rows(table: str, tmp_path: Path) -> None:
    world = World()
    world.system(NamespaceCreate(Limits()), "room")
    reader = write_snapshot(world, tmp_path)

    assert rows_of(table, section_of(reader, table)) == []


def test_versions_far_apart_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(20):
        world.put(b"key-%d" % (number % 3), bytes([number]) * 1_000)
    data = world.sections()[SECTION_TABLES["kv_versions"].section_type]
    expected = rows_of("kv_versions", data)
    monkeypatch.setattr(kv_section, "VERSIONS_BYTES_MAX", 2_500)

    batches = list(kv_section.kv_version_rows([data]))

    assert len(batches) > 5
    assert [row for batch in batches for row in batch.to_pylist()] == expected
    assert len(expected) == 20


def test_batches_are_bounded_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section_bytes, "BATCH_ROWS_MAX", 10)
    world = World()
    for number in range(45):
        world.kv(Put(b"key-%02d" % number, b"", ttl_ns=SECOND))
    data = world.sections()[SECTION_TABLES["kv"].section_type]

    sizes = [batch.num_rows for batch in kv_section.kv_rows([data])]

    assert sizes == [10, 10, 10, 10, 5]
    assert np.all([row["expires_ns"] == world.now_ns + SECOND for row in rows_of("kv", data)])
