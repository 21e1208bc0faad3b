"""``onelog log replay`` about one queue, stream, series or measurement, at any index."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onelog.projections.queue import commands as queue_commands
from onelog.projections.queue.message import QueueConfig
from onelog.projections.stream import commands as stream_commands
from onelog.projections.timeseries import commands as ts_commands
from onelog.projections.timeseries.names import series_name
from onelog.routing import find_shard
from onelog.ual.directory import Topology
from onelog.ual.entry import Draft
from onelog.ual.files import DiskFiles
from onelog.ual.recovery import open_hard_state, open_log
from onelog.ual.segments.sealing import compact_segment
from tests.onelog.cli.log.models import ESCAPE, NAMESPACE, TIME, Ask, Models, build_models
from tests.snapshot.live import SECOND
from tests.ual.shards import close_active, drop_before, make_directory, seal_closed

# Queues ------------------------------------------------------------------------------------------


def test_a_queue_is_answered_for_at_every_index(models: Models, replay: Callable[..., Any]) -> None:
    at = models.at
    for name, depth, totals in (
        ("mail", (0, 0, 0), {}),
        ("first", (1, 0, 0), {"enqueued": 1}),
        ("lease", (0, 0, 1), {"enqueued": 1}),
        ("ack", (0, 0, 0), {"enqueued": 1, "acked": 1}),
        ("nack", (0, 0, 0), {"enqueued": 2, "acked": 1, "dead": 1}),
        ("long", (1, 1, 1), {"enqueued": 5, "acked": 1, "dead": 1}),
        ("inside of the batch", (1, 1, 1), {"enqueued": 5, "acked": 1, "dead": 1}),
        ("batch", (2, 1, 1), {"enqueued": 6, "acked": 1, "dead": 1}),
    ):
        index = at["batch"] - 1 if name not in at else at[name]
        found = replay("queue", "mail", "--at", index)
        assert found["exists"]
        assert tuple(found["depth"].values()) == depth, name
        assert {key: count for key, count in found["totals"].items() if count} == totals, name
        assert "messages" not in found
    assert replay("queue", "mail", "--at", at["first"])["oldest_age_ns"] == 0
    assert replay("queue", "mail", "--at", at["long"] + 3)["oldest_age_ns"] == 3 * SECOND
    before = replay("queue", "mail", "--at", at["mail"] - 1)
    assert before == {"namespace": "default", "name": "mail", "exists": False}
    assert not replay("queue", "mail", "--namespace", "other")["exists"]


def test_messages_are_listed_with_their_bodies_from_the_log(
    models: Models, replay: Callable[..., Any]
) -> None:
    at = models.at
    found = replay("queue", "mail", "--list", 10)
    shown = [
        (row["id"], row["state"], row["priority"], row["deliveries"], row["body_size"])
        for row in found["messages"]
    ]
    assert shown == [
        (at["binary"], "leased", 3, 1, 5),
        (at["later"], "delayed", 8, 0, 5),
        (at["long"], "ready", 8, 0, 500),
        (at["batch"], "ready", 8, 0, 10),
    ]
    binary, later, long, batch = found["messages"]
    assert binary["body_hex"] == ESCAPE.hex()
    assert binary["headers"] == [{"name": "kind", "value_hex": "00"}]
    assert binary["token"] == at["third lease"]
    assert later["body"] == "later"
    assert (long["tenant_hex"], batch["body"]) == ("7407", "of a batch")
    assert found["has_more"] is False
    two = replay("queue", "mail", "--list", 2)
    assert ([row["id"] for row in two["messages"]], two["has_more"]) == (
        [at["binary"], at["later"]],
        True,
    )
    (dead,) = replay("queue", "dead", "--list", 1)["messages"]
    assert (dead["id"], dead["body"]) == (at["second"], "second")
    assert dead["dead_letter"]["dlq.failure_reason"] == "no such address"


def test_a_queue_is_shown_to_people(models: Models, onelog: Ask) -> None:
    shown = onelog("replay", models.data_dir, "--queue", "mail", "--list", 3)
    assert shown.code == 0
    assert f"queue default/mail (id {models.at['mail']}): ready 2, delayed 1, leased 1" in shown.out
    assert "the oldest ready one waits for " in shown.out
    assert "totals: enqueued 6, acked 1, dead 1" in shown.out
    assert f"message {models.at['binary']}  leased  priority 3  deliveries 1" in shown.out
    assert f"5 bytes  0x{ESCAPE.hex()}" in shown.out
    assert "5 bytes  later" in shown.out
    assert "500 bytes  long long" in shown.out
    assert "… the first 3 of 4 messages" in shown.out
    assert max(map(len, shown.out.splitlines())) < 300
    dead = onelog("replay", models.data_dir, "--queue", "dead", "--list", 3)
    assert "died of: no such address" in dead.out


# Streams -----------------------------------------------------------------------------------------


def test_a_stream_is_answered_for_at_every_index(
    models: Models, replay: Callable[..., Any]
) -> None:
    at = models.at
    assert not replay("stream", "orders", "--at", at["orders"] - 1)["exists"]
    for number in range(6):
        found = replay("stream", "orders", "--at", at[f"order {number}"])
        appended = [each["records_appended"] for each in found["partitions"]]
        assert (len(appended), sum(appended)) == (2, number + 1)
        ends = [each["end_offset"] for each in found["partitions"]]
        assert max(ends) == at[f"order {number}"] + 1
        assert found["groups"] == []
    (group,) = replay("stream", "orders", "--at", at["deliver"])["groups"]
    assert (group["name"], group["pending"]) == ("billing", 2)
    (group,) = replay("stream", "orders", "--at", at["stream ack"])["groups"]
    assert (group["pending"], len(group["members"])) == (1, 1)
    first, second = group["cursors"]
    assert first["delivered"] > first["committed"] > second["committed"] == at["orders"] + 1
    assert first["member"] == at["member"]


def test_the_last_records_are_listed_whatever_tells_about_them(
    models: Models, replay: Callable[..., Any]
) -> None:
    """At each index another of three knows: the replay, a snapshot's notes, a sealed file."""
    at = models.at
    bases = {0: at["order 5"], at["stream ack"]: at["block"], at["rule"]: at["junk"]}
    for base_index, index in bases.items():
        for limit in (1, 4, 100):
            asked = replay("stream", "orders", "--at", index, "--list", limit)
            numbers = list(range(6))[-limit:]
            assert [each["offset"] for each in asked["records"]] == [
                at[f"order {number}"] for number in numbers
            ], (base_index, limit)
            assert [each["value"] for each in asked["records"]] == [
                f"order {number}" for number in numbers
            ]
    assert [record["key"] for record in asked["records"]] == [f"k{n}" for n in range(6)]
    assert {record["partition"] for record in asked["records"]} == {0, 1}
    three = replay("stream", "orders", "--at", at["order 2"], "--list", 100)
    assert [each["value"] for each in three["records"]] == ["order 0", "order 1", "order 2"]


