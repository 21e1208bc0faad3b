"""A wrong argument is an error of the API that names the argument, before anything is sent."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from onelog import (
    AsyncClient,
    Client,
    ClientOptions,
    NewMessage,
    NewRecord,
    QueueConfig,
    Read,
    Rule,
    Watched,
)
from onelog.errors import FailedPrecondition, InvalidArgument
from tests.onelog.client.serving import serving


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    directory = tmp_path_factory.mktemp("data")
    with serving(directory) as endpoint, Client(endpoint, timeout_s=60) as client:
        client.queue("q").create()
        client.stream("s").create()
        yield client


Call = Callable[[Any], Any]  # of a client; what it is given is wrong on purpose


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda c: c.kv.put("n", 5), "value is 5 (int); it must be str or bytes"),
        (lambda c: c.kv.put(5, "n"), "key is 5 (int)"),
        (lambda c: c.kv.put("n", "v", ttl_s="5"), "ttl_s is '5' (str)"),
        (lambda c: c.kv.put("n", "v", expected_version="5"), "expected_version is '5' (str)"),
        (lambda c: c.kv.get(None), "key is None (NoneType)"),
        (lambda c: c.kv.get("n", read="stale"), "read is 'stale' (str); it must be Read or None"),
        (lambda c: c.kv.put_many([("a", "b"), ("c", 7)]), "items[1][1] is 7 (int)"),
        (lambda c: c.kv.put_many("text"), "items is 'text' (str)"),
        (lambda c: c.kv.get_many("text"), "keys is 'text' (str); it must be iterable"),
        (lambda c: c.kv.increment("n", 1.5), "by is 1.5 (float); it must be an integer"),
        (lambda c: list(c.kv.scan(limit="10")), "limit is '10' (str)"),
        (lambda c: list(c.kv.scan(reverse="no")), "reverse is 'no' (str); it must be True or"),
        (lambda c: c.kv.txn().then.put("k", None), "value is None"),
        (lambda c: c.transact().put("k", None), "value is None"),
        (lambda c: c.transact().increment("k", "1"), "by is '1' (str)"),
        (lambda c: c.queue(5), "name is 5 (int); it must be str"),
        (lambda c: c.queue("q").enqueue({}), "body is {} (dict)"),
        (lambda c: c.queue("q").enqueue("b", priority="high"), "priority is 'high' (str)"),
        (lambda c: c.queue("q").enqueue("b", headers={"a": 1}), "headers['a'] is 1 (int)"),
        (lambda c: c.queue("q").enqueue("b", headers={1: "a"}), "a key of headers is 1 (int)"),
        (lambda c: c.queue("q").enqueue_many("abc"), "messages is 'abc' (str)"),
        (lambda c: c.queue("q").enqueue_many(["a", 5]), "messages[1] is 5 (int)"),
        (
            lambda c: c.queue("q").enqueue_many([NewMessage("a", priority="x")]),  # type: ignore[arg-type]
            "priority of messages[0] is 'x' (str)",
        ),
        (lambda c: c.queue("q").lease("3"), "count is '3' (str)"),
        (lambda c: c.queue("q").ack("message"), "message is 'message' (str); it must be Message"),
        (lambda c: c.queue("q").ack_many(["x"]), "messages[0] is 'x' (str)"),
        (lambda c: c.stream("s").append("v", tag=5), "tag is 5 (int)"),
        (lambda c: c.stream("s").append("v", producer=7), "producer is 7 (int)"),
        (
            lambda c: c.stream("s").append_many([NewRecord("v", key=1)]),  # type: ignore[arg-type]
            "key of records[0] is 1 (int)",
        ),
        (lambda c: c.ts.write("m", 1, 5), "fields is 5 (int); it must be a mapping"),
        (lambda c: c.ts.write("m", 1, {"v": 1}, tags={"a": 5}), "tags['a'] is 5 (int)"),
        (lambda c: c.ts.query("m", "v", 0, 1, group_by="host"), "group_by is 'host' (str)"),
        (lambda c: c.ts.query("m", "v", 0, 1, where={"a": 1}), "where['a'] is 1 (int)"),
        (lambda c: c.watch("kv"), "watched is 'kv' (str); it must be Watched"),
        (lambda c: c.admin.take_snapshot("0"), "shard is '0' (str)"),
        (lambda c: QueueConfig(max_deliveries="x"), "max_deliveries of QueueConfig is 'x'"),  # type: ignore[arg-type]
        (lambda c: Read(min_index=1.5), "min_index of Read is 1.5 (float)"),  # type: ignore[arg-type]
        (lambda c: ClientOptions(timeout_s="5"), "timeout_s of ClientOptions is '5'"),  # type: ignore[arg-type]
        (lambda c: c.scoped(timeout_s="5"), "timeout_s is '5' (str)"),
        (lambda c: Client(5), "endpoints is 5 (int)"),  # type: ignore[arg-type]
        (lambda c: AsyncClient(tls="ca.pem"), "tls is 'ca.pem' (str)"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_type_is_named_with_its_argument(client: Client, call: Call, shown: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        call(client)
    assert failure.value.reason == "TYPE_INVALID"
    assert shown in failure.value.message


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda c: c.kv.put("n", "v", ttl_s=0), "DURATION_INVALID"),
        (lambda c: c.kv.put_many({"n": "v"}, ttl_s=0), "DURATION_INVALID"),
        (lambda c: c.kv.touch("n", 0), "DURATION_INVALID"),
        (lambda c: c.kv.put("n", "v", ttl_s=math.nan), "DURATION_INVALID"),
        (lambda c: c.kv.put("n", "\ud800"), "TEXT_INVALID"),
        (lambda c: c.kv.increment("n", 2**63), "NUMBER_INVALID"),
        (lambda c: c.kv.json("d").set((), {1: "one"}), "JSON_INVALID"),
        (lambda c: c.kv.json("d").set((), math.nan), "JSON_INVALID"),
        (lambda c: c.kv.json("d").set((), b"bytes"), "JSON_INVALID"),
        (lambda c: c.ts.query("m", "v", 0, 1, aggregate="average"), "AGGREGATE_INVALID"),
        (lambda c: c.ts.query("m", "v", 0, 1, window_s=math.inf), "DURATION_INVALID"),
        (lambda c: c.ts.query("m", "v", 1_800_000_000, "now"), "TIME_INVALID"),
        (lambda c: c.ts.query("m", "v", "now-1h", 1_800_000_000_000), "TIME_INVALID"),
        (lambda c: c.ts.query("m", "v", 1.8e9, "now"), "TIME_INVALID"),
        (lambda c: c.ts.query("m", "v", "yesterday", "now"), "TIME_INVALID"),
        (lambda c: c.ts.query("m", "v", "2026-01-01", "now"), "TIME_INVALID"),
        (lambda c: c.ts.query("m", "v", np.datetime64("NaT"), "now"), "TIME_INVALID"),
        (lambda c: c.queue("q").enqueue("b", at_ns=1_800_000_000), "TIME_INVALID"),
        (lambda c: c.queue("q").purge(before_ns=1_800_000_000_000), "TIME_INVALID"),
        (lambda c: list(c.stream("s").read(from_ns=1_800_000_000)), "TIME_INVALID"),
        (lambda c: c.scoped(durability="fast"), "OPTION_INVALID"),
        (lambda c: c.scoped(timeout_s=0), "OPTION_INVALID"),
        (lambda c: c.scoped(timeout_s=math.nan), "OPTION_INVALID"),
        (lambda c: ClientOptions(batch_operations_max=0), "OPTION_INVALID"),
        (lambda c: Watched("table"), "MODEL_INVALID"),  # type: ignore[arg-type]
        (lambda c: c.ts.set_rule("m", Rule("r", 1, ["average"], "t")), "AGGREGATE_INVALID"),  # type: ignore[list-item]
        (lambda c: c.queue("q").worker(print, concurrency=0), "WORKER_INVALID"),
    ],
)
def test_a_wrong_value_has_a_reason(client: Client, call: Call, reason: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        call(client)
    assert failure.value.reason == reason


def test_what_a_batch_refuses_is_not_in_it(client: Client) -> None:
    batch = client.transact().put("kept{b}", "1")
    wrongs: list[Callable[[], Any]] = [
        lambda: batch.put("lost{b}", "1", expected_version=-1),
        lambda: batch.put("lost{b}", "1", ttl_s=-1),
        lambda: batch.increment("lost{b}", 2**63),
        lambda: batch.when("kept{b}", exists=True, version=1),
        lambda: batch.enqueue("q", 5),  # type: ignore[arg-type]
    ]
    for wrong in wrongs:
        with pytest.raises(InvalidArgument):
            wrong()
    batch.commit()
    assert batch.results == [None]
    assert client.kv.get("lost{b}") is None
    for add in (batch.delete, batch.increment):
        with pytest.raises(FailedPrecondition) as failure:
            add("kept{b}")
        assert failure.value.reason == "COMMITTED"
    txn = client.kv.txn().when("kept{b}", exists=True)
    with pytest.raises(InvalidArgument):
        txn.then.put("lost{b}", "1", expected_version=-1)
    txn.then.get("kept{b}")
    assert [item.value for item in txn.commit().results] == [b"1"]  # type: ignore[union-attr]


def test_an_object_that_holds_a_lock_does_not_acquire_it_again(client: Client) -> None:
    with client.kv.lock("l") as lock:
        with pytest.raises(FailedPrecondition) as failure:
            lock.acquire()
        assert failure.value.reason == "LOCK_HELD"
