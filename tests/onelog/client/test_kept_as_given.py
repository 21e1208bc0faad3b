"""What is read back equals what was given, or an error said why: every method that takes data.

The server is a real one. Arguments are drawn from what is valid, what is just beyond, and what is
nonsense. A call either raises an error of the API, or what it wrote comes back as it was given.
"""

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onelog import (
    AsyncClient,
    Client,
    GroupConfig,
    MeasurementConfig,
    NewMessage,
    NewRecord,
    OnelogError,
    QueueConfig,
    Retention,
    Rule,
    SeriesData,
)
from tests.onelog.client.serving import serving

# A test shares one server and one set of names with all of its examples.
fuzz = settings(
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
_numbers = count()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("data")) as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            client.kv.put("ready", "")
        yield endpoint


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint, timeout_s=60) as client:
        yield client


def fresh(prefix: str) -> str:
    return f"{prefix}{next(_numbers)}"


def attempt(call: Callable[[], Any]) -> tuple[Any, bool]:
    """Return what a call returned, and whether it took the arguments."""
    try:
        return call(), True
    except OnelogError as error:
        check_explained(error)
        return None, False


def check_explained(error: OnelogError) -> None:
    assert error.reason
    assert error.message
    if error.reason in ("NUMBER_INVALID", "DURATION_INVALID"):
        assert not error.message.startswith("a number is"), "no argument is named"


def plain(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


# Values

data = st.one_of(
    st.binary(max_size=50),
    st.text(st.characters(), max_size=20),  # with surrogates, which are no UTF-8
    st.binary(max_size=20).map(bytearray),
    st.binary(max_size=20).map(lambda found: memoryview(found)),
    st.sampled_from([b"", "", b"\0", "é"]),
    st.sampled_from([None, 5, 1.5, ["a"], {"a": 1}, object(), Decimal(1)]),
)
names = st.one_of(st.text(max_size=10), st.sampled_from(["", "x" * 200, "a\0b", "\ud800", 5, None]))
headers = st.one_of(
    st.dictionaries(names, data, max_size=3), st.sampled_from([None, [], "text", {"a": None}])
)
seconds = st.one_of(
    st.floats(0.001, 1e6),
    st.sampled_from([0, 0.0, -1, 1e300, math.nan, math.inf, "5", None, True, 10**30]),
)
integers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(0, 20),
    st.sampled_from([None, 1.5, "1", True, 2**63, 2**64, -1, np.int64(7)]),
)


@fuzz
@given(key=data, value=data, lifetime=seconds, expected=integers)
def test_a_key_and_its_value(
    client: Client, key: Any, value: Any, lifetime: Any, expected: Any
) -> None:
    version, taken = attempt(lambda: client.kv.put(key, value))
    if taken:
        item = client.kv.get(key)
        assert item is not None
        assert (item.key, item.value, item.version) == (plain(key), plain(value), version)
        assert item.expires_ns == 0
        appended, _ = attempt(lambda: client.kv.append(key, value))
        if appended is not None:
            item = client.kv.get(key)
            assert item is not None
            assert item.value == 2 * plain(value)
    _, taken = attempt(lambda: client.kv.put(key, value, ttl_s=lifetime, expected_version=expected))
    if taken:
        item = client.kv.get(key)
        if lifetime is None:
            assert item is not None
            assert item.expires_ns == 0
        elif lifetime > 60:
            assert item is not None
            assert item.expires_ns > 0


@fuzz
@given(items=st.one_of(st.lists(st.tuples(data, data), max_size=5), data, st.none()))
def test_many_keys(client: Client, items: Any) -> None:
    versions, taken = attempt(lambda: client.kv.put_many(items))
    if taken:
        last = {plain(key): plain(value) for key, value in items}
        found = client.kv.get_many([key for key, _ in items])
        assert len(versions) == len(items)
        for (key, _), item in zip(items, found, strict=True):
            assert item is not None
            assert (item.key, item.value) == (plain(key), last[plain(key)])