def test_the_states_of_the_test_before_begin_where_it_says(models: Models, onelog: Ask) -> None:
    at = models.at
    for base, index in ((0, "order 5"), (at["stream ack"], "block"), (at["rule"], "junk")):
        asked = onelog("replay", models.data_dir, "--at", at[index], "--stream", "orders", "--json")
        assert asked.json["shards"][0]["base_index"] == base


def test_a_dead_letter_is_listed_as_the_record_that_it_leads_to(
    tmp_path: Path, onelog: Ask
) -> None:
    models = Models(tmp_path / "data")
    models.write_dead_letter()
    models.live.log.close()
    at = models.at
    asked = onelog("replay", models.data_dir, "--stream", "lost", "--list", 5, "--json")
    (record,) = asked.json["shards"][0]["stream"]["records"]
    assert (record["offset"], record["value"], record["key_hex"]) == (at["letter"], "a job", "00")
    letter = record["dead_letter"]
    assert (letter["origin"], letter["group"], letter["deliveries"]) == (at["job"], "workers", 1)
    assert letter["reason_hex"] == b"too \x1b hard".hex()
    shown = onelog("replay", models.data_dir, "--stream", "lost", "--list", 5).out
    assert f"key 0x00  dead letter of {at['job']} by group workers  5 bytes  a job" in shown


def test_a_stream_is_shown_to_people(models: Models, onelog: Ask) -> None:
    at = models.at
    shown = onelog("replay", models.data_dir, "--stream", "orders", "--list", 2).out
    assert f"stream default/orders (id {at['orders']}): partitions 2, records appended 6" in shown
    assert f"partition 0: offsets {at['orders'] + 1} to before " in shown
    assert "group billing: generation 1, members 1, pending 1, dead 0" in shown
    assert f"lag 5, held by member {at['member']}" in shown
    assert f"record {at['order 5']}  partition " in shown
    assert "key k5  7 bytes  order 5" in shown
    assert "order 3" not in shown


# Time series -------------------------------------------------------------------------------------


