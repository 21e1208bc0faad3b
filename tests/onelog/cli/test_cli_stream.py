"""``onelog stream`` against a real server: every command, what it prints, and how it fails."""

from pathlib import Path
from typing import Any

from tests.onelog.cli.commands import Cli


def test_a_stream_is_made_changed_and_deleted(cli: Cli) -> None:
    cli("stream", "create", "s1", "--partitions", 2, "--age", "7d", "--count", 100)
    assert "STREAM_EXISTS" in cli("stream", "create", "s1", code=4).err
    cli("stream", "configure", "s1", "--size", 1000, "--past-groups")
    info = cli.json("stream", "show", "s1")
    assert info["retention"] == {
        "age_s": 604_800, "size_max": 1000, "count_max": 100, "past_groups": True,
    }  # fmt: skip
    assert len(info["partitions"]) == 2
    assert "7d, 1,000 bytes, 100 records" in cli("stream", "show", "s1").out
    assert [row["stream"] for row in cli.lines("stream", "list", "s1")] == ["s1"]
    cli("stream", "delete", "s1")
    for command, *flags in (
        ["show"], ["read"], ["delete"], ["append", "x"], ["tail"], ["trim", "--below", "5"],
    ):  # fmt: skip
        assert "STREAM_UNKNOWN" in cli("stream", command, "s1", *flags, code=3).err, command


def test_records_are_appended_and_read(cli: Cli, tmp_path: Path) -> None:
    cli("stream", "create", "s2")
    (tmp_path / "value").write_bytes(b"\xff")
    first = cli.json("stream", "append", "s2", "up", "--key", "ann", "--tag", "account")
    cli("stream", "append", "s2", "--file", "value", "--header", "type=image")
    assert cli.json("stream", "append", "s2", "--lines", stdin=b"a\nb\n") == {"appended": 2}
    records = cli.lines("stream", "read", "s2")
    assert records[0]["offset"] == first["offset"]
    assert (records[0]["key"], records[0]["tag"], records[0]["value"]) == ("ann", "account", "up")
    assert (records[1]["value_base64"], records[1]["headers"]) == ("/w==", {"type": "image"})
    assert [each["value"] for each in records[2:]] == ["a", "b"]
    only = cli.lines("stream", "read", "s2", "--key", "ann", "--since", "now-1h")
    assert [each["value"] for each in only] == ["up"]
    assert len(cli.lines("stream", "read", "s2", "--header", "type=image")) == 1
    assert len(cli.lines("stream", "read", "s2", "--from", records[1]["offset"], "--limit", 2)) == 2
    assert len(cli.lines("stream", "read", "s2", "--to", records[1]["offset"])) == 2
    assert "account" in cli("stream", "read", "s2").out
    cli("stream", "trim", "s2", "--keep-count", 1)
    assert [each["value"] for each in cli.lines("stream", "read", "s2", "--from",
                                                records[3]["offset"])] == ["b"]  # fmt: skip
    assert "BOUND_INVALID" in cli("stream", "trim", "s2", code=1).err


def test_a_tail_goes_on_where_it_ended(cli: Cli) -> None:
    cli("stream", "create", "s3")
    cli("stream", "append", "s3", "--lines", stdin=b"a\nb\nc\n")
    ran = cli("stream", "tail", "s3", "--from", 0, "--limit", 2)
    assert [row[-1] for row in ran.rows] == ["a", "b"]
    flags = ran.err.removeprefix("note: to continue here: ").split()
    assert flags[:2] == ["--from", "start"]
    (record,) = cli.lines("stream", "tail", "s3", *flags, "--limit", 1)
    assert record["value"] == "c"
    assert "no cursor" in cli("stream", "tail", "s3", "--cursor", "?", code=2).err
    assert "USAGE" in cli("stream", "tail", "s3", "s4", "--from", 1, code=2).err
    assert "USAGE" in cli("stream", "tail", "s3", "s4", "--partition", 0, code=2).err


