"""Clients that mean harm, against a real node: each is answered as said, and others go on.

The attackers are processes of their own (tests/attacks/clients.py). An innocent client puts and
gets all the time on its own connection, and none of its calls may fail. Nothing here depends on how
fast the machine is; tests/attacks/measure.py measures what the innocent client notices.
"""

import asyncio
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.clients import (
    FLOODS,
    HALF_OPEN_STREAMS,
    IDLE_STREAMS,
    LARGE_BYTES,
    LARGE_KEY,
    LEAVING,
    call_in_two_parts,
)
from tests.attacks.measure import ATTACKS
from tests.onelog.wire.frames import (
    COMPRESSION_ERROR,
    ENHANCE_YOUR_CALM,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
)
from tests.system.certificates import authority, signed
from tests.system.innocent import Busy, Innocent
from tests.system.leaders import leaders_of
from tests.system.nodes import ServeProcess, get, nodes, until
from tests.system.processes import ROOT

ATTACK_S = 0.8
ATTACK_S_MAX = 300.0  # of one that ends when it is answered, which a busy machine puts off
# One connection may hold 64 MiB on its way in, as much on its way out, and a window of 8 MiB.
GROWTH_MIB_MAX = 300
# Of the four connections that attack below, with a limit of 64 MiB for all of them.
ROUNDS_MAX = 10
CROWD_GROWTH_MIB_MAX = 160
# And of four that are held back: each has answers of 8 MiB and one more.
HELD_GROWTH_MIB_MAX = 80
# A follower has 64 MiB of answers, and 512 calls on six connections to the leader, each of which
# may bring 72 MiB before the follower reads no more.
FORWARDER_GROWTH_MIB_MAX = 600
OTHER_LINES = 3
IMPOSTOR = "a client poses as the leader"
RESOURCE_EXHAUSTED, INVALID_ARGUMENT, UNIMPLEMENTED = "8", "3", "12"
# Files that a node needs beside its connections, and this process, too.
OTHER_FILES = 500
HANDSHAKES = 300
# Nine processes share this machine with other tests: a leader that waits for a core must not be
# deposed, since a call that was under way then fails for a reason that no attacker has caused.
PATIENT = {
    "raft_election_s_min": "3",
    "raft_election_s_max": "5",
    "raft_leader_silence_s_max": "10",
}

# What ends the connection, and with which code.
SENT_AWAY = {
    "rapid reset": ENHANCE_YOUR_CALM,
    "rapid reset of headers": ENHANCE_YOUR_CALM,
    "continuations": ENHANCE_YOUR_CALM,
    "empty continuations": ENHANCE_YOUR_CALM,
    "a bomb of HPACK": ENHANCE_YOUR_CALM,
    "a table beyond the limit": COMPRESSION_ERROR,
    "tables that change": COMPRESSION_ERROR,
    "settings": ENHANCE_YOUR_CALM,
    "pings": ENHANCE_YOUR_CALM,
    "empty frames": ENHANCE_YOUR_CALM,
    "padding": ENHANCE_YOUR_CALM,
    "priorities": ENHANCE_YOUR_CALM,
    # The calls that are within the limits are held back; then it has more than it may.
    "zero windows": ENHANCE_YOUR_CALM,
    "header lists beyond the limit": ENHANCE_YOUR_CALM,
    "half-open calls": ENHANCE_YOUR_CALM,
    "bombs of gzip": ENHANCE_YOUR_CALM,
    "bombs of gzip as large as is allowed": ENHANCE_YOUR_CALM,
    "bombs of gzip that lie about it": ENHANCE_YOUR_CALM,
    "fields by reference": ENHANCE_YOUR_CALM,
    "garbage": PROTOCOL_ERROR,
    "http/1.1": PROTOCOL_ERROR,
}
# What is answered call by call, or held back, and the answers that must be among those that came.
HELD_BACK: dict[str, dict[str, str]] = {
    "windows in drops": {},
    "a reader that reads nothing": {},
    "calls without waiting": {"statuses": INVALID_ARGUMENT},
    "methods that nobody has": {"statuses": UNIMPLEMENTED},
    "questions of one byte": {},
    "questions with long answers": {},
    "questions whose answers nobody reads": {},
    "empty messages of a pipeline": {},
    "half messages": {"statuses": RESOURCE_EXHAUSTED},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServeProcess]:
    crowd = {"limits_connections_per_address_max": "16384"}
    with nodes(tmp_path_factory.mktemp("attacked"), "a", **crowd) as made:
        found = made["a"].start()
        found.until_ready()
        client = Innocent(found.flags["listen"])
        client.put(LARGE_KEY, bytes(LARGE_BYTES))
        client.close()
        yield found


