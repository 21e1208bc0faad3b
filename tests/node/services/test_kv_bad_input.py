"""Bad input for every call of the KV service: a stable reason, and nothing written."""

from pathlib import Path
from typing import Any, cast

from onelog import errors
from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from tests.node.services.nodes import Node, refusal, run, single

Options = common_pb2.WriteOptions

# Bad input: the call, the reason. None of it may reach the log.
LONG_KEY = b"k" * 4097
LONG_NAME = "n" * 129
LONG_TTL = 101 * 365 * 86_400_000
BAD_SESSION = Options(session=common_pb2.Session(session_id=3, sequence=0))
LATE_SESSION = Options(session=common_pb2.Session(session_id=3, sequence=4, first_unacknowledged=5))
BAD_DURABILITY = Options(durability=cast(Any, 9))
BAD_LEVEL = common_pb2.ReadOptions(level=cast(Any, 9))
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
    ("BatchPut", kv.BatchPutRequest(), "LIMIT_INVALID"),
    ("BatchPut", kv.BatchPutRequest(keys=[b"k"] * 1_001, values=[b""] * 1_001), "LIMIT_INVALID"),
    ("BatchPut", kv.BatchPutRequest(keys=[b"k", b"k"], values=[b""]), "VALUES_INVALID"),
    ("BatchPut", kv.BatchPutRequest(keys=[b"k", b""], values=[b"", b""]), "KEY_SIZE_INVALID"),
    ("BatchPut", kv.BatchPutRequest(keys=[LONG_KEY], values=[b""]), "KEY_SIZE_INVALID"),
    ("BatchPut", kv.BatchPutRequest(keys=[b"cg:k"], values=[b""]), "KEY_RESERVED"),
    (
        "BatchPut",
        kv.BatchPutRequest(keys=[b"1", b"2", b"3", b"4", b"5"], values=[b""] * 5),
        "SEVERAL_SHARDS",
    ),
    ("BatchPut", kv.BatchPutRequest(keys=[b"k"], values=[b""], ttl_ms=2**63), "TTL_INVALID"),
    ("BatchPut", kv.BatchPutRequest(namespace=LONG_NAME), "NAMESPACE_NAME_INVALID"),
    (
        "BatchPut",
        kv.BatchPutRequest(keys=[b"k"], values=[b""], options=BAD_SESSION),
        "SEQUENCE_INVALID",
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
    ("Get", kv.GetRequest(key=b"k", options=BAD_LEVEL), "LEVEL_INVALID"),
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

    async def main() -> None:
        async with single(tmp_path) as node:
            await test(node)

    run(main())
