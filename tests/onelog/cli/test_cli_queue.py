"""``onelog queue`` against a real server: every command, what it prints, and how it fails."""

import re
from pathlib import Path

from tests.onelog.cli.commands import Cli


def receipts(cli: Cli, queue: str, count: int) -> list[str]:
    return cli("queue", "lease", queue, "--count", count, "--receipts").out.split()


def test_a_queue_is_made_changed_and_deleted(cli: Cli) -> None:
    cli("queue", "create", "q1.dead{q1}")
    cli("queue", "create", "q1{q1}", "--max-deliveries", 2, "--dead-letters", "q1.dead{q1}",
        "--backoff", "10ms,1m", "--ttl", "1d")  # fmt: skip
    assert "QUEUE_EXISTS" in cli("queue", "create", "q1{q1}", code=4).err
    cli("queue", "configure", "q1{q1}", "--visibility", "2m")
    config = cli.json("queue", "show", "q1{q1}")["config"]
    assert config["visibility_s"] == 120
    assert (config["max_deliveries"], config["dead_letter_queue"]) == (2, "q1.dead{q1}")
    assert (config["backoff_s"], config["ttl_s"]) == ([0.01, 60], 86_400)
    cli("queue", "pause", "q1{q1}")
    assert "paused yes" in " ".join(cli("queue", "show", "q1{q1}").out.split())
    assert "paused" in cli("queue", "list", "q1").out
    cli("queue", "resume", "q1{q1}")
    assert [row["queue"] for row in cli.lines("queue", "list", "q1")] == ["q1.dead{q1}", "q1{q1}"]
    index = cli.json("kv", "put", "moment{q1}", "")["version"]
    cli("queue", "create", "q1.later{q1}")
    before = ("queue", "list", "q1", "--as-of", index)
    then = cli.lines(*before, "--shard-of", "{q1}")
    assert [row["queue"] for row in then] == ["q1.dead{q1}", "q1{q1}"]
    cli("queue", "delete", "q1{q1}")
    for command in ("show", "pause", "delete", "peek", "lease", "purge"):
        assert "QUEUE_UNKNOWN" in cli("queue", command, "q1{q1}", code=3).err
    assert "no such queue" in cli("queue", "list", "nothing").err


def test_messages_are_enqueued_leased_and_settled(cli: Cli, tmp_path: Path) -> None:
    cli("queue", "create", "q2")
    (tmp_path / "body").write_bytes(b"\xff\x00")
    first = int(cli("queue", "enqueue", "q2", "one", "--priority", 2, "--header", "by=ann").out)
    assert cli.json("queue", "enqueue", "q2", "--file", "body")["message_id"] > first
    assert cli.json("queue", "enqueue", "q2", "--lines", stdin=b"a\nb\r\n\nc") == {"enqueued": 4}
    seen = cli.lines("queue", "peek", "q2")
    assert seen[0]["headers"] == {"by": "ann"}
    assert seen[1]["body_base64"] == "/wA="
    assert [each["body"] for each in seen[2:]] == ["a", "b", "", "c"]
    assert "one" in cli("queue", "peek", "q2", "--limit", 1).out

    (leased,) = cli.lines("queue", "lease", "q2", "--visibility", "5m")
    assert leased["body"] == "one"
    receipt = f"{leased['message_id']}:{leased['token']}"
    cli("queue", "extend", "q2", "--visibility", "10m", receipt)
    cli("queue", "release", "q2", receipt)
    again = receipts(cli, "q2", 1)
    assert again != [receipt]
    cli("queue", "nack", "q2", "--delay", "0", "--reason", "busy", *again)
    done = receipts(cli, "q2", 2)
    assert cli("queue", "ack", "q2", *done).out.count("acknowledged") == 2
    assert "MESSAGE_UNKNOWN" in cli("queue", "ack", "q2", *done, code=3).err
    assert "LEASE" in cli("queue", "ack", "q2", f"{seen[2]['message_id']}:1", code=4).err
    assert cli.json("queue", "show", "q2")["acked"] == 2
    assert "is not a receipt" in cli("queue", "ack", "q2", "12", code=2).err


def test_messages_are_looked_after(cli: Cli) -> None:
    cli("queue", "create", "q3")
    ids = [cli("queue", "enqueue", "q3", body).out.strip() for body in "abcd"]
    assert cli("queue", "cancel", "q3", ids[0]).out.split()[-1] == "cancelled"
    assert "MESSAGE_UNKNOWN" in cli("queue", "cancel", "q3", ids[0], code=3).err
    cli("queue", "prioritise", "q3", 0, ids[3])
    assert cli.lines("queue", "lease", "q3")[0]["body"] == "d"
    assert cli.json("queue", "purge", "q3", "--below", ids[2])["purged"] == 1
    assert (
        cli("queue", "purge", "q3", "--before", "now+1h", "--leased-too").out
        == "2 messages purged\n"
    )
    ran = cli("queue", "lease", "q3", "--wait", "10ms", code=3)
    assert ran.err == "error: QUEUE_EMPTY: q3 has no message that is ready\n"
    assert "USAGE" in cli("queue", "prioritise", "q3", 16, ids[1], code=2).err
    assert "USAGE" in cli("queue", "enqueue", "q3", "x", "--lines", code=2).err


