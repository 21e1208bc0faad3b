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
    SeriesData,
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
Series: Any = SeriesData


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
        (lambda c: c.ts.query("m", "v", 0, 1, aggregate="percentile"), "QUERY_INVALID"),
        (lambda c: c.ts.query("m", "v", 0, 1, aggregate="max", percentile=99), "QUERY_INVALID"),
        (lambda c: c.ts.query("m", "v", 0, 1, percentile=99), "QUERY_INVALID"),
        (lambda c: c.stream("s").group("g").rejoin(1, session_s=0.01), "MEMBER_SESSION_INVALID"),
    ],
)
def test_a_wrong_value_has_a_reason(client: Client, call: Call, reason: str) -> None:
    with pytest.raises(InvalidArgument) as failure:
        call(client)
    assert failure.value.reason == reason


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda c: c.kv.put("n", "v", expected_version=-3), "expected_version is -3; it must be 0"),
        (lambda c: c.kv.put("n", "v", ttl_s=-7), "ttl_s is -7; it must be 0 to 92233720368547"),
        (lambda c: c.kv.put("n", "v", ttl_s=math.nan), "ttl_s is nan; it must be"),
        (lambda c: c.kv.put("n", "v", lease=2**64),
         f"lease is {2**64}; it must be at most {2**64 - 1}"),
        (lambda c: c.kv.touch("n", 0), "ttl_s is 0; it must be above 0 seconds"),
        (lambda c: c.kv.increment("n", 2**63), f"by is {2**63}; it must be at most {2**63 - 1}"),
        (lambda c: c.kv.increment("n", -(2**70)),
         f"by is {-(2**70)}; it must be {-(2**63)} or more"),
        (lambda c: list(c.kv.scan(limit=10**12)),
         f"limit is {10**12}; it must be at most {2**32 - 1}"),
        (lambda c: c.kv.get("n", read=Read(min_index=-5)), "min_index of read is -5; it must be 0"),
        (lambda c: c.kv.get("n", read=Read(stale=True, max_staleness_s=0)),
         "max_staleness_s of read is 0; it must be above 0"),
        (lambda c: c.kv.json("d").get(("a", 2**31)), f"path[1] is {2**31}; it must be -{2**31} to"),
        (lambda c: c.kv.lease(0, key="n"), "ttl_s is 0; it must be above 0"),
        (lambda c: c.transact().put("n", "v", expected_version=-4), "expected_version is -4"),
        (lambda c: c.transact().put("n", "v", ttl_s=-1), "ttl_s is -1"),
        (lambda c: c.queue("q").lease(0), "count is 0; it must be 1 or more"),
        (lambda c: next(c.queue("q").consume(credit=0)), "credit is 0; it must be 1 or more"),
        (lambda c: next(c.queue("q").consume(credit=-2)), "credit is -2; it must be 0 or more"),
        (lambda c: c.queue("q").lease(1, visibility_s=0), "visibility_s is 0; it must be above 0"),
        (lambda c: c.queue("q").peek(0), "limit is 0; it must be 1 or more"),
        (lambda c: c.queue("q").enqueue("b", priority=-1), "priority is -1; it must be 0 or more"),
        (lambda c: c.queue("q").enqueue("b", delay_s=-1), "delay_s is -1; it must be 0 to"),
        (lambda c: c.queue("q").enqueue_many(["a", NewMessage("b", ttl_s=-2)]),
         "ttl_s of messages[1] is -2; it must be 0"),
        (lambda c: c.queue("q").cancel([5, -6]), "message_ids[1] is -6; it must be 0 or more"),
        (lambda c: c.queue("new").create(QueueConfig(visibility_s=0)),
         "visibility_s of config is 0;"),
        (lambda c: c.queue("new").create(QueueConfig(backoff_s=[1, -2])),
         "backoff_s of config[1] is -2"),
        (lambda c: c.stream("new").create(partitions=0), "partitions is 0; it must be 1 or more"),
        (lambda c: c.stream("s").append("v", partition=-1),
         "partition is -1; it must be 0 or more"),
        (lambda c: c.stream("s").trim(age_s=0), "age_s is 0; it must be above 0"),
        (lambda c: c.stream("s").trim(),
         "below_offset, age_s, keep_size or keep_count; 0 are given"),
        (lambda c: c.stream("s").group("g").join(session_s=0),
         "session_s is 0; it must be above 0"),
        (lambda c: c.stream("s").group("g").join(limit=0), "limit is 0; it must be 1 or more"),
        (lambda c: c.ts.query("m", "v", 0, 1, aggregate="mean", window_s=1e12),
         "window_s is 1000000000000.0; it must be 0 to 9223372036 seconds"),
        (lambda c: c.ts.query("m", "v", 0, 1, aggregate="median"),
         "mean, sum, count, min, max, first"),
        (lambda c: c.ts.write_many("m", [Series({}, [1], {"v": [1]}),
                                         Series({}, [1], {"v": ["x"]})]),
         "field v of series[1]: floats, integers of 64 bits or bools, not <U1: 'x' at position 0"),
        (lambda c: c.ts.write_many("m", [Series({"a": ""}, [1], {"v": [1]})]),
         "tag a of series[0] is empty"),
        (lambda c: c.admin.set_hold("h", indexes={0: -9}),
         "indexes[0] is -9; it must be 0 or more"),
    ],
)  # fmt: skip
def test_a_wrong_number_is_named_with_what_is_allowed(
    client: Client, call: Call, shown: str
) -> None:
    with pytest.raises(InvalidArgument) as failure:
        call(client)
    assert shown in failure.value.message
    assert shown in str(failure.value)


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda c: c.kv.put_many(iter([("a", "1"), 5])), "items[1] is 5 (int)"),
        (lambda c: c.kv.put_many(iter([("a", "1"), ("b", 5)])), "items[1][1] is 5 (int)"),
        (lambda c: c.kv.put_many(["ab"]), "items[0] is 'ab' (str)"),
        (lambda c: c.kv.put_many([b"ab"]), "items[0] is b'ab' (bytes)"),
        (lambda c: c.kv.put_many([("a", "1"), {"k": 1, "v": 2}]), "items[1] is {'k': 1, 'v': 2}"),
        (lambda c: c.kv.put_many([{"a", "b"}]), "items[0] is {"),
        (lambda c: c.kv.get_many(iter(["a", 5])), "keys[1] is 5 (int)"),
        (lambda c: c.queue("q").enqueue_many(iter(["a", "b", 5])), "messages[2] is 5 (int)"),
        (
            lambda c: c.queue("q").enqueue_many(iter(["a", NewMessage("b", priority=-1)])),
            "priority of messages[1] is -1",
        ),
        (lambda c: c.stream("s").append_many(iter(["a", 5])), "records[1] is 5 (int)"),
        (lambda c: c.ts.write_many("m", iter([5])), "series[0] is 5 (int)"),
        (
            lambda c: c.ts.write_many("m", iter([Series({"a": 5}, [1], {"v": [1]})])),
            "tags of series[0]['a'] is 5 (int)",
        ),
        (lambda c: c.transact().ack("q", iter([5, 6])), "messages[0] is 5 (int)"),
        (lambda c: c.transact().ack_records("s", "g", 1, iter([5])), "records[0] is 5 (int)"),
        (lambda c: c.stream("s").group("g").commit(iter([5])), "records[0] is 5 (int)"),
    ],
)
def test_an_element_is_named_also_if_an_iterator_gives_it(
    client: Client, call: Call, shown: str
) -> None:
    with pytest.raises(InvalidArgument) as failure:
        call(client)
    assert shown in failure.value.message


def test_an_iterator_s_own_error_stays_as_it_is(client: Client) -> None:
    def failing() -> Iterator[Any]:
        yield Series({}, [1], {"v": [1]})
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        client.ts.write_many("m", failing())


def test_the_refused_one_of_many_is_named(client: Client) -> None:
    with pytest.raises(InvalidArgument) as failure:
        client.queue("q").enqueue_many(["a", "b", NewMessage("c", priority=99), "d"])
    assert failure.value.reason == "PRIORITY_INVALID"
    assert failure.value.__notes__ == ["1 of 4 operations failed", "this one is messages[2]"]


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
