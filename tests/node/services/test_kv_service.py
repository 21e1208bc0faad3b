"""The KV service of a real node, asked by stubs that were generated from the protos."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest

from onelog import errors
from onelog.node.services import kv as kv_service
from onelog.v1 import admin_pb2, common_pb2
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import Node, refusal, run, single, until

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
            assert error.metadata == {"detail": str(first.header.index), "key": "a"}
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


def test_a_scan_of_many_pages_shows_every_key_once_and_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_service, "SCAN_PAGE", 10)

    async def test(node: Node) -> None:
        keys = sorted(b"%d" % (number * number * 7919) for number in range(100))
        # Keys of one shard in between: the others have nothing to say there.
        keys = sorted([*keys, *(b"5{one}%d" % number for number in range(40))])
        for key in keys:
            await node.kv.Put(kv.PutRequest(key=key, value=b""))
        for reverse in (False, True):
            for limit in (0, 1, 10, 33, 139, 140, 1000):
                request = kv.ListRequest(limit=limit, reverse=reverse)
                pages = [page async for page in node.kv.Scan(request)]
                assert all(len(page.items) <= 10 for page in pages)
                found = [item.key for page in pages for item in page.items]
                expected = keys[::-1] if reverse else keys
                assert found == expected[: limit or None], (limit, reverse)

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
        assert edge.calls.admission._clients == {}

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