def started(node: ServeProcess, name: str, **how: float) -> "subprocess.Popen[str]":
    flags = [part for key, value in how.items() for part in (f"--{key}", str(value))]
    if name in SENT_AWAY:
        flags.append("--until-goaway")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.clients", name, node.flags["listen"], *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def attack(
    node: ServeProcess,
    name: str,
    *,
    count: int = 1,
    growth_mib_max: float = GROWTH_MIB_MAX,
    trusted: Path | None = None,
    **how: float,
) -> list[dict[str, Any]]:
    """Attack beside an innocent client; return what attackers say once all bounds have held."""
    before_mib, lines, begin_s = node.rss_mib, len(node.output.splitlines()), time.monotonic()
    largest_mib = before_mib
    with Busy(node.flags["listen"], trusted) as innocent:
        attackers = [started(node, name, **how) for _ in range(count)]
        while any(each.poll() is None for each in attackers):
            largest_mib = max(largest_mib, node.rss_mib)
            time.sleep(0.01)
        said = [each.communicate()[0] for each in attackers]
    assert node.is_running, node.output[-3000:]
    assert innocent.failure is None, innocent.failure
    assert innocent.durations_s
    assert largest_mib - before_mib <= growth_mib_max
    more = node.output.splitlines()[lines:]
    assert len(more) <= time.monotonic() - begin_s + OTHER_LINES, more[:10]
    assert not [line for line in more if "Traceback" in line]
    return [json.loads(each.splitlines()[-1]) for each in said]


def test_every_flood_has_an_answer_here() -> None:
    """Or one could be added that nobody tries against a node."""
    assert FLOODS.keys() == SENT_AWAY.keys() | HELD_BACK.keys()


def test_the_document_has_the_figures_of_every_attack() -> None:
    """In one table, of which measure.py prints the rows; there no call failed, and no node."""
    lines = (ROOT / "docs" / "security.md").read_text().splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| attack |"))
    names = [each.strip() for each in lines[begin].strip("|").split("|")]
    rows = {}
    for line in takewhile(lambda each: each.startswith("|"), lines[begin + 2 :]):
        row = dict(zip(names, (each.strip() for each in line.strip("|").split("|")), strict=True))
        rows[row["attack"]] = row
    assert rows.keys() == {*ATTACKS, IMPOSTOR}
    for name, row in rows.items():
        assert row["crashes"] == row["failed calls"] == "0", name


@pytest.mark.parametrize("name", SENT_AWAY)
def test_a_client_that_breaks_a_rule_is_sent_away_and_others_go_on(
    name: str, node: ServeProcess
) -> None:
    """Each ends its own connection with the code of its limit."""
    (found,) = attack(node, name, times=1000, seconds=ATTACK_S_MAX)
    assert found["goaways"].keys() == {str(SENT_AWAY[name])}, found
    if name == "half-open calls":
        assert found["resets"].keys() == {str(REFUSED_STREAM)}, found


@pytest.mark.parametrize("name", HELD_BACK)
def test_a_client_that_takes_all_that_is_allowed_keeps_nobody_else_waiting_forever(
    name: str, node: ServeProcess
) -> None:
    """Calls that are within the rules are answered or held back, with bounded memory."""
    for number in range(1, ROUNDS_MAX + 1):  # longer ones, if the machine is too busy to answer
        (found,) = attack(node, name, seconds=ATTACK_S * number)
        assert not found["goaways"].keys() - {str(ENHANCE_YOUR_CALM)}, found
        if all(answer in found[where] for where, answer in HELD_BACK[name].items()):
            break
    else:
        pytest.fail(f"it is not answered as said: {found}")


@pytest.fixture
def small_node(tmp_path: Path) -> Iterator[ServeProcess]:
    """A node of which all connections together may hold 64 MiB."""
    with nodes(tmp_path, "a", limits_in_flight_bytes_max="16MiB") as made:
        found = made["a"].start()
        found.until_ready()
        client = Innocent(found.flags["listen"])
        client.put(LARGE_KEY, bytes(LARGE_BYTES))
        client.close()
        yield found


def test_all_connections_together_hold_no_more_than_is_allowed(small_node: ServeProcess) -> None:
    """A limit for each connection is none for a thousand of them."""
    # How much they hold depends on how fast they are, and of all lines about bad peers the log has
    # one a second: what matters is said sooner or later.
    closed, name = 0, "half messages"
    for _ in range(ROUNDS_MAX):
        found = attack(small_node, name, count=4, growth_mib_max=CROWD_GROWTH_MIB_MAX, seconds=2.0)
        closed += sum(each["closed"] for each in found)
        if closed and small_node.logged("is sent away, which holds"):
            break
    else:
        pytest.fail(f"nobody was sent away, {closed} connections were closed")


@pytest.mark.parametrize("name", ["a reader that reads nothing", "zero windows"])
def test_readers_that_read_nothing_are_held_back_long_before_a_limit(
    name: str, small_node: ServeProcess
) -> None:
    """A node alone answers in the read that brings a call, and begins none that nobody awaits.

    So a crowd that reads nothing holds little, and nobody has to be sent away for it. What happens
    where calls wait, and hundreds are under way by then, is in tests/node/edge/test_api_server.py.
    """
    found = attack(small_node, name, count=4, growth_mib_max=HELD_GROWTH_MIB_MAX, seconds=2.0)
    assert not small_node.logged("is sent away, which holds")
    if name == "a reader that reads nothing":  # the others go on to what they may not
        assert not any(each["closed"] for each in found), found