def test_delays_dedup_and_schedules_are_understood(cli: Cli) -> None:
    cli("queue", "create", "q4")
    cli("queue", "enqueue", "q4", "later", "--delay", "1h", "--group", "g", "--tenant", "t")
    cli("queue", "enqueue", "q4", "then", "--at", "now+1h", "--ttl", "2h")
    first = cli.json("queue", "enqueue", "q4", "x", "--dedup-id", "1")
    assert cli.json("queue", "enqueue", "q4", "x", "--dedup-id", "1") == {
        "message_id": first["message_id"], "deduplicated": True,
    }  # fmt: skip
    info = cli.json("queue", "show", "q4")
    assert (info["delayed"], info["ready"], info["deduplicated"]) == (2, 1, 1)
    schedule = cli("queue", "schedule", "add", "q4", "30 3 * * *", "report").out.strip()
    (listed,) = cli.lines("queue", "schedule", "list", "q4")
    assert (str(listed["schedule_id"]), listed["cron"]) == (schedule, "30 3 * * *")
    cli("queue", "schedule", "delete", "q4", schedule)
    assert "no schedule" in cli("queue", "schedule", "list", "q4").err
    assert cli("queue", "schedule", "add", "q4", "often", "x", code=1).err.startswith("error: CRON")
    assert "SCHEDULE" in cli("queue", "schedule", "delete", "q4", 999, code=3).err


def test_a_paused_queue_is_not_called_empty(cli: Cli) -> None:
    cli("queue", "create", "q12{q12}")
    cli("queue", "enqueue", "q12{q12}", "x")
    cli("queue", "pause", "q12{q12}")
    said = "q12{q12} is paused; go on with: onelog queue resume 'q12{q12}'"
    assert cli("queue", "lease", "q12{q12}", code=3).err == f"error: QUEUE_EMPTY: {said}\n"
    cli("queue", "resume", "q12{q12}")
    assert cli.lines("queue", "lease", "q12{q12}")[0]["body"] == "x"


def test_consuming_acknowledges_what_it_prints(cli: Cli, tmp_path: Path) -> None:
    cli("queue", "create", "q5.dead{q5}")
    cli("queue", "create", "q5{q5}", "--max-deliveries", 1, "--dead-letters", "q5.dead{q5}")
    cli("queue", "enqueue", "q5{q5}", "--lines", stdin=b"1\n2\n3\n4\n5\n6\n")
    assert [row[1] for row in cli("queue", "consume", "q5{q5}", "--limit", 2).rows] == ["1", "2"]
    script = 'cat >> seen; echo " $ONELOG_DELIVERY_COUNT" >> seen; exit $(expr $(wc -l < seen) / 2)'
    cli("queue", "consume", "q5{q5}", "--limit", 2, "--", "sh", "-c", script)
    assert (tmp_path / "seen").read_text() == "3 1\n4 1\n"
    info = cli.json("queue", "show", "q5{q5}")
    assert (info["acked"], info["dead"], info["ready"]) == (3, 1, 2)
    assert "QUEUE_UNKNOWN" in cli("queue", "consume", "nothing", "--", "true", code=3).err
    said = cli("queue", "consume", "q5{q5}", "--limit", 1, "--", "/no/such", code=1).err
    assert said == "error: ENOENT: /no/such: No such file or directory\n"
    assert cli.json("queue", "show", "q5{q5}")["dead"] == 1, "no message was taken for it"

    assert cli.lines("queue", "peek", "q5.dead{q5}", "--failure", "nothing") == []
    (dead,) = cli.lines("queue", "peek", "q5.dead{q5}")
    cause = dead["headers"]["dlq.failure_reason"]
    assert cli.lines("queue", "peek", "q5.dead{q5}", "--failure", cause) == [dead]
    assert dead["body"] == "4"
    said = cli("queue", "redrive", "q5.dead{q5}", "--failure", "nothing").out
    assert re.fullmatch(r"redrive \d+: 0 messages moved back, of 1 there; .*\n", said)
    assert "REDRIVE_UNKNOWN" in cli("queue", "cancel-redrive", "q5.dead{q5}", 999, code=3).err
    said = cli("queue", "redrive", "q5.dead{q5}", "--limit", 10).out
    assert re.fullmatch(r"redrive \d+: 1 message moved back\n", said)
    bodies = [cli.lines("queue", "lease", "q5{q5}", "--wait", "30s")[0]["body"] for _ in range(3)]
    assert sorted(bodies) == ["4", "5", "6"]


