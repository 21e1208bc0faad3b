"""Answers that a message of gRPC cannot hold: refused with a reason, never by gRPC itself."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog import errors
from onelog.client.client import AsyncClient
from onelog.node.config.schema import LimitSettings
from onelog.projections import limits as projection_limits
from onelog.status import error_of_result
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import Node, cluster, refusal, run, single

MESSAGE_BYTES_MAX = 256 << 10
LIMITS = LimitSettings(message_bytes_max=MESSAGE_BYTES_MAX)
VALUE = bytes(20_000)
KEYS = [b"k%02d" % number for number in range(40)]


def get(key: bytes) -> pipeline.Operation:
    return pipeline.Operation(get=kv.GetRequest(key=key))


def put(key: bytes, value: bytes) -> pipeline.Operation:
    return pipeline.Operation(put=kv.PutRequest(key=key, value=value))


async def fill(node: Node) -> None:
    for key in KEYS:
        await node.kv.Put(kv.PutRequest(key=key, value=VALUE))


def check_answer(request: pipeline.ExecuteRequest, answer: pipeline.ExecuteResponse) -> int:
    """Look at the answer to gets of KEYS and one put; return how many gets fitted."""
    assert answer.ByteSize() <= MESSAGE_BYTES_MAX
    fitted = 0
    for operation, result in zip(request.operations, answer.results, strict=True):
        kind = result.WhichOneof("result")
        if operation.HasField("put"):
            assert kind == "put"
        elif kind == "get":
            assert result.get.item.value == VALUE
            fitted += 1
        else:
            error = error_of_result(result.error)
            assert isinstance(error, errors.ResourceExhausted)
            assert error.reason == "ANSWER_FULL"
            assert error.retry_after_s is not None
    return fitted


def test_a_pipeline_answers_as_many_reads_as_fit_and_refuses_the_others_alone(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2, limits=LIMITS) as node:
            await fill(node)
            request = pipeline.ExecuteRequest(
                operations=[*map(get, KEYS), put(b"written", b"anyway")], request_id=7
            )
            once = await node.pipeline.ExecuteOnce(request)
            assert 8 <= check_answer(request, once) <= 12

            async def messages() -> AsyncIterator[pipeline.ExecuteRequest]:
                yield request

            answers = [each async for each in node.pipeline.Execute(messages())]
            assert [each.request_id for each in answers] == [7]
            assert 8 <= check_answer(request, answers[0]) <= 12

    run(test())


def test_reads_of_several_leaders_share_the_room_of_one_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster(tmp_path, shards=2, limits=LIMITS) as nodes:
            await fill(nodes[0])
            request = pipeline.ExecuteRequest(operations=[*map(get, KEYS), put(b"k", b"v")])
            for node in nodes:
                assert 8 <= check_answer(request, await node.pipeline.ExecuteOnce(request)) <= 12

    run(test())


def test_a_transaction_whose_answer_does_not_fit_was_done_and_nobody_says_otherwise(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            await fill(node)
            reads = [kv.TxnOperation(get=kv.GetRequest(key=key)) for key in KEYS[:8]]
            counts = [
                pipeline.Operation(
                    txn=kv.TxnRequest(
                        then=[*reads, kv.TxnOperation(count=kv.CountRequest(key=b"n", add=1))]
                    )
                )
                for _ in range(3)
            ]
            answer = await node.pipeline.ExecuteOnce(pipeline.ExecuteRequest(operations=counts))
            assert answer.ByteSize() <= MESSAGE_BYTES_MAX
            kinds = [each.WhichOneof("result") for each in answer.results]
            assert kinds == ["txn", "error", "error"]
            assert isinstance(error_of_result(answer.results[1].error), errors.OutcomeUnknown)
            counted = await node.kv.Count(kv.CountRequest(key=b"n", add=0))
            assert counted.number == 3

    run(test())


def test_a_read_that_no_answer_can_hold_is_final_and_its_neighbours_are_not(
    tmp_path: Path,
) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.kv.Put(kv.PutRequest(key=b"large", value=bytes(2 * MESSAGE_BYTES_MAX)))
            await node.kv.Put(kv.PutRequest(key=b"small", value=b"1"))
        async with single(tmp_path, shards=1, limits=LIMITS) as node:
            answer = await node.pipeline.ExecuteOnce(
                pipeline.ExecuteRequest(operations=[get(b"small"), get(b"large"), get(b"small")])
            )
            assert answer.results[0].get.item.value == b"1"
            reasons = [each.error.reason for each in answer.results]
            assert reasons == ["", "ANSWER_TOO_LARGE", "ANSWER_FULL"]
            error = await refusal(node.kv.Get(kv.GetRequest(key=b"large")))
            assert (type(error), error.reason) == (errors.TooLarge, "ANSWER_TOO_LARGE")

    run(test())


@pytest.mark.parametrize("shards", [1, 4])
def test_a_batch_get_that_is_too_much_says_so(tmp_path: Path, shards: int) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=shards, limits=LIMITS) as node:
            await fill(node)
            error = await refusal(node.kv.BatchGet(kv.BatchGetRequest(keys=KEYS)))
            assert (type(error), error.reason) == (errors.TooLarge, "ANSWER_TOO_LARGE")
            assert error.metadata["limit"] == str(MESSAGE_BYTES_MAX)
            fitting = await node.kv.BatchGet(kv.BatchGetRequest(keys=KEYS[:12]))
            assert [item.key for item in fitting.items] == KEYS[:12]

    run(test())


def test_a_page_over_several_shards_is_no_larger_than_one_of_a_single_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("onelog.projections.kv.reads", "onelog.node.services.kv"):
        monkeypatch.setattr(f"{module}.SCAN_SIZE_MAX", 100_000)
    assert projection_limits.SCAN_SIZE_MAX > 100_000

    async def test() -> None:
        async with single(tmp_path, shards=4, limits=LIMITS) as node:
            await fill(node)
            found: list[bytes] = []
            token = b""
            while True:
                page = await node.kv.List(kv.ListRequest(page_token=token))
                assert 1 <= len(page.items) <= 5
                found += [item.key for item in page.items]
                token = page.next_page_token
                if not token:
                    break
            assert found == KEYS
            scanned = [
                item.key async for each in node.kv.Scan(kv.ListRequest()) for item in each.items
            ]
            assert scanned == KEYS

    run(test())


def test_a_client_gets_all_of_what_does_not_fit_one_answer(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=2, limits=LIMITS) as node:
            await fill(node)
            async with AsyncClient(node.endpoint) as client:
                items = await client.kv.get_many(KEYS)
                assert [item.value for item in items if item] == [VALUE] * len(KEYS)

    run(test())
