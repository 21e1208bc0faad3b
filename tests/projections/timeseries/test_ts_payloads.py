"""Time series payloads: round trips, golden files, any bytes at all, and the document."""

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onelog.projections.codec import Reader, encode_prefix, read_prefix
from onelog.projections.result import Applied, Refused
from onelog.projections.timeseries.columns import decode_block
from onelog.projections.timeseries.commands import (
    TS_OPERATIONS,
    CreateMeasurement,
    Rollup,
    decode_command,
    describe_timeseries_command,
    encode_body,
    encode_command,
)
from onelog.projections.timeseries.names import series_name
from onelog.projections.timeseries.point_batch import Run, WriteBatch, encode_batch, read_batch
from onelog.projections.timeseries.types import Config, FieldType, Policy
from onelog.ual.entry import FLAG_CONDITIONAL, FLAG_ZSTD, Draft, Entry
from tests.formats.golden import golden_path, load_golden, parse_hex
from tests.projections.timeseries import ts_histories, ts_samples
from tests.projections.timeseries.ts_world import NAMESPACE, SeriesWorld

DOCUMENT = Path(__file__).parents[3] / "docs" / "timeseries.md"
BLOCK = re.compile(r"^```hex (\S+)\n((?:.*\n)*?)^```$", re.MULTILINE)
NAMES = sorted(ts_samples.COMMANDS)
PREFIX = encode_prefix(NAMESPACE)


@pytest.mark.parametrize("name", NAMES)
def test_our_code_writes_the_golden_bytes(name: str) -> None:
    """Entries like the golden ones are in logs: a changed byte needs a new payload version."""
    draft = ts_samples.samples()[name]

    assert draft.payload == load_golden(f"payloads/{name}")
    assert ts_samples.render(name, draft) == golden_path(f"payloads/{name}").read_text("ascii")


@pytest.mark.parametrize("name", NAMES)
def test_the_golden_bytes_are_read_as_they_were_meant(name: str) -> None:
    command = ts_samples.COMMANDS[name]
    _, reader = read_prefix(load_golden(f"payloads/{name}"))

    found = decode_command(encode_command(command, "n").entry_type & 0xFF, reader)

    if isinstance(command, WriteBatch | Rollup):  # arrays have no equality of their own
        assert encode_body(found) == encode_body(command)
    else:
        assert found == command


def test_the_golden_block_has_its_points() -> None:
    times, values = decode_block(1, load_golden("payloads/ts_block"), FieldType.F64, 3, 1)

    assert times.tolist() == ts_samples.BLOCK_TIMES
    assert values.tolist() == ts_samples.BLOCK_VALUES


def test_every_command_has_a_golden_file() -> None:
    assert {type(command) for command in ts_samples.COMMANDS.values()} == {
        each.command for each in TS_OPERATIONS
    }
    found = {path.stem for path in golden_path("payloads/x").parent.glob("ts_*.hex")}
    assert found == set(NAMES)


def test_the_document_names_every_operation_and_its_examples_are_golden() -> None:
    text = DOCUMENT.read_text("utf-8")
    blocks = BLOCK.findall(text)

    assert len(blocks) >= 2
    for name, example in blocks:
        assert parse_hex(example) == load_golden(name), name
    for operation in (each.number for each in TS_OPERATIONS):
        assert f"| 0x{0x0300 | operation:04x} |" in text