def test_the_points_of_a_series_are_answered_for_at_every_index(
    models: Models, replay: Callable[..., Any]
) -> None:
    at = models.at
    name = "cpu{host=a}"
    assert not replay("series", name, "--at", at["point 0"] - 1)["exists"]
    for index, count in (("point 0", 1), ("point 2", 3), ("block", 3), ("point 4", 5)):
        (usage, *_) = replay("series", name, "--at", at[index])["fields"]
        assert (usage["name"], usage["type"]) == ("usage", "f64")
        assert usage["times_ns"] == [TIME + number * SECOND for number in range(count)]
        assert usage["values"] == [0.5 + number for number in range(count)]
    whole = replay("series", name)
    usage, up = whole["fields"]
    assert (usage["blocks"], usage["buffered_points"]) == (1, 2)
    assert up["values"] == [True, True]
    assert whole["tags"] == {"host": "a"}
    (only,) = replay("series", name, "--field", "up", "--list", 1)["fields"]
    assert only == up
    (none,) = replay("series", name, "--field", "nothing")["fields"]
    assert none == {"name": "nothing", "exists": False}
    assert not replay("series", "cpu{host=z}")["exists"]
    assert not replay("series", "cpu")["exists"]  # the series without tags
    assert not replay("series", name, "--namespace", "other")["exists"]


def test_a_series_and_a_measurement_are_shown_to_people(models: Models, onelog: Ask) -> None:
    shown = onelog("replay", models.data_dir, "--series", "cpu{host=a}", "--list", 2).out
    assert "series default/cpu{host=a} (id 1, created at " in shown
    assert "field usage (f64): points 5, 2023-11-14T22:13:20.000000000Z to " in shown
    assert "last value 4.5" in shown
    assert shown.count("  2023-11-14T22:13:23.000000000Z  3.5\n") == 1
    assert "22.000000000Z  2.5" not in shown
    none = onelog("replay", models.data_dir, "--series", "cpu{host=a}", "--field", "nope").out
    assert "field nope did not exist" in none
    shown = onelog("replay", models.data_dir, "--measurement", "cpu", "--list", 1).out
    assert "measurement default/cpu (created at " in shown
    assert "series 2, policy last, kept for ever" in shown
    assert "field up (bool)" in shown
    assert "tag host: values 2" in shown
    assert "rule minutely: mean, max per 60 s into cpu_1m, done up to nothing" in shown
    assert "… the first 1 of 2 series" in shown


def test_a_measurement_is_answered_for(models: Models, replay: Callable[..., Any]) -> None:
    found = replay("measurement", "cpu", "--list", 10)
    assert found["fields"] == [
        {"name": "usage", "type": "f64"},
        {"name": "up", "type": "bool"},
    ]
    assert found["series"] == ["cpu{host=a}", "cpu{host=b}"]
    assert found["rules"][0]["aggregates"] == ["mean", "max"]
    assert found["config"]["policy"] == "last"
    early = replay("measurement", "cpu", "--at", models.at["block"])
    assert (early["series_count"], early["rules"]) == (1, [])
    assert not replay("measurement", "cpu", "--at", models.at["orders"])["exists"]
    assert not replay("measurement", "memory")["exists"]


