"""What commands say: the truth, in words that help whoever reads them."""

from pathlib import Path

import pytest

from onelog.cli.main import _report
from onelog.errors import InvalidArgument, Unavailable, Unimplemented
from onelog.node.public_errors import to_rpc_status
from onelog.status import error_of_status
from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from tests.node.membership.test_formation import SMALL, newcomer
from tests.onelog.cli.commands import Cli
from tests.system.nodes import nodes, until

STRANGER = "018f3c5e-0000-7000-8000-000000000004"


@pytest.mark.parametrize("stdin", [b"", b"\n# nothing\n"])
def test_points_that_are_none_are_a_mistake_even_without_a_server(cli: Cli, stdin: bytes) -> None:
    nobody = ("-e", "127.0.0.1:1")
    assert "no point" in cli("ts", "write", *nobody, stdin=stdin, code=2).err
    assert "no point" in cli("ts", "write", "", *nobody, code=2).err
    said = cli("ts", "import", "m", *nobody, code=1).err
    assert "the first line names the columns" in said
    # A file with a header and nothing else is one without points.
    assert cli("ts", "import", "m", stdin=b"time,v\n").out.startswith("0 values")


def test_a_range_that_ends_before_it_begins_is_said_to(cli: Cli) -> None:
    said = cli("ts", "query", "m", "v", "--from", "now", "--to", "now-1h", code=2).err
    assert "ends before it begins" in said


def test_a_single_operation_that_fails_is_not_counted(cli: Cli) -> None:
    said = cli("queue", "enqueue", "nobody", "x", code=3).err
    assert "operations failed" not in said
    said = cli("queue", "enqueue", "nobody", "--lines", stdin=b"1\n2\n", code=3).err
    assert "2 of 2 operations failed" in said


def test_what_cannot_be_a_number_is_said_in_plain_words(cli: Cli) -> None:
    for value, said in (("x", "this is no whole number"), ("-1", "it must be at least 0")):
        assert said in cli("kv", "list", "--limit", value, code=2).err
    assert "this is no whole number" in cli("kv", "increment", "n", "--by", "1.5", code=2).err
    assert "this is no number" in cli("cluster", "down", "--stop-within", "x", code=2).err
    assert "it must be from 0 to 15" in cli("queue", "prioritise", "q", "16", "1", code=2).err


def test_a_bench_takes_no_namespace(cli: Cli) -> None:
    assert "--namespace" in cli("bench", "put", "--namespace", "shop", code=2).err


def test_members_are_not_made_what_they_are_and_strangers_not_removed(cli: Cli) -> None:
    (voter,) = cli("admin", "members", "list", "--ids").out.split()
    said = cli("admin", "members", "add", voter, "127.0.0.1:7401", code=4).err
    assert said.startswith("error: ALREADY_A_VOTER: ")
    said = cli("admin", "members", "remove", STRANGER, code=3).err
    assert said.startswith("error: MEMBER_UNKNOWN: ")
    for port in ("99999", "0", "x"):
        said = cli("admin", "members", "add", STRANGER, f"127.0.0.1:{port}", code=1).err
        assert said.startswith("error: ADDRESS_INVALID: ")


def test_a_node_is_added_and_removed_as_a_learner(cli: Cli) -> None:
    said = cli("admin", "members", "add", STRANGER, "127.0.0.1:1", "--name", "late").out
    assert said == f"{STRANGER} is a learner now\n"
    assert STRANGER in cli("admin", "members", "list", "--ids").out
    promoted = cli("admin", "members", "promote", STRANGER, "--timeout", "1s", code=None)
    assert promoted.code, "it has never said a word"
    assert cli("admin", "members", "remove", STRANGER).out == f"{STRANGER} is no member any more\n"
    assert STRANGER not in cli("admin", "members", "list", "--ids").out


def test_a_node_that_has_joined_is_promoted(cli: Cli, tmp_path: Path) -> None:
    """From ``serve --join`` to a voter, by the commands that docs/server.md names."""
    with nodes(tmp_path, "n1", **SMALL) as cluster:
        founder = cluster["n1"].start()
        founder.until_ready()
        joining = newcomer(tmp_path, "n2", founder).start()
        try:
            joining.until_report(stage="electing")
            at = ("-e", founder.flags["listen"])
            node_id = str(read_node(DiskFiles(), joining.directory / "data").node_id)
            peer = joining.flags["peer-listen"]
            cli("admin", "members", "add", node_id, peer, "--name", "n2", *at)
            promote = ("admin", "members", "promote", node_id, *at)
            # Until it has caught up it is refused.
            promoted = until(lambda: None if (ran := cli(*promote, code=None)).code else ran)
            assert promoted.out == f"{node_id} votes now\n"
            rows = [row for row in cli("admin", "members", "list", *at).rows if node_id in row]
            assert [row[-1] for row in rows] == ["voter"] * int(SMALL["shards"])
            joining.until_ready()
        finally:
            joining.kill()


def test_a_server_that_does_not_know_a_call_may_be_a_port_for_peers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert _report(Unimplemented("Method not found!")) == 1
    assert "not a port for peers?" in capsys.readouterr().err
    assert _report(InvalidArgument("no")) == 1
    assert "peers" not in capsys.readouterr().err


def test_a_reason_is_not_said_twice() -> None:
    refused = Unavailable("STARTING: this node is recovering", reason="STARTING")
    assert str(error_of_status(to_rpc_status(refused))) == "STARTING: this node is recovering"
