"""``onelog log dump`` and ``inspect`` about all models, and whether their help tells the truth."""

import json
import shlex
from pathlib import Path

import pytest

from onelog.ual.files import DiskFiles
from onelog.ual.offline.reader import open_offline_log
from tests.onelog.cli.log.models import TIME, Ask, Models, build_models
from tests.ual.shards import drop_before

# Help --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["replay", "dump", "inspect"])
def test_the_examples_in_the_help_work(models: Models, onelog: Ask, command: str) -> None:
    helped = onelog(command, "--help").out
    examples = [line.strip() for line in helped.splitlines() if "  onelog log " in line]
    assert len(examples) >= 3
    for example in examples:
        _, _, *arguments = shlex.split(example.partition("|")[0])
        known = {"./onelog-data": models.data_dir, "4711": models.at["block"]}
        # Numbers of a large directory, in a small one.
        known |= {"2": 0, "1": 0, "1000": 10, "1010": 12, "100000": 20}
        shown = onelog(*(known.get(each, each) for each in arguments))
        assert (shown.code, shown.err) == (0, ""), example
        assert "did not exist" not in shown.out.replace("user/17 did not exist", ""), example


# Dump and inspect --------------------------------------------------------------------------------


def test_dump_says_what_every_entry_asks_for(models: Models, onelog: Ask) -> None:
    at = models.at
    lines = onelog("dump", models.data_dir).out.splitlines()
    assert lines[0].endswith("what")
    said = {int(line.split()[0]): line for line in lines[1:]}
    for name, what in (
        ("session", "open a session of 60 s"),
        ("key", "default: put user/1 = Ada"),
        ("purge", "Purge default: queue=999 limit=10000 [session 1 request 1]"),
        ("first", f"Enqueue default: queue={at['mail']} body[5] priority=8 headers[0]"),
        ("order 3", "append to default/orders: key b'k3', 7 bytes"),
        ("other", f"default: write cpu{{host=b}} at {TIME}: usage=1.0"),
        ("junk", f"0x{b'hello '.hex()}1b5b324a"),
    ):
        assert said[at[name]].endswith(f"  {what}"), said[at[name]]
    assert said[at["batch"] - 2].endswith("batch of the next 2 entries")


def test_dump_as_json_has_the_payload_as_before_and_what_it_says(
    models: Models, onelog: Ask
) -> None:
    rows = [json.loads(line) for line in onelog("dump", models.data_dir, "--json").out.splitlines()]
    entries = list(open_offline_log(DiskFiles(), models.data_dir, 0).entries(1, len(rows)))
    assert len(rows) == models.at["junk"]
    by_index = {row["index"]: row for row in rows}
    assert by_index[models.at["key"]]["what"] == "default: put user/1 = Ada"
    junk = by_index[models.at["junk"]]
    assert junk["what"].startswith("not a command: ")
    assert bytes.fromhex(junk["payload_hex"]) == b"hello \x1b[2J"
    for row, entry in zip(rows, entries, strict=True):
        text = row["payload"].encode() if "payload" in row else bytes.fromhex(row["payload_hex"])
        assert text == entry.plain_payload()
        assert row["what"].isprintable()


def test_counts_of_all_models_are_shown_by_model(models: Models, onelog: Ask) -> None:
    expected = [
        "entries: refused 1",
        "system: sessions 1, namespaces 1",
        "queue: queues 2, messages ready 3, messages delayed 1, messages leased 1",
        "stream: streams 1, partitions 2, records appended 6, groups 1, members 1, pending 1",
        "timeseries: measurements 1, series 2, columns 3, points buffered 5, blocks 1",
    ]
    for command in (("replay",), ("inspect", "--state")):
        shown = onelog(*command, models.data_dir)
        assert shown.code == 0
        for line in expected:
            assert f"  {line}\n" in shown.out, command
    assert "queues 2" not in onelog("inspect", models.data_dir).out
    counts = onelog("replay", models.data_dir, "--json").json["shards"][0]["counts"]
    assert (counts["queues"], counts["streams"], counts["series"]) == (2, 1, 2)
    inspected = onelog("inspect", models.data_dir, "--state", "--json").json["shards"][0]
    assert inspected["state"]["counts"]["queue"]["queues"] == 2
    assert "state" not in onelog("inspect", models.data_dir, "--json").json["shards"][0]


def test_a_state_that_cannot_be_counted_is_a_problem(tmp_path: Path, onelog: Ask) -> None:
    models = build_models(tmp_path / "data", close=False)
    drop_before(models.live.log, models.live.store.keep_from_index)
    models.live.log.close()
    for record in models.live.store.records:
        models.live.store.path(record).write_bytes(b"nonsense")
    assert onelog("inspect", models.data_dir).code == 0
    shown = onelog("inspect", models.data_dir, "--state")
    assert shown.code == 1
    assert "problem: the state cannot be rebuilt: NO_SNAPSHOT: " in shown.out
