"""One payload of each time series kind, for the golden files.

``python -m tests.projections.timeseries.ts_samples`` writes them to ``tests/formats/payloads``.
Entries like them are in logs already, so they are written again only when a format was changed on
purpose, together with its version.
"""

import sys

from onelog.projections.codec import Reader, encode_prefix
from onelog.projections.timeseries.commands import (
    BeginRollup,
    Block,
    Command,
    ConfigureMeasurement,
    CreateMeasurement,
    Delete,
    DropMeasurement,
    DropRule,
    Rollup,
    SetRule,
    Trim,
    Write,
    encode_command,
)
from onelog.projections.timeseries.names import Matcher, Operator, series_name
from onelog.projections.timeseries.point_batch import Run, encode_batch, read_batch
from onelog.projections.timeseries.types import START, Aggregate, Config, FieldType, Policy, Rule
from onelog.ual.entry import Draft
from tests.formats.golden import golden_path, render_hex

NAMESPACE = "default"
SECOND = 1_000_000_000
TIME = 1_700_000_000 * SECOND
SERIES = series_name("cpu", {"host": "a", "zone": "eu"})
OTHER = series_name("cpu", {"host": "b"})

BLOCK_TIMES = [TIME + 10 * SECOND * number for number in range(8)]
BLOCK_VALUES = [20.5, 20.51, 20.5, 20.49, 20.5, 20.52, 20.53, 20.5]
# Made by pcodec 1.0: whatever release is installed must still read it.
BLOCK_BODY = bytes.fromhex(
    "4100000070636f2103000302040104070000001000000050b1f1e7bcbc2c010000000000807c814a00205fa01200d6"
    "117e0300f9029500e876481700d6117e03e09962820070636f2103000302040106070000003300408fc2f5285c1f0d"
    "306000000000008034c0000dd7a3703d0ad200af00340116000000000040b81e85eb5185eb51b81e0500"
)

BATCH = encode_batch(
    [
        Run(SERIES, "usage", FieldType.F64, [TIME, TIME + SECOND], [0.5, 0.25]),
        Run(SERIES, "up", FieldType.BOOL, [TIME, TIME + SECOND], [True, False]),
        Run(OTHER, "usage", FieldType.F64, [TIME], [1.0]),
        Run(OTHER, "count", FieldType.I64, [TIME], [-7]),
    ]
)
ROLLED = encode_batch([Run(series_name("cpu_1m"), "usage_mean", FieldType.F64, [TIME], [0.5])])

COMMANDS: dict[str, Command] = {
    "ts_write": Write(SERIES, TIME, (("usage", 0.5), ("count", -7), ("up", True))),
    "ts_write_batch": read_batch(Reader(BATCH)),
    "ts_block": Block(
        series_id=3,
        field_id=1,
        config_index=12,
        base=4_096,
        taken=9,
        points=8,
        first_ns=BLOCK_TIMES[0],
        last_ns=BLOCK_TIMES[-1],
        source_hash=0x0123456789ABCDEF,
        body=BLOCK_BODY,
    ),
    "ts_measurement_create": CreateMeasurement("cpu", Config(Policy.FIRST, 60 * SECOND, 500)),
    "ts_measurement_configure": ConfigureMeasurement("cpu", Config()),
    "ts_measurement_drop": DropMeasurement("cpu"),
    "ts_delete": Delete(
        "cpu",
        (
            Matcher("host", Operator.MATCHES, "web-.*"),
            Matcher("zone", Operator.NOT_EQUAL, "eu"),
        ),
        TIME,
        TIME + 60 * SECOND,
        after=17,
    ),
    "ts_delete_merged": Delete(
        "cpu",
        (Matcher("host", Operator.EQUAL, "web-1"),),
        TIME,
        TIME + 60 * SECOND,
        merges=True,
    ),
    "ts_measurement_drop_continued": DropMeasurement("cpu", before_index=12),
    "ts_delete_continued": Delete(
        "cpu",
        (Matcher("host", Operator.EQUAL, "web-1"),),
        TIME,
        TIME + 60 * SECOND,
        after=17,
        merges=True,
        before_index=12,
    ),
    "ts_rule_set": SetRule(
        "cpu",
        Rule("minutes", "cpu_1m", 60 * SECOND, 5 * SECOND, (Aggregate.MEAN, Aggregate.MAX)),
    ),
    "ts_rule_drop": DropRule("cpu", "minutes"),
    "ts_trim": Trim("cpu", 12, TIME, 17),
    "ts_rollup_begin": BeginRollup("cpu", "minutes", 12, 13, TIME + 60 * SECOND),
    "ts_rollup": Rollup(
        measurement="cpu",
        rule="minutes",
        created_index=12,
        rule_index=13,
        slice_index=14,
        from_ns=TIME,
        to_ns=TIME + 60 * SECOND,
        after=START,
        last=(17, 2),
        batch=read_batch(Reader(ROLLED)),
    ),
}


def samples() -> dict[str, Draft]:
    """Return every sample by name."""
    return {name: encode_command(command, NAMESPACE) for name, command in COMMANDS.items()}


def render(name: str, draft: Draft) -> str:
    """Return the text of a golden file."""
    title = f"Payload of type 0x{draft.entry_type:04x}, {name}"
    marks = {0: "prefix", len(encode_prefix(NAMESPACE)): "body"}
    return render_hex(title, draft.payload, marks)


def main() -> None:
    for name, draft in samples().items():
        path = golden_path(f"payloads/{name}")
        path.write_text(render(name, draft), "ascii")
        sys.stdout.write(f"{path.name}\n")


if __name__ == "__main__":
    main()
