"""Reads in messages of many operations, on a real node: each as fresh as it wants to be."""

from pathlib import Path
from typing import Any, cast

import pytest

import onelog.node.services.pipeline
from onelog.v1 import common_pb2
from onelog.v1 import kv_pb2 as kv
from onelog.v1 import pipeline_pb2 as pipeline
from tests.node.services.nodes import run, single
from tests.node.services.test_pipeline_service import get, message, put


def test_reads_of_a_message_that_want_different_things_fail_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onelog.node.services.pipeline, "MESSAGE_DEADLINE_S", 0.5)

    async def test() -> None:
        async with single(tmp_path, shards=1) as server:
            await server.kv.Put(kv.PutRequest(key=b"x", value=b"1"))
            stale = common_pb2.READ_LEVEL_STALE
            wanted = [
                common_pb2.ReadOptions(),
                common_pb2.ReadOptions(min_index=10**9),
                common_pb2.ReadOptions(level=stale),
                common_pb2.ReadOptions(level=stale, max_staleness_ms=10**15),
                common_pb2.ReadOptions(max_staleness_ms=1),
                common_pb2.ReadOptions(level=cast(Any, 9)),
            ]
            call = server.pipeline.Execute()
            await call.write(message(*(get(b"x", options=options) for options in wanted)))
            results = (await call.read()).results
            call.cancel()
            assert [each.get.item.value for each in results] == [b"1", b"", b"1", b"", b"", b""]
            assert [each.error.reason for each in results] == [
                "", "EXPIRED", "", "STALENESS_INVALID", "STALENESS_INVALID", "LEVEL_INVALID",
            ]  # fmt: skip

    run(test())


def test_the_fast_way_of_a_get_answers_as_the_long_one_does(tmp_path: Path) -> None:
    options = common_pb2.ReadOptions
    the_long_way = options(min_index=1)
    short_ways = [
        {},
        {"options": options(level=common_pb2.READ_LEVEL_LINEARIZABLE)},
        {"options": options(level=common_pb2.READ_LEVEL_LEASE)},
        {"options": options(level=common_pb2.READ_LEVEL_STALE)},
        {"options": options(level=common_pb2.READ_LEVEL_STALE, max_staleness_ms=60_000)},
    ]
    wanted: list[dict[str, Any]] = [
        *({"key": b"k%d" % number} for number in range(12)),
        {"key": b"lives", "namespace": "default"},
        {"key": b"k1", "namespace": "nobody"},
        {"key": b""},
        {"key": b"k" * 5_000},
        {"key": b"k2"},
        {"key": b"k2", "namespace": "n" * 200},
        {"key": b"k3"},
    ]

    async def test() -> None:
        async with single(tmp_path) as node:
            lives = put(b"lives", b"", ttl_ms=600_000)
            await node.pipeline.ExecuteOnce(message(*(put(b"k%d" % n) for n in range(9)), lives))
            long = await node.pipeline.ExecuteOnce(
                message(*(get(**each, options=the_long_way) for each in wanted))
            )
            for way in short_ways:
                short = await node.pipeline.ExecuteOnce(
                    message(*(get(**each, **way) for each in wanted))
                )
                assert list(short.results) == list(long.results), way
            # Some of one kind and some of another, in one message.
            mixed = await node.pipeline.ExecuteOnce(
                message(*(get(**each, **way) for each in wanted for way in short_ways))
            )
            expected = [each for each in long.results for _ in short_ways]
            assert list(mixed.results) == expected
            assert [each.WhichOneof("result") for each in short.results].count("error") == 4
            assert short.results[12].get.item.expires_ns
            written = await node.pipeline.ExecuteOnce(
                message(put(b"k0", b"new"), get(b"k0"), put(b"k0", b"last"), get(b"k0"))
            )
            assert [written.results[at].get.item.value for at in (1, 3)] == [b"new", b"last"]
            costs = await node.pipeline.ExecuteOnce(message(get(b"k0"), with_cost=True))
            assert costs.results[0].get.header.HasField("cost")

    run(test())


def test_reads_with_bad_options_are_refused_and_their_neighbours_are_not(tmp_path: Path) -> None:
    def get(**options: int) -> pipeline.Operation:
        made = common_pb2.ReadOptions()
        for name, value in options.items():
            setattr(made, name, value)
        return pipeline.Operation(get=kv.GetRequest(key=b"k", options=made))

    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            await node.kv.Put(kv.PutRequest(key=b"k", value=b"v"))
            stale = common_pb2.READ_LEVEL_STALE
            answer = await node.pipeline.ExecuteOnce(
                pipeline.ExecuteRequest(
                    operations=[
                        get(),
                        get(level=9),
                        get(max_staleness_ms=5),
                        get(level=common_pb2.READ_LEVEL_LINEARIZABLE, max_staleness_ms=5),
                        get(level=stale, max_staleness_ms=2**40),
                        get(level=stale, max_staleness_ms=60_000),
                    ]
                )
            )
            level, staleness = "LEVEL_INVALID", "STALENESS_INVALID"
            reasons = [each.error.reason for each in answer.results]
            assert reasons == ["", level, staleness, staleness, staleness, ""]
            assert answer.results[0].get.item.value == b"v"
            assert answer.results[5].get.item.value == b"v"

    run(test())
