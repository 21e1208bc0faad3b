"""All points of a state: what queries answer, whatever the windows that a column is read in."""

from random import Random

import numpy as np
import pytest

import onelog.snapshot.points
from onelog.projections.timeseries.columns import make_block
from onelog.projections.timeseries.commands import Delete, encode_command, encode_write_batch
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch
from onelog.projections.timeseries.query import Query
from onelog.projections.timeseries.types import FieldType
from onelog.snapshot.points import find_columns, read_points
from tests.projections.timeseries.ts_queries import Queries
from tests.projections.world import World

BLOCKS = 12


def blocks_that_overlap(seed: int) -> World:
    """A column of many blocks, with times that come again in others, and a deleted range."""
    draw, world = Random(seed), World()
    for number in range(BLOCKS):
        first = draw.randrange(400)
        times = [first + draw.randrange(200) for _ in range(150)]
        run = Run(series_name("cpu", {}), "n", FieldType.I64, times, [number] * len(times))
        world.draft(encode_write_batch(encode_batch([run]), "default"))
        measurement = world.state.series.spaces["default"].measurements["cpu"]
        (series,) = measurement.series.values()
        block = make_block(series.columns[0], measurement.config.policy, measurement.config_index)
        if number < BLOCKS - 1:  # what comes last stays in the buffer
            world.draft(encode_command(block, "default"))
        if number == BLOCKS // 2:
            world.draft(encode_command(Delete("cpu", (), 250, 260), "default"))
    return world


@pytest.mark.parametrize("window", [1, 150, 700, 1 << 17])
def test_windows_of_a_column_are_the_whole_of_it(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onelog.snapshot.points, "WINDOW_POINTS", window)
    world = blocks_that_overlap(window)
    payloads = {entry.index: entry.plain_payload() for entry in world.entries}
    (answer,) = Queries(world.state.series, payloads.__getitem__).query(  # type: ignore[misc]
        "default", Query("cpu", "n")
    )
    (column,) = find_columns(world.state)
    assert len(column.blocks) == BLOCKS - 1
    parts = [
        (times.copy(), values.copy())
        for _, times, values in read_points([column], payloads.__getitem__)
    ]
    assert (len(parts) > 1) == (window < 1 << 17)
    assert np.concatenate([times for times, _ in parts]).tolist() == answer.times.tolist()
    assert np.concatenate([values for _, values in parts]).tolist() == answer.values.tolist()