def test_a_redrive_that_is_under_way_is_stopped_where_it_is(cli: Cli) -> None:
    letters = 120  # at one in a second: nobody is so slow that the last is on its way too soon
    cli("queue", "create", "q6.dead{q6}")
    cli("queue", "create", "q6{q6}", "--max-deliveries", 1, "--dead-letters", "q6.dead{q6}")
    bodies = b"".join(b"%d\n" % number for number in range(letters))
    cli("queue", "enqueue", "q6{q6}", "--lines", stdin=bodies)
    cli("queue", "nack", "q6{q6}", *receipts(cli, "q6{q6}", letters))
    redrive = cli.json("queue", "redrive", "q6.dead{q6}", "--rate", 1)["redrive_id"]
    cli("queue", "lease", "q6{q6}", "--wait", "30s")  # the first has come back

    (listed,) = cli.lines("queue", "redrives", "q6.dead{q6}")
    assert (listed["redrive_id"], listed["rate_per_s"]) == (redrive, 1)
    assert listed["moved"] >= 1
    assert listed["moved"] + listed["remaining"] == letters
    assert "where each died" in cli("queue", "redrives", "q6.dead{q6}").out
    stopped = cli("queue", "cancel-redrive", "q6.dead{q6}", redrive)
    assert stopped.out == f"redrive {redrive} stopped\n"
    assert cli.lines("queue", "redrives", "q6.dead{q6}") == []
    info = cli.json("queue", "show", "q6.dead{q6}")
    assert 1 <= info["moved"] < letters
    assert info["ready"] == letters - info["moved"]
    said = cli("queue", "cancel-redrive", "q6.dead{q6}", redrive, code=3).err
    assert said.startswith("error: REDRIVE_UNKNOWN: "), "it runs no more"


def test_weights_of_tenants_are_set_shown_and_changed_one_by_one(cli: Cli) -> None:
    cli("queue", "create", "q12", "--tenant-weight", "ann=3", "--tenant-weight", "=2")
    assert cli.json("queue", "show", "q12")["config"]["tenant_weights"] == {"": 2, "ann": 3}
    cli("queue", "configure", "q12", "--tenant-weight", "bob=4", "--tenant-weight", "=1")
    cli("queue", "configure", "q12", "--ttl", "1h")
    assert cli.json("queue", "show", "q12")["config"]["tenant_weights"] == {"ann": 3, "bob": 4}
    assert "ann" in cli("queue", "show", "q12").out
    for text in ("ann", "ann=", "ann=-1", "ann=x"):
        assert "USAGE" in cli("queue", "configure", "q12", "--tenant-weight", text, code=2).err
    refused = cli("queue", "configure", "q12", "--tenant-weight", "ann=1001", code=1).err
    assert "QUEUE_CONFIG_INVALID" in refused
    assert "1001" in refused


def test_a_queue_gets_a_queue_for_its_dead_letters_at_the_first_try(cli: Cli) -> None:
    refused = cli("queue", "create", "q8", "--max-deliveries", 3, "--dead-letters", "q8-dead",
                  code=1).err  # fmt: skip
    assert "the queues q8 and q8-dead" in refused
    assert "q8-dead{q8}" in refused
    cli("queue", "create", "q8", "--dead-letters", "--max-deliveries", 3)
    shown = cli.json("queue", "show", "q8")["config"]
    assert (shown["max_deliveries"], shown["dead_letter_queue"]) == (3, "q8.dead{q8}")
    assert cli.json("queue", "show", "q8.dead{q8}")["config"]["max_deliveries"] == 0
    # With a tag of its own; and later, also where the other queue is there already.
    cli("queue", "create", "q9{t}", "--max-deliveries", 1, "--dead-letters")
    assert cli.json("queue", "show", "q9{t}")["config"]["dead_letter_queue"] == "q9.dead{t}"
    cli("queue", "create", "q10")
    cli("queue", "create", "q10.dead{q10}")
    cli("queue", "configure", "q10", "--max-deliveries", 2, "--dead-letters", "--ttl", "1h")
    assert cli.json("queue", "show", "q10")["config"]["dead_letter_queue"] == "q10.dead{q10}"
    assert "USAGE" in cli("queue", "create", "a}b", "--dead-letters", code=2).err
    need = cli("queue", "create", "q11", "--max-deliveries", 2, code=2).err
    assert "--max-deliveries needs --dead-letters" in need
