"""The KV service of a real node, asked by stubs that were generated from the protos."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import errors
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import kv_pb2 as kv
from tests.services.nodes import Node, refusal, run, single, until

Options = common_pb2.WriteOptions
READ_STALE = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE)


def on_a_node(directory: Path, test: Callable[[Node], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with single(directory, **changes) as node:
            await test(node)

    run(main())


def test_a_key_is_written_read_and_deleted_and_versions_are_indexes(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        put = await node.kv.Put(kv.PutRequest(key=b"a", value=b"one"))
        got = await node.kv.Get(kv.GetRequest(key=b"a"))
        assert (got.item.key, got.item.value) == (b"a", b"one")
        assert got.item.version == put.header.index
        assert got.header.shard == put.header.shard
        assert got.header.applied_index >= put.header.index
        assert not put.header.HasField("cost")
        # An empty value is a value.
        again = await node.kv.Put(kv.PutRequest(key=b"a", value=b""))
        got = await node.kv.Get(kv.GetRequest(key=b"a"))
        assert got.HasField("item")
        assert (got.item.value, got.item.version) == (b"", again.header.index)
        deleted = await node.kv.Delete(kv.DeleteRequest(key=b"a"))
        assert deleted.deleted
        assert not (await node.kv.Delete(kv.DeleteRequest(key=b"a"))).deleted
        assert not (await node.kv.Get(kv.GetRequest(key=b"a"))).HasField("item")
        # As of an index, what was there then is there.
        past = common_pb2.ReadOptions(as_of_index=put.header.index)
        assert (await node.kv.Get(kv.GetRequest(key=b"a", options=past))).item.value == b"one"
        future = common_pb2.ReadOptions(as_of_index=10**6)
        error = await refusal(node.kv.Get(kv.GetRequest(key=b"a", options=future)))
        assert (type(error), error.reason) == (errors.OutOfRange, "INDEX_IN_FUTURE")
        history = await node.kv.GetHistory(kv.GetHistoryRequest(key=b"a"))
        assert [each.HasField("value") for each in history.versions] == [False, True, True]
        assert history.versions[2].value == b"one"

    on_a_node(tmp_path, test)


def test_conditions_on_versions_are_kept(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        first = await node.kv.Put(kv.PutRequest(key=b"a", value=b"1", expected_version=0))
        error = await refusal(node.kv.Put(kv.PutRequest(key=b"a", value=b"2", expected_version=0)))
        assert (type(error), error.reason) == (errors.AlreadyExists, "ALREADY_EXISTS")
        stale = first.header.index - 1
        for call in (
            node.kv.Put(kv.PutRequest(key=b"a", value=b"2", expected_version=stale)),
            node.kv.Delete(kv.DeleteRequest(key=b"a", expected_version=stale)),
            node.kv.Touch(kv.TouchRequest(key=b"a", ttl_ms=1000, expected_version=stale)),
        ):
            error = await refusal(call)
            assert type(error) is errors.ConditionFailed
            assert error.metadata == {"detail": str(first.header.index)}
        version = first.header.index
        await node.kv.Put(kv.PutRequest(key=b"a", value=b"3", expected_version=version))
        assert (await node.kv.Get(kv.GetRequest(key=b"a"))).item.value == b"3"

    on_a_node(tmp_path, test)


def test_lifetimes_and_leases_end_what_is_bound_to_them(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.kv.Put(kv.PutRequest(key=b"short", value=b"1", ttl_ms=30))
        await node.kv.Put(kv.PutRequest(key=b"kept", value=b"1", ttl_ms=30))
        await node.kv.Touch(kv.TouchRequest(key=b"kept", ttl_ms=0))
        error = await refusal(node.kv.Touch(kv.TouchRequest(key=b"none", ttl_ms=5)))
        assert (type(error), error.reason) == (errors.NotFound, "KEY_NOT_FOUND")
        grant = await node.kv.GrantLease(kv.GrantLeaseRequest(ttl_ms=60_000, routing_key=b"l"))
        lease = {"lease_id": grant.lease_id, "routing_key": b"l"}
        await node.kv.Put(kv.PutRequest(key=b"{l}1", value=b"x", lease_id=grant.lease_id))
        await node.kv.Put(kv.PutRequest(key=b"{l}2", value=b"y", lease_id=grant.lease_id))
        shown = await node.kv.GetLease(kv.GetLeaseRequest(**lease))
        assert (list(shown.keys), shown.ttl_ms) == ([b"{l}1", b"{l}2"], 60_000)
        await node.kv.KeepLease(kv.KeepLeaseRequest(**lease))
        revoked = await node.kv.RevokeLease(kv.RevokeLeaseRequest(**lease))
        assert revoked.deleted_count == 2
        for call in (
            node.kv.KeepLease(kv.KeepLeaseRequest(**lease)),
            node.kv.GetLease(kv.GetLeaseRequest(**lease)),
            node.kv.Put(kv.PutRequest(key=b"{l}3", value=b"z", lease_id=grant.lease_id)),
        ):
            error = await refusal(call)
            assert (type(error), error.reason) == (errors.LeaseLost, "LEASE_LOST")
        async with asyncio.timeout(5):
            while (await node.kv.Get(kv.GetRequest(key=b"short"))).HasField("item"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (await node.kv.Get(kv.GetRequest(key=b"kept"))).HasField("item")

    on_a_node(tmp_path, test)


def test_numbers_bytes_and_documents_are_changed_in_place(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        count = node.kv.Count
        assert (await count(kv.CountRequest(key=b"n", add=-5))).number == -5
        assert (await count(kv.CountRequest(key=b"n", raise_to=7))).number == 7
        assert (await count(kv.CountRequest(key=b"n", lower_to=3))).number == 3
        error = await refusal(count(kv.CountRequest(key=b"n", add=2**63 - 1)))
        assert error.reason == "COUNTER_OVERFLOW"
        append = node.kv.Append
        assert (await append(kv.AppendRequest(key=b"b", data=b"ab"))).size == 2
        assert (await append(kv.AppendRequest(key=b"b", data=b"c"))).size == 3

        def path(*steps: str | int) -> kv.JsonPath:
            return kv.JsonPath(
                steps=[
                    kv.JsonStep(member=each) if isinstance(each, str) else kv.JsonStep(element=each)
                    for each in steps
                ]
            )

        await node.kv.SetJson(
            kv.SetJsonRequest(key=b"j", path=path("list", -1), json=b"1", create_parents=True)
        )
        await node.kv.SetJson(kv.SetJsonRequest(key=b"j", path=path("list", -1), json=b'{"x":2}'))
        get = node.kv.GetJson
        assert (await get(kv.GetJsonRequest(key=b"j"))).json == b'{"list":[1,{"x":2}]}'
        last = await get(kv.GetJsonRequest(key=b"j", path=path("list", -1, "x")))
        assert last.json == b"2"
        await node.kv.SetJson(kv.SetJsonRequest(key=b"j", path=path("list", 0)))
        assert (await get(kv.GetJsonRequest(key=b"j"))).json == b'{"list":[{"x":2}]}'
        error = await refusal(get(kv.GetJsonRequest(key=b"j", path=path("list", 5))))
        assert (type(error), error.reason) == (errors.NotFound, "JSON_PATH_NOT_FOUND")
        assert not (await get(kv.GetJsonRequest(key=b"none"))).HasField("json")

    on_a_node(tmp_path, test)


def test_pages_over_all_shards_show_every_key_once_and_in_order(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        keys = sorted(b"k%03d" % number for number in range(57))
        for key in keys:
            await node.kv.Put(kv.PutRequest(key=key, value=b"v" + key))
        await node.kv.Put(kv.PutRequest(key=b"other", value=b""))
        for reverse in (False, True):
            for limit in (1, 7, 56, 57, 100):
                found: list[bytes] = []
                token = b""
                while True:
                    request = kv.ListRequest(
                        range=kv.KeyRange(prefix=b"k"), limit=limit, reverse=reverse,
                        page_token=token,
                    )  # fmt: skip
                    page = await node.kv.List(request)
                    assert len(page.items) <= limit
                    assert len(page.headers) == 3
                    found += [item.key for item in page.items]
                    token = page.next_page_token
                    if not token:
                        break
                assert found == (keys[::-1] if reverse else keys), (reverse, limit)
        scanned: list[bytes] = []
        async for page in node.kv.Scan(kv.ListRequest(keys_only=True)):
            assert all(not item.value for item in page.items)
            scanned += [item.key for item in page.items]
        assert scanned == [*keys, b"other"]
        some = [
            item.key async for page in node.kv.Scan(kv.ListRequest(limit=5)) for item in page.items
        ]
        assert some == keys[:5]
        # One shard only: what lives there, and an index means something.
        one = await node.kv.List(kv.ListRequest(routing_key=keys[0], options=READ_STALE))
        assert keys[0] in {item.key for item in one.items}
        assert 0 < len(one.items) < len(keys)
        got = await node.kv.BatchGet(kv.BatchGetRequest(keys=[keys[3], b"none", keys[1], keys[3]]))
        assert [item.key for item in got.items] == [keys[3], keys[1], keys[3]]
        deleted = await node.kv.DeleteRange(
            kv.DeleteRangeRequest(range=kv.KeyRange(prefix=b"k"), limit=50)
        )
        assert (deleted.deleted_count, deleted.has_more) == (50, True)
        rest = await node.kv.DeleteRange(kv.DeleteRangeRequest(range=kv.KeyRange(prefix=b"k")))
        assert (rest.deleted_count, rest.has_more) == (7, False)

    on_a_node(tmp_path, test, shards=3)


def test_a_transaction_does_one_list_or_the_other(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        def transfer(amount: int) -> kv.TxnRequest:
            return kv.TxnRequest(
                conditions=[
                    kv.Condition(key=b"{t}a", exists=True),
                    kv.Condition(
                        key=b"{t}a",
                        value=kv.ValueTest(comparison=kv.COMPARISON_EQUAL, value=b"10"),
                    ),
                ],
                then=[
                    kv.TxnOperation(count=kv.CountRequest(key=b"{t}a", add=-amount)),
                    kv.TxnOperation(count=kv.CountRequest(key=b"{t}b", add=amount)),
                    kv.TxnOperation(get=kv.GetRequest(key=b"{t}b")),
                ],
                otherwise=[kv.TxnOperation(get=kv.GetRequest(key=b"{t}a"))],
            )

        await node.kv.Count(kv.CountRequest(key=b"{t}a", add=10))
        done = await node.kv.Txn(transfer(4))
        assert done.succeeded
        assert [each.number for each in done.results] == [6, 4, 0]
        assert done.results[2].item.value == b"4"
        other = await node.kv.Txn(transfer(4))
        assert not other.succeeded
        assert other.results[0].item.value == b"6"
        error = await refusal(
            node.kv.Txn(
                kv.TxnRequest(
                    then=[
                        kv.TxnOperation(put=kv.PutRequest(key=b"{t}c", value=b"no")),
                        kv.TxnOperation(append=kv.AppendRequest(key=b"{t}a", data=b"x")),
                        kv.TxnOperation(count=kv.CountRequest(key=b"{t}a", add=1)),
                    ]
                )
            )
        )
        assert error.reason == "TRANSACTION_REFUSED"
        assert error.metadata == {"position": "2", "cause": "NOT_A_NUMBER"}
        assert not (await node.kv.Get(kv.GetRequest(key=b"{t}c"))).HasField("item")

    on_a_node(tmp_path, test)


def test_options_say_how_durable_how_fresh_and_what_it_cost(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        options = Options(durability=common_pb2.DURABILITY_ASYNC)
        put = await node.kv.Put(kv.PutRequest(key=b"a", value=b"1", options=options))
        fresh = common_pb2.ReadOptions(
            level=common_pb2.READ_LEVEL_STALE, min_index=put.header.index, max_staleness_ms=60_000
        )
        got = await node.kv.Get(kv.GetRequest(key=b"a", options=fresh))
        assert got.item.version == put.header.index
        error = await refusal(node.kv.Count(kv.CountRequest(key=b"a", add=1, options=options)))
        assert (type(error), error.reason) == (errors.InvalidArgument, "ASYNC_NEEDS_RESULT")
        costly = await node.kv.Put(
            kv.PutRequest(key=b"a", value=b"2", options=Options(with_cost=True))
        )
        assert costly.header.cost.raft_ns > 0
        assert costly.header.cost.fsync_ns > 0

    on_a_node(tmp_path, test)


# Bad input: the call, the reason. None of it may reach the log.
LONG_KEY = b"k" * 4097
LONG_NAME = "n" * 129
LONG_TTL = 101 * 365 * 86_400_000
BAD_SESSION = Options(session=common_pb2.Session(session_id=3, sequence=0))
LATE_SESSION = Options(session=common_pb2.Session(session_id=3, sequence=4, first_unacknowledged=5))
BAD_DURABILITY = Options(durability=cast(Any, 9))
STALE_AND_LINEARIZABLE = common_pb2.ReadOptions(max_staleness_ms=5)
MANY_STEPS = kv.JsonPath(steps=[kv.JsonStep(member="m")] * 65)
Request = Any

ONE_KEY: list[tuple[str, type, dict[str, Any]]] = [
    ("Get", kv.GetRequest, {}),
    ("Put", kv.PutRequest, {}),
    ("Delete", kv.DeleteRequest, {}),
    ("Touch", kv.TouchRequest, {"ttl_ms": 1}),
    ("Count", kv.CountRequest, {"add": 1}),
    ("Append", kv.AppendRequest, {}),
    ("GetJson", kv.GetJsonRequest, {}),
    ("SetJson", kv.SetJsonRequest, {"json": b"1"}),
    ("GetHistory", kv.GetHistoryRequest, {}),
]
BAD_KEYS = [
    (method, make(key=key, **fields), "KEY_SIZE_INVALID")
    for method, make, fields in ONE_KEY
    for key in (b"", LONG_KEY)
]
BAD_NAMES = [
    (method, make(key=b"k", namespace=LONG_NAME, **fields), "NAMESPACE_NAME_INVALID")
    for method, make, fields in ONE_KEY
]
BAD_RESERVED = [
    (method, make(key=b"cg:x", **fields), "KEY_RESERVED")
    for method, make, fields in ONE_KEY
    if not method.startswith("Get")
]
BAD_OTHERS: list[tuple[str, Request, str]] = [
    ("Put", kv.PutRequest(key=b"k", value=bytes((8 << 20) - (64 << 10) + 1)), "VALUE_TOO_LARGE"),
    ("Append", kv.AppendRequest(key=b"k", data=bytes(8 << 20)), "VALUE_TOO_LARGE"),
    ("Put", kv.PutRequest(key=b"k", ttl_ms=LONG_TTL), "TTL_INVALID"),
    ("Put", kv.PutRequest(key=b"k", ttl_ms=2**64 - 1), "TTL_INVALID"),
    ("Touch", kv.TouchRequest(key=b"k", ttl_ms=LONG_TTL), "TTL_INVALID"),
    ("GrantLease", kv.GrantLeaseRequest(ttl_ms=LONG_TTL), "TTL_INVALID"),
    ("GrantLease", kv.GrantLeaseRequest(), "TTL_INVALID"),
    ("GrantLease", kv.GrantLeaseRequest(ttl_ms=1, namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("KeepLease", kv.KeepLeaseRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("RevokeLease", kv.RevokeLeaseRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("GetLease", kv.GetLeaseRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("GetLease", kv.GetLeaseRequest(lease_id=9), "LEASE_LOST"),
    ("Count", kv.CountRequest(key=b"k"), "CHANGE_MISSING"),
    ("SetJson", kv.SetJsonRequest(key=b"k", json=b"{"), "JSON_INVALID"),
    ("SetJson", kv.SetJsonRequest(key=b"k", json=b"[" * 65 + b"]" * 65), "JSON_TOO_DEEP"),
    ("SetJson", kv.SetJsonRequest(key=b"k", json=b" " * (256 << 10) + b"1"), "JSON_TOO_LARGE"),
    ("SetJson", kv.SetJsonRequest(key=b"k"), "JSON_PATH_INVALID"),
    ("SetJson", kv.SetJsonRequest(key=b"k", path=MANY_STEPS, json=b"1"), "JSON_PATH_TOO_LARGE"),
    (
        "SetJson",
        kv.SetJsonRequest(key=b"k", path=kv.JsonPath(steps=[kv.JsonStep()]), json=b"1"),
        "JSON_PATH_INVALID",
    ),
    (
        "SetJson",
        kv.SetJsonRequest(key=b"k", path=kv.JsonPath(steps=[kv.JsonStep(element=-2)]), json=b"1"),
        "JSON_PATH_INVALID",
    ),
    ("BatchGet", kv.BatchGetRequest(keys=[b"k", b""]), "KEY_SIZE_INVALID"),
    ("BatchGet", kv.BatchGetRequest(keys=[b"k"] * 10_001), "LIMIT_INVALID"),
    ("BatchGet", kv.BatchGetRequest(keys=[b"k"], namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    (
        "BatchGet",
        kv.BatchGetRequest(
            keys=[b"1", b"2", b"3", b"4", b"5"], options=common_pb2.ReadOptions(as_of_index=1)
        ),
        "SEVERAL_SHARDS",
    ),
    ("List", kv.ListRequest(limit=10_001), "LIMIT_INVALID"),
    ("List", kv.ListRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("List", kv.ListRequest(page_token=b"x"), "PAGE_TOKEN_INVALID"),
    ("List", kv.ListRequest(page_token=b"\x01" + LONG_KEY), "PAGE_TOKEN_INVALID"),
    ("List", kv.ListRequest(range=kv.KeyRange(start=b"b", end=b"a")), "RANGE_INVALID"),
    ("List", kv.ListRequest(range=kv.KeyRange(start=b"b", prefix=b"a")), "RANGE_INVALID"),
    ("List", kv.ListRequest(range=kv.KeyRange(start=LONG_KEY)), "KEY_SIZE_INVALID"),
    ("List", kv.ListRequest(options=common_pb2.ReadOptions(as_of_index=1)), "SEVERAL_SHARDS"),
    ("DeleteRange", kv.DeleteRangeRequest(limit=10_001), "LIMIT_INVALID"),
    ("DeleteRange", kv.DeleteRangeRequest(range=kv.KeyRange(prefix=LONG_KEY)), "KEY_SIZE_INVALID"),
    ("DeleteRange", kv.DeleteRangeRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    ("DeleteRange", kv.DeleteRangeRequest(options=BAD_SESSION), "SEQUENCE_INVALID"),
    ("Put", kv.PutRequest(key=b"k", options=BAD_SESSION), "SEQUENCE_INVALID"),
    ("Put", kv.PutRequest(key=b"k", options=LATE_SESSION), "SEQUENCE_INVALID"),
    (
        "Put",
        kv.PutRequest(key=b"k", options=Options(session=common_pb2.Session(sequence=1))),
        "SESSION_INVALID",
    ),
    (
        "Put",
        kv.PutRequest(key=b"k", options=Options(durability=cast(Any, 9))),
        "DURABILITY_INVALID",
    ),
    ("Get", kv.GetRequest(key=b"k", options=STALE_AND_LINEARIZABLE), "STALENESS_INVALID"),
    (
        "Get",
        kv.GetRequest(
            key=b"k",
            options=common_pb2.ReadOptions(
                level=common_pb2.READ_LEVEL_STALE, max_staleness_ms=2**60
            ),
        ),
        "STALENESS_INVALID",
    ),
    ("Get", kv.GetRequest(key=b"k", namespace="nowhere"), "NAMESPACE_UNKNOWN"),
    ("Txn", kv.TxnRequest(), "ROUTING_KEY_MISSING"),
    ("Txn", kv.TxnRequest(conditions=[kv.Condition(key=b"k")]), "CONDITION_INVALID"),
    ("Txn", kv.TxnRequest(conditions=[kv.Condition(exists=True)]), "KEY_SIZE_INVALID"),
    (
        "Txn",
        kv.TxnRequest(conditions=[kv.Condition(key=b"k", version=kv.VersionTest(version=1))]),
        "CONDITION_INVALID",
    ),
    (
        "Txn",
        kv.TxnRequest(conditions=[kv.Condition(key=b"k", exists=True)] * 1001),
        "LIMIT_INVALID",
    ),
    (
        "Txn",
        kv.TxnRequest(then=[kv.TxnOperation(get=kv.GetRequest(key=b"k"))] * 1001),
        "LIMIT_INVALID",
    ),
    (
        "Txn",
        kv.TxnRequest(conditions=[kv.Condition(key=b"%d" % n, exists=True) for n in range(20)]),
        "SEVERAL_SHARDS",
    ),
    (
        "Txn",
        kv.TxnRequest(conditions=[kv.Condition(key=b"k", exists=True)], then=[kv.TxnOperation()]),
        "OPERATION_MISSING",
    ),
    (
        "Txn",
        kv.TxnRequest(then=[kv.TxnOperation(put=kv.PutRequest(key=b"k", ttl_ms=LONG_TTL))]),
        "TTL_INVALID",
    ),
    (
        "Txn",
        kv.TxnRequest(
            then=[kv.TxnOperation(put=kv.PutRequest(key=b"k", value=bytes(3 << 20)))] * 3
        ),
        "TOO_LARGE",
    ),
]


def test_bad_input_is_refused_with_a_reason_and_nothing_is_written(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        await node.kv.Put(kv.PutRequest(key=b"seen", value=b""))
        logs = [driver.shard.log for driver in node.context.drivers.values()]
        before = [log.last_index for log in logs]
        cases = BAD_KEYS + BAD_NAMES + BAD_RESERVED + BAD_OTHERS
        seen = set()
        for method, request, reason in cases:
            error = await refusal(getattr(node.kv, method)(request))
            assert error.reason == reason, (method, error, str(request)[:200])
            assert not isinstance(error, errors.Internal), (method, error)
            assert error.message, (method, reason)
            seen.add(method)
        stream = node.kv.Scan(kv.ListRequest(range=kv.KeyRange(start=b"b", end=b"a")))
        error = await refusal(stream.read())
        assert error.reason == "RANGE_INVALID"
        assert [log.last_index for log in logs] == before
        service = kv.DESCRIPTOR.services_by_name["KV"]
        assert seen == {each.name for each in service.methods} - {"Scan"}

    on_a_node(tmp_path, test)


def test_a_deadline_that_has_passed_and_a_call_that_is_cancelled_leave_nothing_waiting(
    tmp_path: Path,
) -> None:
    async def test(node: Node) -> None:
        future = common_pb2.ReadOptions(level=common_pb2.READ_LEVEL_STALE, min_index=10**9)
        error = await refusal(node.kv.Get(kv.GetRequest(key=b"a", options=future), timeout=0.2))
        assert isinstance(error, errors.DeadlineExceeded)
        call = node.kv.Get(kv.GetRequest(key=b"a", options=future), timeout=30)
        edge = node.context.edge
        assert edge is not None
        await until(lambda: edge.calls.admission.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await until(lambda: not edge.calls.admission.requests)
        assert edge.calls.admission.clients == 0

    on_a_node(tmp_path, test)


def test_namespaces_keep_keys_apart(tmp_path: Path) -> None:
    async def test(node: Node) -> None:
        create = admin_pb2.CreateNamespaceRequest(
            namespace="tenant", limits=admin_pb2.NamespaceLimits(value_size_max=3)
        )
        assert len((await node.admin.CreateNamespace(create)).headers) == 2
        await node.kv.Put(kv.PutRequest(namespace="tenant", key=b"a", value=b"abc"))
        assert not (await node.kv.Get(kv.GetRequest(key=b"a"))).HasField("item")
        error = await refusal(
            node.kv.Put(kv.PutRequest(namespace="tenant", key=b"a", value=b"abcd"))
        )
        assert (type(error), error.reason) == (errors.TooLarge, "VALUE_TOO_LARGE")
        assert (await refusal(node.admin.CreateNamespace(create))).reason == "NAMESPACE_EXISTS"

    on_a_node(tmp_path, test)


def test_a_scan_waits_for_its_reader(tmp_path: Path) -> None:
    """A reader that takes its time holds up the scan, not the server's memory."""

    async def test(node: Node) -> None:
        for number in range(12):
            key = b"{s}%02d" % number
            await node.kv.Put(kv.PutRequest(key=key, value=bytes(1 << 20)))
        call = node.kv.Scan(kv.ListRequest(routing_key=b"s"))
        keys = []
        while (page := await call.read()) is not grpc.aio.EOF:
            keys += [item.key for item in page.items]
            assert sum(len(item.value) for item in page.items) <= 5 << 20
        assert len(keys) == 12

    on_a_node(tmp_path, test)
