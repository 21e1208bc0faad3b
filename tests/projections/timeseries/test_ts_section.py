"""The time series section of a snapshot: whole, or refused; and what the accounts say."""

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from onelog.projections.errors import CorruptSection
from onelog.projections.limits import CHUNK_SIZE_MAX
from onelog.projections.timeseries.store import Field, SeriesSpace, Store
from onelog.projections.timeseries.types import Aggregate, Config, FieldType, Progress, Rule
from tests.projections.timeseries import ts_histories
from tests.projections.timeseries.ts_world import SECOND, SeriesWorld

ROOT = Path(__file__).parents[3]


def written(seed: int = 3, steps: int = 60) -> SeriesWorld:
    draw = Random(seed)
    world = SeriesWorld()
    for _ in range(steps):
        world.group(ts_histories.random_commands(draw, world.series))
        if draw.random() < 0.1:
            world.pass_time(draw.randint(0, 9) * SECOND)
    return world


def loaded(world: SeriesWorld, section: bytes) -> SeriesWorld:
    """Return a world whose time series come from ``section``, everything else from ``world``."""
    other = SeriesWorld()
    sections = {owner: [b"".join(chunks)] for owner, chunks in world.router.dump().items()}
    sections[world.series.owner] = [section]
    other.router.load(sections)
    return other


def test_a_section_is_loaded_as_it_was_dumped() -> None:
    world = written()
    assert world.series.counts()["series_blocks"] > 0
    other = world.reloaded(chunk_size=7)

    assert other.router.state_hash() == world.router.state_hash()
    assert other.section() == world.section()
    assert other.series.counts() == world.series.counts()
    assert other.series.memory() == world.series.memory()
    assert other.series.next_deadline() == world.series.next_deadline()
    other.router.check()
    answers = [ts_histories.answers(each.series, each.read_block) for each in (world, other)]
    assert answers[0] == answers[1]


def test_a_section_comes_in_chunks_of_bounded_size() -> None:
    world = written()

    assert all(len(chunk) <= CHUNK_SIZE_MAX for chunk in world.series.dump())


def test_an_empty_state_has_a_section() -> None:
    world = SeriesWorld()

    assert world.reloaded().section() == world.section()


def test_a_damaged_section_is_refused_at_any_byte() -> None:
    """Loading recomputes the hash: whatever is damaged, it is seen before it is served."""
    world = written(steps=25)
    section = world.section()
    draw = Random(1)
    for _ in range(150):
        at = draw.randrange(len(section))
        damaged = bytearray(section)
        damaged[at] ^= 1 << draw.randrange(8)
        with pytest.raises(CorruptSection):
            loaded(world, bytes(damaged))


def test_a_cut_section_is_refused() -> None:
    world = written(steps=25)
    section = world.section()
    draw = Random(2)
    for size in [0, 1, len(section) - 1, *(draw.randrange(len(section)) for _ in range(60))]:
        with pytest.raises(CorruptSection):
            loaded(world, section[:size])
    with pytest.raises(CorruptSection):
        loaded(world, section + b"\0")


class NoKeys:
    """Takes the keys of metadata, which are in the accounts of others, and forgets them."""

    def put_derived(self, namespace: str, items: Iterable[tuple[bytes, bytes]], index: int) -> None:
        pass

    def delete_derived(self, namespace: str, key: bytes, index: int) -> None:
        pass


@pytest.mark.parametrize(("fields", "rules"), [(0, 0), (50, 0), (0, 4), (20, 2)])
def test_measurements_fields_and_rules_are_in_the_accounts(fields: int, rules: int) -> None:
    """10,000 measurements without a point are 11 MB: nobody would know where they went."""
    store = Store(NoKeys())
    space = store.spaces["default"] = SeriesSpace("default", 1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000, 2_000):
            config = Config(retention_ns=10**12 + number)
            measurement = store.create_measurement(space, f"measure-{number}", config, number)
            new = [Field(f"field-{each:03}", FieldType.F64) for each in range(fields)]
            store.add_fields(measurement, new)
            made = {}
            for each in range(rules):
                unlike = 10**12 + 10 * number + each  # numbers that nobody shares
                rule = Rule(f"rule-{each}", f"to-{unlike}", unlike, unlike + 1, tuple(Aggregate))
                made[rule.name] = (rule, Progress(unlike + 2, unlike + 3, unlike + 4))
            store.update(measurement, rules=made)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert store.memory()["measurements"] == pytest.approx(grown, rel=0.2)


PROGRAM = """
import json, resource, sys
from pathlib import Path
import numpy as np
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.commands import encode_write_batch
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.types import FieldType
from tests.projections.timeseries.ts_world import SeriesWorld
from onelog.ual.entry import Entry

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

shape, series, points = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
world = SeriesWorld()
warm = [Run(series_name("w"), "f", FieldType.F64, np.arange(50), np.zeros(50))]
world.batch(*warm)
names = [series_name("cpu", {"host": f"host-{n:06d}", "zone": f"z{n % 9}"}) for n in range(series)]
before = resident()
accounted_before = sum(sum(kinds.values()) for kinds in world.router.memory().values())
for start in range(0, points, 50):
    times = np.arange(start, min(start + 50, points)) * 10**10
    for first in range(0, series, 1_000):
        runs = [Run(n, "f", FieldType.F64, times, times / 3) for n in names[first : first + 1_000]]
        draft = encode_write_batch(encode_batch(runs), "default")
        world.router.apply(Entry(draft.entry_type, 0, 1, world.index + 1, 1, 0, draft.payload))
grown = resident() - before
accounted = sum(sum(kinds.values()) for kinds in world.router.memory().values())
print(json.dumps([grown, accounted - accounted_before]))
"""


@pytest.mark.parametrize(
    ("shape", "series", "points"),
    [("full buffers", 2_000, 1_000), ("many series", 20_000, 1), ("some of both", 10_000, 60)],
)
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_the_accounts_are_within_a_fifth_of_the_process(
    shape: str, series: int, points: int
) -> None:
    """Budgets are enforced by these numbers; a wrong one ends in a killed process."""
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, shape, str(series), str(points)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    grown, accounted = json.loads(finished.stdout)

    assert accounted == pytest.approx(grown, rel=0.2)
