"""A measurement with a rule, and the entries that a leader proposes for it, one by one."""

from onelog.projections.codec import read_prefix
from onelog.projections.result import Applied, Result
from onelog.projections.timeseries.commands import (
    BeginRollup,
    Command,
    CreateMeasurement,
    Rollup,
    SetRule,
    decode_command,
)
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.types import Aggregate, Config, Progress, Rule
from onelog.ual.entry import Draft
from tests.projections.timeseries.ts_world import SECOND, SeriesWorld

MINUTE = 60 * SECOND
A, A_MINUTES = (series_name(name, {"host": "a"}) for name in ("cpu", "cpu_1m"))
ALL = tuple(Aggregate)


def ruled(*aggregates: Aggregate, delay_ns: int = 0, window_ns: int = MINUTE) -> SeriesWorld:
    world = SeriesWorld()
    world.now_ns = 0
    world.run(CreateMeasurement("cpu", Config()))
    rule = Rule("minutes", "cpu_1m", window_ns, delay_ns, aggregates or ALL)
    result = world.run(SetRule("cpu", rule))
    assert result == Applied(world.index)
    return world


def progress_of(world: SeriesWorld) -> Progress:
    return world.series.spaces["default"].measurements["cpu"].rules["minutes"][1]


def decoded(draft: Draft) -> Command:
    _, reader = read_prefix(draft.payload)
    return decode_command(draft.entry_type & 0xFF, reader)


def rollups_of(done: list[tuple[Draft, Result]]) -> list[Rollup]:
    commands = [decoded(draft) for draft, _ in done]
    return [command for command in commands if isinstance(command, Rollup)]


def step(world: SeriesWorld) -> Command:
    """Apply the one entry that is due."""
    (draft,) = world.router.due(world.now_ns, 10)
    assert isinstance(world.draft(draft), Applied)
    return decoded(draft)


def opened(world: SeriesWorld) -> Draft:
    """Open a slice, and return the rollup that a leader makes of it next."""
    assert isinstance(step(world), BeginRollup)
    (draft,) = world.router.due(world.now_ns, 10)
    assert isinstance(decoded(draft), Rollup)
    return draft