runs = st.lists(
    st.tuples(
        st.sampled_from([series_name("m", {"host": host}) for host in "abc"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from(FieldType),
        st.lists(st.integers(-(2**62), 2**62 - 1), min_size=1, max_size=5),
    ),
    max_size=6,
)


@given(several=runs, seed=st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_a_batch_comes_back_as_it_was(
    several: list[tuple[bytes, str, FieldType, list[int]]], seed: int
) -> None:
    draw = Random(seed)
    given_runs = [
        Run(series, field, kind, times, [draw.randint(0, 1) for _ in times])
        for series, field, kind, times in several
    ]
    body = encode_batch(given_runs)

    batch = read_batch(Reader(body))

    assert encode_body(batch) == body
    assert batch.bits.tolist() == [
        int(np.float64(v).view(np.uint64)) if run.field_type is FieldType.F64 else v
        for run in given_runs
        for v in np.asarray(run.values).tolist()
    ]
    assert batch.point_times.tolist() == [t for _, _, _, times in several for t in times]


def assert_harmless(world: SeriesWorld, draft: Draft) -> None:
    """Apply a draft that may hold anything: a refusal leaves no trace but the void."""
    before, voids = world.router.state_hashes(), len(world.notes.voids)
    refused = world.router.counts()["refused"]

    result = world.draft(draft)

    if isinstance(result, Refused):
        assert world.router.state_hashes() == before
        assert len(world.notes.voids) == voids + 1
        assert world.router.counts()["refused"] == refused + 1
        assert result.message
    else:
        assert isinstance(result, Applied)
    world.router.check()


@given(
    operation=st.integers(0, 0x10),
    body=st.binary(max_size=80),
    prefix=st.sampled_from([PREFIX, PREFIX, PREFIX[:-1], b""]),
    flags=st.sampled_from([0, 0, 0, FLAG_ZSTD, FLAG_CONDITIONAL]),
)
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_raise(operation: int, body: bytes, prefix: bytes, flags: int) -> None:
    world = SeriesWorld()
    world.write(ts_samples.SERIES, 1, usage=1.0)
    assert_harmless(world, Draft(0x0300 | operation, prefix + body, flags))


@given(name=st.sampled_from(NAMES), data=st.data())
@settings(max_examples=250, deadline=None)
def test_a_valid_payload_with_any_change_never_raises(name: str, data: st.DataObject) -> None:
    world = SeriesWorld()
    world.write(ts_samples.SERIES, 1, usage=1.0)
    world.draft(ts_samples.samples()["ts_rule_set"])
    draft = ts_samples.samples()[name]
    payload = bytearray(draft.payload)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(len(PREFIX), len(payload) - 1))
        payload[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(len(payload) - 9, len(payload)))
    extra = data.draw(st.binary(max_size=3))

    assert_harmless(world, Draft(draft.entry_type, bytes(payload[:end]) + extra))


@pytest.mark.parametrize("name", NAMES)
def test_a_payload_cut_at_any_byte_never_raises(name: str) -> None:
    draft = ts_samples.samples()[name]
    world = SeriesWorld()
    for end in range(len(draft.payload)):
        assert_harmless(world, Draft(draft.entry_type, draft.payload[:end]))


@pytest.mark.parametrize("seed", range(3))
def test_a_random_history_is_the_same_however_it_is_applied(seed: int) -> None:
    """Snapshots in between and a replay at the end: same hashes, answers, chores and bytes."""
    draw = Random(seed)
    world = SeriesWorld()
    other = SeriesWorld()
    for step in range(150):
        drafts = ts_histories.random_commands(draw, world.series)
        world.group(drafts)
        if draw.random() < 0.2:
            world.pass_time(draw.randint(0, 30 * 10**9))
        new = world.entries[len(other.entries) :]
        other.router.apply_group(new)
        other.entries += new
        assert other.series.state_hash() == world.series.state_hash(), (seed, step)
        if draw.random() < 0.1:
            other = other.reloaded(draw.randint(1, 5_000))
    world.router.check()
    replayed = world.replayed()
    asked = [
        ts_histories.answers(each.series, each.read_block) for each in (world, other, replayed)
    ]
    assert asked[0] == asked[1] == asked[2]
    assert world.section() == other.section() == replayed.section()
    chores = [each.series.chores(2**61, 64) for each in (world, other, replayed)]
    assert chores[0] == chores[1] == chores[2]
    assert world.series.counts()["series_blocks"] > 0
    kept = {result for _, result in world.work()}
    assert kept <= {Applied(number) for number in range(10_000)}


def test_settings_outside_their_bounds_are_refused() -> None:
    world = SeriesWorld()
    for config in (Config(series_max=0), Config(series_max=10_000_001), Config(Policy.LAST, 2**62)):
        draft = encode_command(CreateMeasurement("m", config), NAMESPACE)
        result = world.draft(draft)
        assert isinstance(result, Refused)
        assert result.reason.name == "MEASUREMENT_CONFIG_INVALID"


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_has_a_line_for_people(name: str) -> None:
    draft = ts_samples.samples()[name]
    entry = Entry(draft.entry_type, 0, 1, 1, 1, 0, draft.payload)

    line = describe_timeseries_command(entry)

    assert line.startswith("default: ")
    assert "\n" not in line
    cut = describe_timeseries_command(entry._replace(payload=draft.payload[:-1]))
    assert cut.startswith("not a time series command: PAYLOAD_")
    packed = describe_timeseries_command(entry._replace(flags=FLAG_ZSTD))
    assert packed.startswith("payload unreadable")
