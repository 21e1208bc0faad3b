"""Durability of a scope: a write is as the scope says, or refused, and never silently another."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onelog import Client, NewMessage
from onelog.client.values import Producer
from onelog.errors import InvalidArgument
from tests.onelog.client.serving import serving

NEEDS_RESULT: dict[str, Callable[[Client], Any]] = {
    "a put with a version": lambda c: c.kv.put("v{x}", "1", expected_version=0),
    "a put with a lease": lambda c: c.kv.put("k{x}", "1", lease=c.kv.lease(600, key="k{x}")),
    "delete": lambda c: c.kv.delete("k{x}"),
    "delete_range": lambda c: c.kv.delete_range("none:"),
    "touch": lambda c: c.kv.touch("kept{x}", 600),
    "increment": lambda c: c.kv.increment("n{x}"),
    "lower_to": lambda c: c.kv.lower_to("n{x}", 3),
    "raise_to": lambda c: c.kv.raise_to("n{x}", 1),
    "append": lambda c: c.kv.append("a{x}", "1"),
    "set of a document": lambda c: c.kv.json("d{x}").set((), {"a": 1}),
    "delete in a document": lambda c: c.kv.json("kept.json{x}").delete(("a",)),
    "transaction": lambda c: c.kv.txn().when("kept{x}", exists=True).commit(),
    "batch": lambda c: c.transact().put("b{x}", "1").commit(),
    "enqueue with a dedup id": lambda c: c.queue("q{x}").enqueue("1", dedup_id="1"),
    "many with a dedup id": lambda c: c.queue("q{x}").enqueue_many([NewMessage("1", dedup_id="2")]),
    "append of a producer": lambda c: c.stream("s{x}").append("1", producer=Producer(1, 1, 1)),
    "delete of points": lambda c: c.ts.delete("m{x}"),
}
CAN_BE_EARLY: dict[str, Callable[[Client], Any]] = {
    "put": lambda c: c.kv.put("p{x}", "1"),
    "put with a lifetime": lambda c: c.kv.put("p{x}", "1", ttl_s=600),
    "put_many": lambda c: c.kv.put_many({"p{x}": "1", "q{x}": "2"}),
    "enqueue": lambda c: c.queue("q{x}").enqueue("1"),
    "enqueue with options": lambda c: c.queue("q{x}").enqueue("1", priority=1, delay_s=600),
    "enqueue_many": lambda c: c.queue("q{x}").enqueue_many(["1", NewMessage("2", group="g")]),
    "append": lambda c: c.stream("s{x}").append("1"),
    "append with options": lambda c: c.stream("s{x}").append("1", key="k", tag="t"),
    "append_many": lambda c: c.stream("s{x}").append_many(["1", "2"]),
    "write": lambda c: c.ts.write("m{x}", 1, {"v": 1.5}),
}
CONTROL: dict[str, Callable[[Client], Any]] = {
    "create": lambda c: c.queue("q{x}").create(exist_ok=True),
    "lease and ack": lambda c: c.queue("q{x}").ack_many(c.queue("q{x}").lease()),
    "lock": lambda c: c.kv.lock("l{x}").acquire(),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("data")
    with serving(directory) as endpoint, Client(endpoint, timeout_s=60) as client:
        client.kv.put("kept{x}", "1")
        client.kv.put("kept.json{x}", '{"a":1}')
        client.queue("q{x}").create()
        client.stream("s{x}").create()
        client.ts.write("m{x}", 1, {"v": 1.5})
        yield client


@pytest.mark.parametrize("name", NEEDS_RESULT)
def test_a_write_that_cannot_be_async_is_refused_in_an_async_scope(
    client: Client, name: str
) -> None:
    with pytest.raises(InvalidArgument) as failure:
        NEEDS_RESULT[name](client.scoped(durability="async"))
    assert failure.value.reason == "ASYNC_NEEDS_RESULT"
    assert "prefer-async" in failure.value.message
    NEEDS_RESULT[name](client.scoped(durability="prefer-async"))


@pytest.mark.parametrize("durability", ["async", "prefer-async"])
@pytest.mark.parametrize("name", CAN_BE_EARLY)
def test_a_write_that_can_be_async_is(
    client: Client, name: str, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the lanes without a session: the others are never asked."""
    lanes = client._core._connection._write_lanes
    for lane in lanes:
        assert lane._has_session
    view = client.scoped(durability=durability)
    before = {lane.shard: session_sequence(client, lane.shard) for lane in lanes}
    CAN_BE_EARLY[name](view)
    assert {lane.shard: session_sequence(client, lane.shard) for lane in lanes} == before


def session_sequence(client: Client, shard: int) -> int:
    session = client._core._connection.sessions.get(shard)
    return 0 if session is None else session._next


@pytest.mark.parametrize("name", CONTROL)
def test_leases_settling_and_settings_are_sync_in_every_scope(client: Client, name: str) -> None:
    CONTROL[name](client.scoped(durability="async"))