def test_a_tail_over_several_streams_begins_at_the_start_or_at_a_time(cli: Cli) -> None:
    for name in ("s3a", "s3b"):
        cli("stream", "create", name)
        cli("stream", "append", name, "--lines", stdin=b"1\n2\n3\n")
        cli("stream", "append", name, "4", "--tag", "last")
    both = ("stream", "tail", "s3a", "s3b")
    expected = {(name, str(number)) for name in ("s3a", "s3b") for number in range(1, 5)}

    def found(*flags: Any) -> set[tuple[str, str]]:
        return {(each["stream"], each["value"]) for each in cli.lines(*both, *flags)}

    assert found("--from", 0, "--limit", 8) == expected
    assert found("--since", "now-1h", "--limit", 8) == expected
    assert found("--from", 0, "--tag", "last", "--limit", 2) == {("s3a", "4"), ("s3b", "4")}
    ran = cli(*both, "--from", 0, "--limit", 5)
    flags = ran.err.removeprefix("note: to continue here: ").split()
    seen = {(row[0], row[-1]) for row in ran.rows}
    assert seen | found(*flags, "--limit", 3) == expected
    assert "START_INVALID" in cli(*both, "--from", 0, "--since", "now-1h", code=1).err


def test_a_record_of_a_producer_is_appended_once(cli: Cli) -> None:
    cli("stream", "create", "s3c")
    append = ("stream", "append", "s3c")
    first = cli(*append, "one", "--producer", "7:1:1").out
    again = cli(*append, "one", "--producer", "7:1:1").out
    assert again == first.replace("\n", ", appended before\n")
    lines = (*append, "--lines", "--producer", "7:1:2")
    assert cli(*lines, stdin=b"two\nthree\n").out == "2 records appended\n"
    assert cli(*lines, stdin=b"two\nthree\nfour\n").out == "1 record appended, 2 were before\n"
    assert cli.json(*lines, stdin=b"two\n") == {"appended": 0, "duplicates": 1}
    values = [each["value"] for each in cli.lines("stream", "read", "s3c")]
    assert values == ["one", "two", "three", "four"]
    many = b"x\n" * 1_001  # more than are read at once
    cli("stream", "create", "s3d")
    once = ("stream", "append", "s3d", "--lines", "--producer", "7:1:1")
    assert cli(*once, stdin=many).out == "1,001 records appended\n"
    assert "PRODUCER_SEQUENCE_GAP" in cli(*append, "x", "--producer", "7:1:9", code=1).err
    for text in ("7", "7:1", "a:1:1", "7:1:-1"):
        assert "USAGE" in cli(*append, "x", "--producer", text, code=2).err


def test_a_group_shares_a_stream(cli: Cli) -> None:
    cli("stream", "create", "s5.dead{s5}")
    cli("stream", "create", "s5{s5}")
    cli("stream", "append", "s5{s5}", "--lines", stdin=b"a\nb\nc\nd\ne\n")
    group = ("s5{s5}", "billing")
    cli("stream", "group", "create", *group, "--from", 0, "--max-deliveries", 5,
        "--dead-letters", "s5.dead{s5}")  # fmt: skip
    cli("stream", "group", "configure", *group, "--shared")
    consumed = cli("stream", "group", "consume", *group, "--limit", 1).rows
    assert [row[-1] for row in consumed] == ["a"]

    member = cli("stream", "group", "join", *group, "--session", "5m").out.strip()
    own = (*group, "--member", member)
    places = cli("stream", "group", "fetch", *own, "--limit", 2, "--places").out.split()
    assert cli.json("stream", "group", "ack", *own, places[0]) == {"acked": 1}
    assert cli.json("stream", "group", "nack", *own, places[1], "--reason", "x") == {"nacked": 1}
    (claimed,) = cli.lines("stream", "group", "claim", *own, "--idle", "1h")
    assert (claimed["value"], claimed["delivery_count"]) == ("c", 2)
    info = cli.json("stream", "group", "show", *group)
    assert info["config"]["shared"] is True
    assert info["config"]["max_deliveries"] == 5
    assert [each["member_id"] for each in info["members"]] == [int(member)]
    assert "any partition" in cli("stream", "group", "show", *group).out
    cli("stream", "group", "ack", *own, places[1])
    assert "d" in cli("stream", "group", "fetch", *own, "--limit", 1, "--wait", "10s").out
    cli("stream", "group", "leave", *own)
    assert cli("stream", "group", "fetch", *own, code=3).err.startswith("error: ")
    assert "is not a place" in cli("stream", "group", "ack", *own, "5", code=2).err