@fuzz
@given(start=integers, by=integers)
def test_a_number(client: Client, start: Any, by: Any) -> None:
    key = fresh("number")
    first, taken = attempt(lambda: client.kv.increment(key, start))
    if taken:
        assert first == start
        second, taken = attempt(lambda: client.kv.increment(key, by))
        if taken:
            assert second == int(start) + int(by)
        lowered, taken = attempt(lambda: client.kv.lower_to(key, by))
        if taken:
            assert lowered <= by


documents = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(), st.text(max_size=10),
        st.sampled_from(["\ud800", b"bytes", object(), 10**400, -0.0]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=5), st.integers(0, 3)), inner, max_size=3),
    ),
    max_leaves=8,
)  # fmt: skip


@fuzz
@given(document=documents, path=st.one_of(names, st.integers(-2, 2), st.lists(names, max_size=2)))
def test_a_document_and_a_part_of_it(client: Client, document: Any, path: Any) -> None:
    whole = client.kv.json(fresh("document"))
    _, taken = attempt(lambda: whole.set((), document))
    if taken:
        assert whole.get() == document
        assert json.dumps(whole.get()) == json.dumps(document)
    holder = client.kv.json(fresh("document"))
    holder.set((), {})
    _, taken = attempt(lambda: holder.set(path, document))
    if taken:
        assert holder.get(path) == document


@fuzz
@given(
    body=data, priority=integers, group=data, tenant=data, headers=headers, dedup_id=data,
    at=st.one_of(integers, st.just(datetime(2100, 1, 1, tzinfo=UTC)), st.just("now+1h")),
    use=st.sets(st.sampled_from(["priority", "group", "tenant", "headers", "dedup_id", "at_ns"])),
)  # fmt: skip
def test_a_message(
    client: Client, body: Any, priority: Any, group: Any, tenant: Any, headers: Any, dedup_id: Any,
    at: Any, use: set[str],
) -> None:  # fmt: skip
    queue = client.queue(fresh("queue"))
    queue.create()
    every = {"priority": priority, "group": group, "tenant": tenant, "headers": headers or {},
             "dedup_id": dedup_id, "at_ns": at}  # fmt: skip
    options = {name: every[name] for name in use}
    enqueued, taken = attempt(lambda: queue.enqueue(body, **options))
    again, taken_again = attempt(lambda: queue.enqueue_many([NewMessage(body, **options)]))
    assert taken == taken_again
    found = queue.peek()
    if not taken:
        assert found == []
        return
    assert enqueued.message_id == found[0].message_id
    assert len(found) == (1 if again[0].deduplicated else 2)
    for message in found:
        assert message.body == plain(body)
        assert message.priority == options.get("priority", 8)
        assert message.group == plain(options.get("group", b""))
        assert message.tenant == plain(options.get("tenant", b""))
        given_headers = options.get("headers") or {}
        assert message.headers == {name: plain(value) for name, value in given_headers.items()}
        if isinstance(options.get("at_ns"), int) and options["at_ns"] > message.enqueued_ns:
            assert message.due_ns == options["at_ns"]


@fuzz
@given(
    value=data, key=data, headers=headers, tag=names, partition=integers,
    use=st.sets(st.sampled_from(["key", "headers", "tag", "partition"])),
)  # fmt: skip
def test_a_record(
    client: Client, value: Any, key: Any, headers: Any, tag: Any, partition: Any, use: set[str]
) -> None:
    stream = client.stream(fresh("stream"))
    stream.create(partitions=3)
    every = {"key": key, "headers": headers or {}, "tag": tag, "partition": partition}
    options = {name: every[name] for name in use}
    appended, taken = attempt(lambda: stream.append(value, **options))
    _, taken_again = attempt(lambda: stream.append_many([NewRecord(value, **options)]))
    assert taken == taken_again
    found = [record for number in range(3) for record in stream.read(partition=number)]
    assert len(found) == 2 * taken
    for record in found:
        assert record.value == plain(value)
        expected_key = options.get("key")
        assert record.key == (None if expected_key is None else plain(expected_key))
        given_headers = options.get("headers") or {}
        assert record.headers == {name: plain(each) for name, each in given_headers.items()}
        assert record.tag == options.get("tag", "")
        if options.get("partition") is not None:
            assert record.partition == options["partition"]
    if taken:
        assert appended.offset in [record.offset for record in found]