def test_idle_connections_cost_little_memory(node: ServeProcess) -> None:
    """10,000 of them, or as many as this process may have files."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(10_000, allowed - OTHER_FILES)
    (found,) = attack(node, "idle connections", times=wanted, seconds=0.1)
    assert found["connections"] == wanted
    assert not found["closed"]


def test_idle_streams_of_a_few_connections_keep_nobody_out(tmp_path: Path) -> None:
    """They are all calls that there may be, and the client that calls now has none of them."""
    with nodes(tmp_path, "a", limits_concurrent_rpcs_max="512") as made:
        node = made["a"].start()
        node.until_ready()
        for _ in range(ROUNDS_MAX):
            attack(node, IDLE_STREAMS, times=4, seconds=2.0)
            _, metrics = get(node.http, "/metrics")
            if b'onelog_rpc_refused_total{reason="TOO_MANY_CALLS"}' in metrics:
                break
        else:
            pytest.fail("the streams were not all calls that there may be")
        until(lambda: find_refused(node, "OUTCOME_UNKNOWN"))


def test_half_open_calls_of_a_few_connections_keep_nobody_out(tmp_path: Path) -> None:
    """They are all that may wait for their request; one whose request comes apart waits, too."""
    with nodes(tmp_path, "a", limits_concurrent_rpcs_max="512") as made:
        node = made["a"].start()
        node.until_ready()
        attacker = started(node, HALF_OPEN_STREAMS, times=4, seconds=ATTACK_S_MAX)
        try:
            # A connection may have 256 calls, of which half may wait; the others are refused.
            until(lambda: find_refused(node, "TOO_MANY_REQUESTS") >= 512)
            assert call_in_two_parts(find_address(node)) == "0"
            assert attacker.poll() is None
        finally:
            attacker.kill()
            attacker.communicate()


def find_refused(node: ServeProcess, reason: str) -> float:
    """Return how many calls were refused for a reason."""
    mark = f'onelog_rpc_refused_total{{reason="{reason}"}} '.encode()
    _, metrics = get(node.http, "/metrics")
    return next((float(line[len(mark) :]) for line in metrics.splitlines() if mark in line), 0.0)


def find_address(node: ServeProcess) -> tuple[str, int]:
    host, port = node.flags["listen"].rsplit(":", 1)
    return host, int(port)


def test_connections_that_leave_at_once_leave_nothing_behind(node: ServeProcess) -> None:
    (found,) = attack(node, LEAVING, times=2000, seconds=ATTACK_S_MAX)
    assert found["connections"] == 2000


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates")
def test_handshakes_that_never_end_are_ended_and_keep_nobody_out(tmp_path: Path) -> None:
    """Each counts as a connection: without an end they would become all that there may be."""
    trusted = authority(tmp_path, "authority")
    own = signed(tmp_path, "node", trusted)
    with nodes(tmp_path, "a") as made:
        node = made["a"]
        node.flags |= {"tls-cert": str(own.chain), "tls-key": str(own.key)}
        node.start().until_ready()
        name, seconds = "handshakes that never end", ATTACK_S_MAX
        found = attack(node, name, trusted=trusted.chain, times=HANDSHAKES, seconds=seconds)
        assert found[0]["closed"] == HANDSHAKES


@pytest.mark.parametrize("name", ["a reader that reads nothing", "zero windows", IDLE_STREAMS])
def test_clients_of_a_follower_are_spared_what_another_client_of_it_does(
    name: str, tmp_path: Path
) -> None:
    """Their calls reach the leader on the same connections as the attacker's."""
    limits = {"limits_in_flight_bytes_max": "16MiB", "limits_concurrent_rpcs_max": "512"}
    with nodes(tmp_path, "a", "b", "c", shards="1", **limits, **PATIENT) as made:
        for each in made.values():
            each.start()
        for each in made.values():
            each.until_ready()
        leader = asyncio.run(find_leader(list(made.values())))
        follower = next(each for each in made.values() if each is not leader)
        client = Innocent(follower.flags["listen"])
        client.put(LARGE_KEY, bytes(LARGE_BYTES))
        client.close()
        before_mib = leader.rss_mib
        how = {"times": 4} if name == IDLE_STREAMS else {"count": 4}
        attack(follower, name, growth_mib_max=FORWARDER_GROWTH_MIB_MAX, seconds=3.0, **how)  # type: ignore[arg-type]
        assert leader.is_running
        assert leader.rss_mib - before_mib <= GROWTH_MIB_MAX
        assert "Traceback" not in leader.output


async def find_leader(processes: list[ServeProcess]) -> ServeProcess:
    async with leaders_of(processes) as leaders:
        return (await leaders.of(0)).process