def test_a_group_moves_and_goes(cli: Cli) -> None:
    cli("stream", "create", "s6")
    cli("stream", "append", "s6", "--lines", stdin=b"a\nb\n")
    offsets = [each["offset"] for each in cli.lines("stream", "read", "s6")]
    cli("stream", "group", "create", "s6", "reading", "--since", "now-1h")
    cli("stream", "group", "commit", "s6", "reading", f"0:{offsets[0]}")
    (place,) = cli.json("stream", "group", "show", "s6", "reading")["partitions"]
    assert place["committed_offset"] == offsets[0] + 1
    cli("stream", "group", "seek", "s6", "reading", "--to", 0)
    assert cli("stream", "group", "consume", "s6", "reading", "--limit", 1).rows[0][-1] == "a"
    cli("stream", "group", "seek", "s6", "reading", "--at", "now")
    member = cli("stream", "group", "join", "s6", "reading").out.strip()
    ran = cli("stream", "group", "fetch", "s6", "reading", "--member", member, code=3)
    assert "NOTHING_NEW" in ran.err
    assert "USAGE" in cli("stream", "group", "seek", "s6", "reading", code=2).err
    cli("stream", "group", "delete", "s6", "reading")
    assert "GROUP_UNKNOWN" in cli("stream", "group", "show", "s6", "reading", code=3).err


def test_readers_and_groups_filter_and_a_trim_shows_what_is_left(cli: Cli) -> None:
    cli("stream", "create", "s7")
    for key, headers in (("user:1", ("--header", "trace=9")), ("user:2", ()), ("other", ())):
        cli("stream", "append", "s7", key, "--key", key, *headers)

    def chosen(*options: str) -> list[str]:
        return [each["value"] for each in cli.lines("stream", "read", "s7", *options)]

    assert chosen("--key-prefix", "user:") == ["user:1", "user:2"]
    assert chosen("--header", "trace") == ["user:1"]
    assert chosen("--header", "trace=8") == []
    cli("stream", "group", "create", "s7", "some", "--from", 0, "--key-prefix", "user:")
    assert "key user:…" in cli("stream", "group", "show", "s7", "some").out
    rows = cli("stream", "group", "consume", "s7", "some", "--limit", 2).rows
    assert [row[-1] for row in rows] == ["user:1", "user:2"]
    cli("stream", "group", "configure", "s7", "some", "--header", "trace")
    config = cli.json("stream", "group", "show", "s7", "some")["config"]
    assert config["only"]["headers"] == {"trace": None}
    cli("stream", "group", "configure", "s7", "some", "--shared")
    assert cli.json("stream", "group", "show", "s7", "some")["config"]["only"] == config["only"]
    cli("stream", "group", "configure", "s7", "some", "--all-records")
    assert cli.json("stream", "group", "show", "s7", "some")["config"]["only"] is None
    (left,) = cli.json("stream", "trim", "s7", "--keep-count", 2, "--past-groups")["partitions"]
    assert (left["left"]["record_count"], left["kept_for_group"]) == (2, "")
    cli("stream", "group", "seek", "s7", "some", "--to", 0)
    (left,) = cli.json("stream", "trim", "s7", "--keep-count", 1)["partitions"]
    assert (left["left"]["record_count"], left["kept_for_group"]) == (2, "some")


def test_a_group_gets_a_stream_for_its_dead_letters_at_the_first_try(cli: Cli) -> None:
    cli("stream", "create", "s8")
    group = ("s8", "g")
    refused = cli("stream", "group", "create", *group, "--max-deliveries", 1, "--dead-letters",
                  "s8-dead", code=1).err  # fmt: skip
    assert "the streams s8 and s8-dead" in refused
    cli("stream", "group", "create", *group, "--from", 0, "--dead-letters", "--max-deliveries", 1)
    config = cli.json("stream", "group", "show", *group)["config"]
    assert (config["max_deliveries"], config["dead_letter_stream"]) == (1, "s8.dead{s8}")
    cli("stream", "append", "s8", "bad")
    member = cli("stream", "group", "join", *group).out.strip()
    own = (*group, "--member", member)
    places = cli("stream", "group", "fetch", *own, "--places", "--wait", "10s").out.split()
    cli("stream", "group", "nack", *own, *places)
    tailed = cli.lines("stream", "tail", "s8.dead{s8}", "--from", 0, "--limit", 1)
    assert [each["value"] for each in tailed] == ["bad"]