# Points

arrays = st.one_of(
    st.lists(st.integers(-(2**66), 2**66), min_size=1, max_size=4),
    st.lists(st.integers(-(2**60), 2**60), min_size=1, max_size=4),
    st.lists(st.floats(), min_size=1, max_size=4),
    st.lists(st.booleans(), min_size=1, max_size=4),
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4).map(lambda n: np.array(n, "u8")),
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4).map(lambda n: np.array(n, ">u4")),
    st.lists(st.floats(width=16), min_size=1, max_size=4).map(lambda n: np.array(n, "f2")),
    st.lists(st.floats(), min_size=1, max_size=4).map(lambda n: np.array(n, "g") / 3),
    st.lists(st.one_of(st.integers(), st.floats(0, 1)), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=4).map(
        lambda pairs: np.ma.array([n for n, _ in pairs], mask=[m for _, m in pairs])
    ),
    st.lists(st.integers(-(2**63) + 1, 2**63 - 1), min_size=1, max_size=4).flatmap(
        lambda n: st.sampled_from(["D", "s", "ns", "ps"]).map(
            lambda unit: np.array(n, f"datetime64[{unit}]")
        )
    ),
    st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=4),
    st.sampled_from([5, 1.5, True, None, "text", [], [None], [[1], [2]], {}, b"bytes", object()]),
)