# What is not there -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queue", "nope"), "queue default/nope did not exist"),
        (("--stream", "nope"), "stream default/nope did not exist"),
        (("--series", "nope{a=b}"), "series default/nope{a=b} did not exist"),
        (("--measurement", "nope"), "measurement default/nope did not exist"),
        (("--queue", "\x1b[2J\udcff"), r"queue default/\x1b[2J\udcff did not exist"),
        (("--key", ""), "default/ did not exist"),
    ],
)
def test_a_name_that_does_not_exist_is_an_answer(
    models: Models, onelog: Ask, arguments: tuple[str, ...], said: str
) -> None:
    for more in ((), ("--at", 3)):
        shown = onelog("replay", models.data_dir, *arguments, *more)
        assert (shown.code, shown.err) == (0, "")
        assert shown.out.splitlines()[-1] == f"  {said}"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--queue", "a", "--stream", "b"), "--queue and --stream are two questions"),
        (("--key", "a", "--series", "b"), "--key and --series are two questions"),
        (("--series", "cpu{host=a"), "--series cpu{host=a: byte 10 of a series name"),
        (("--series", "cpu{b=1,a=2}"), "tags in ascending order"),
        (("--series", "\udcff"), "not UTF-8"),
        (("--queue", "a", "--field", "usage"), "--field is about --series"),
        (("--list", "3"), "--list says what is in a thing"),
        (("--key", "a", "--list", "3"), "--list says what is in a thing"),
        (("--queue", "a", "--list", "0"), "--list"),
        (("--queue", "a", "--list", "1001"), "--list"),
        (("--at", "3"), "--at answers for one thing: give one of --key, --queue, "),
        (("--at", "3", "--to", "4", "--queue", "a"), "--at or --to"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(
    models: Models, onelog: Ask, arguments: tuple[str, ...], said: str
) -> None:
    shown = onelog("replay", models.data_dir, *arguments)
    assert shown.code == 2
    assert shown.out == ""
    assert shown.err.startswith("error: USAGE: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err


def test_bodies_and_records_that_the_log_has_let_go_are_said_to_be_gone(
    tmp_path: Path, onelog: Ask
) -> None:
    models = build_models(tmp_path / "data", close=False)
    drop_before(models.live.log, models.live.store.keep_from_index)
    first_index = models.live.log.first_index
    models.live.log.close()
    at = models.at
    assert at["order 5"] < first_index <= at["block"]

    where = (models.data_dir, "--at", at["point 4"])
    shown = onelog("replay", *where, "--queue", "mail", "--list", 9)
    gone = f"(the log no longer keeps entry {at['later']})"
    assert (shown.code, gone in shown.out) == (0, True)
    rows = onelog("replay", *where, "--queue", "mail", "--list", 9, "--json").json["shards"][0]
    assert rows["queue"]["messages"][0]["error"].endswith(f"entry {at['binary']}")
    shown = onelog("replay", *where, "--stream", "orders", "--list", 9)
    gone = f"record {at['order 5']}  partition 0  (the log no longer keeps entry {at['order 5']})"
    assert (shown.code, gone in shown.out) == (0, True)
    # Behind the second snapshot nothing tells any more which entries they were.
    shown = onelog("replay", models.data_dir, "--stream", "orders", "--list", 9)
    assert (shown.code, "no record is left to list" in shown.out) == (0, True)
    before = onelog("replay", models.data_dir, "--at", at["order 5"], "--stream", "orders")
    assert before.code == 1
    assert before.err.startswith("error: NO_SNAPSHOT: ")
    assert before.err.count("\n") == 1


def test_a_block_that_compaction_has_let_go_is_said_to_be_gone(tmp_path: Path, onelog: Ask) -> None:
    models = build_models(tmp_path / "data", close=False)
    block = models.at["block"]
    close_active(models.live.log)
    seal_closed(models.live.log)
    models.live.log.close()
    (path,) = [
        path
        for path in sorted(models.live.paths.segments.glob("*.flseg"))
        if int(path.stem) <= block
    ][-1:]
    last_index = models.at["point 4"]
    kept = [index for index in range(int(path.stem), last_index + 1) if index != block]
    compact_segment(DiskFiles(), path, np.array(kept, np.uint64))

    shown = onelog("replay", models.data_dir, "--series", "cpu{host=a}")
    assert shown.code == 0
    gone = f"field usage (f64): cannot be read: the log no longer keeps entry {block}"
    assert gone in shown.out
    assert "field up (bool): points 2" in shown.out
    usage, _ = onelog("replay", models.data_dir, "--series", "cpu{host=a}", "--json").json[
        "shards"
    ][0]["series"]["fields"]
    assert "times_ns" not in usage


# Shards ------------------------------------------------------------------------------------------


def test_the_shard_is_found_by_the_name_and_for_a_series_by_its_measurement(
    tmp_path: Path, onelog: Ask
) -> None:
    shards = 4
    topology = Topology(shards=shards, partitions=16)
    files = DiskFiles()
    data_dir = tmp_path / "data"

    def home(name: bytes) -> int:
        return find_shard(name, topology.partitions, shards)

    # A series' own text would be routed by what stands in its braces.
    measurement = next(n for n in ("a", "b", "c", "d") if home(n.encode()) != home(b"host=a"))
    series = series_name(measurement, {"host": "a"})
    drafts: dict[str, Draft] = {
        "{tag}mail": queue_commands.encode_command(
            queue_commands.QueueCreate("{tag}mail", QueueConfig()), NAMESPACE
        ),
        "orders": stream_commands.encode_command(stream_commands.Create("orders"), NAMESPACE),
        measurement: ts_commands.encode_command(
            ts_commands.Write(series, TIME, (("usage", 1),)), NAMESPACE
        ),
    }
    with make_directory(files, data_dir, topology) as directory:
        for shard in range(shards):
            paths = directory.shard_path(shard)
            log, _ = open_log(files, paths, open_hard_state(files, paths), shard=shard)
            mine = [draft for name, draft in drafts.items() if home(name.encode()) == shard]
            log.append(mine or [Draft(0x0001, b"")], term=1, timestamp_ns=SECOND)
            log.sync()
            log.mark_committed(log.last_index)
            log.close()
    for subject, name, routed in (
        ("queue", "{tag}mail", b"tag"),
        ("stream", "orders", b"orders"),
        ("measurement", measurement, measurement.encode()),
        ("series", series.decode(), measurement.encode()),
    ):
        asked = onelog("replay", data_dir, f"--{subject}", name, "--json")
        (found,) = asked.json["shards"]
        assert (found["shard"], found[subject]["exists"]) == (home(routed), True)