def stored(times: Any) -> list[int]:
    """Return times as integers of nanoseconds, by other means than the client's."""
    listed = times if isinstance(times, list | np.ndarray) else [times]
    found = []
    for each in listed:
        if isinstance(each, datetime):
            delta = each - datetime(1970, 1, 1, tzinfo=UTC)
            whole = delta.days * 86_400 + delta.seconds
            found.append(whole * 10**9 + delta.microseconds * 1_000)
        elif isinstance(each, np.datetime64):
            unit = np.datetime_data(each.dtype)[0]
            factor = {"D": 86_400 * 10**9, "s": 10**9, "ns": 1}.get(unit)
            number = int(each.astype(np.int64))
            found.append(number // 1_000 if factor is None else number * factor)
        else:
            found.append(int(each))
    return found


@settings(fuzz, max_examples=200)
@given(times=arrays, values=arrays, tags=st.one_of(st.none(), st.dictionaries(names, names)))
def test_points(client: Client, times: Any, values: Any, tags: Any) -> None:
    measurement = fresh("measurement")
    count, taken = attempt(lambda: client.ts.write(measurement, times, {"v": values}, tags=tags))
    series = SeriesData(tags or {}, times, {"w": values})
    _, taken_again = attempt(lambda: client.ts.write_many(measurement, [series]))
    assert taken == taken_again
    if not taken or not count:
        return
    at = stored(times)
    expected = dict(zip(at, values if np.ndim(values) else [values], strict=True))
    assert count == len(at)
    for field in ("v", "w"):
        (found,) = client.ts.query(measurement, field, -(2**62), 2**62 - 1)
        assert found.tags == (tags or {})
        assert dict(zip(found.times_ns.tolist(), found.values.tolist(), strict=True)) == expected


# Settings

counts = st.one_of(st.integers(0, 1_000), integers)


@fuzz
@given(
    deliveries=counts, visibility=seconds, window=seconds, dedup=counts, most=counts,
    backoff=st.one_of(st.lists(seconds, max_size=3), seconds),
)  # fmt: skip
def test_the_settings_of_a_queue(
    client: Client, deliveries: Any, visibility: Any, window: Any, dedup: Any, most: Any,
    backoff: Any,
) -> None:  # fmt: skip
    queue = client.queue(fresh("queue"))
    _, taken = attempt(
        lambda: queue.create(
            QueueConfig(
                max_deliveries=deliveries, visibility_s=visibility, dedup_window_s=window,
                dedup_max=dedup, messages_max=most, backoff_s=backoff,
            )
        )
    )  # fmt: skip
    if taken:
        found = queue.info().config
        assert (found.max_deliveries, found.dedup_max, found.messages_max) == (
            deliveries, dedup, most,
        )  # fmt: skip
        assert found.visibility_s == pytest.approx(visibility, abs=0.001)
        assert found.dedup_window_s == pytest.approx(window, abs=0.001)
        assert found.backoff_s == pytest.approx(tuple(backoff), abs=0.001)


@fuzz
@given(age=seconds, size=counts, most=counts, deliveries=counts, partitions=counts)
def test_the_settings_of_a_stream_and_a_group(
    client: Client, age: Any, size: Any, most: Any, deliveries: Any, partitions: Any
) -> None:
    stream = client.stream(fresh("stream"))
    _, taken = attempt(
        lambda: stream.create(partitions=partitions, retention=Retention(age, size, most))
    )
    if not taken:
        return
    info = stream.info()
    assert len(info.partitions) == partitions
    assert info.retention.age_s == pytest.approx(age, abs=0.001)
    assert (info.retention.size_max, info.retention.count_max) == (size, most)
    group = stream.group("g")
    _, taken = attempt(lambda: group.create(config=GroupConfig(max_deliveries=deliveries)))
    if taken:
        assert group.info().config == GroupConfig(max_deliveries=deliveries)


@fuzz
@given(
    duplicates=st.sampled_from(["last", "first", "reject", "none", "", 1, None]),
    retention=seconds, most=counts, window=seconds,
    aggregates=st.one_of(st.lists(st.sampled_from(["mean", "max", "", "x", 5]), max_size=3), names),
)  # fmt: skip
def test_the_settings_of_a_measurement_and_a_rule(
    client: Client, duplicates: Any, retention: Any, most: Any, window: Any, aggregates: Any
) -> None:
    measurement = fresh("measurement")
    _, taken = attempt(
        lambda: client.ts.create(measurement, MeasurementConfig(duplicates, retention, most))
    )
    if not taken:
        return
    found = client.ts.info(measurement).config
    assert found.duplicates == duplicates
    assert found.retention_s == pytest.approx(retention, abs=0.001)
    assert found.series_max == (most or 100_000)
    target = f"target{{{measurement}}}"
    _, taken = attempt(
        lambda: client.ts.set_rule(measurement, Rule("r", window, aggregates, target))
    )
    if taken:
        (kept,) = client.ts.info(measurement).rules
        assert kept.window_s == pytest.approx(window, abs=1e-9)
        assert set(kept.aggregates) == set(aggregates)


@fuzz
@given(
    value=data, ttl=seconds, body=data, record=data, times=arrays, values=arrays, by=integers,
    document=documents,
)  # fmt: skip
def test_a_batch_over_all_models(
    client: Client, value: Any, ttl: Any, body: Any, record: Any, times: Any, values: Any, by: Any,
    document: Any,
) -> None:  # fmt: skip
    """What a batch refuses when it is added is not in it, and the rest can be committed."""
    tag = fresh("")
    queue, stream = client.queue(f"q{{{tag}}}"), client.stream(f"s{{{tag}}}")
    queue.create()
    stream.create()
    batch = client.transact().put(f"always{{{tag}}}", "1")
    added = {
        name: attempt(add)[1]
        for name, add in {
            "put": lambda: batch.put(f"k{{{tag}}}", value, ttl_s=ttl),
            "increment": lambda: batch.increment(f"n{{{tag}}}", by),
            "set_json": lambda: batch.set_json(f"j{{{tag}}}", (), document),
            "enqueue": lambda: batch.enqueue(f"q{{{tag}}}", body),
            "append": lambda: batch.append_record(f"s{{{tag}}}", record),
            "write": lambda: batch.write_points(f"m{{{tag}}}", times, {"v": values}),
        }.items()
    }
    _, taken = attempt(batch.commit)
    assert client.kv.exists(f"always{{{tag}}}") == taken
    item = client.kv.get(f"k{{{tag}}}")
    if taken and added["put"] and (ttl is None or ttl > 60):
        assert item is not None
        assert item.value == plain(value)
    number = client.kv.get(f"n{{{tag}}}")
    assert (int(number.value) if number else None) == (
        int(by) if taken and added["increment"] else None
    )
    kept = client.kv.json(f"j{{{tag}}}").get()
    assert kept == (document if taken and added["set_json"] else None)
    bodies = [message.body for message in queue.peek()]
    assert bodies == ([plain(body)] if taken and added["enqueue"] else [])
    records = [each.value for each in stream.read()]
    assert records == ([plain(record)] if taken and added["append"] else [])


# Every method

junk = st.one_of(
    data, names, headers, seconds, integers, arrays, documents,
    st.sampled_from([b"\xff", "now-1h", "now-x", (), [()], {"a": {}}, lambda: None, int]),
)  # fmt: skip
# These change the members of the cluster or end the client; they take no data.
EXEMPT = {"add_member", "promote_member", "remove_member", "close"}
# How long a call may wait for something to happen before it is given up.
PATIENCE_S = 0.2


def public_methods(thing: Any) -> list[str]:
    return [
        name
        for name, member in inspect.getmembers(type(thing), inspect.isfunction)
        if not name.startswith("_") and name not in EXEMPT
    ]


class Things:
    """One object of each class whose methods take arguments."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client

    async def make(self) -> dict[str, Any]:
        client = self.client
        queue, stream = client.queue("things"), client.stream("things")
        await queue.create()
        await stream.create(partitions=2)
        group = stream.group("things")
        await group.create(from_offset=0)
        txn = client.kv.txn()
        return {
            "client": client, "kv": client.kv, "ts": client.ts, "log": client.log,
            "admin": client.admin, "queue": queue, "stream": stream, "group": group,
            "consumer": await group.join(), "json": client.kv.json("things"), "txn": txn,
            "branch": txn.then, "batch": client.transact(), "lock": client.kv.lock("things"),
            "lease": await client.kv.lease(600, key="things"),
        }  # fmt: skip


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def things(endpoint: str, runner: asyncio.Runner) -> Iterator[dict[str, Any]]:
    client = AsyncClient(endpoint, timeout_s=20)
    yield runner.run(Things(client).make())
    runner.run(client.close())


KINDS = (
    "client", "kv", "ts", "log", "admin", "queue", "stream", "group", "consumer", "json", "txn",
    "branch", "batch", "lock", "lease",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_no_argument_of_any_method_raises_anything_but_an_error_of_the_api(
    kind: str, things: dict[str, Any], runner: asyncio.Runner
) -> None:
    thing = things[kind]
    methods = public_methods(thing)

    @settings(
        deadline=None, max_examples=20 * max(3, len(methods)),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip
    @given(name=st.sampled_from(methods), drawn=st.data())
    def check(name: str, drawn: st.DataObject) -> None:
        signature = inspect.signature(getattr(thing, name))
        arguments, named = [], {}
        for parameter in signature.parameters.values():
            value = drawn.draw(junk, label=parameter.name)
            if parameter.kind is parameter.KEYWORD_ONLY:
                is_needed = parameter.default is parameter.empty
                if is_needed or drawn.draw(st.booleans(), label=f"with {parameter.name}"):
                    named[parameter.name] = value
            else:
                arguments.append(value)
        runner.run(call(getattr(thing, name), arguments, named))

    check()


async def call(method: Any, arguments: list[Any], named: dict[str, Any]) -> None:
    try:
        async with asyncio.timeout(PATIENCE_S):
            result = method(*arguments, **named)
            if inspect.isasyncgen(result):
                async for _ in result:
                    break
                await result.aclose()
            elif inspect.isawaitable(result):
                await result
    except TimeoutError:
        return  # it waits for something that does not happen
    except OnelogError as error:
        check_explained(error)
