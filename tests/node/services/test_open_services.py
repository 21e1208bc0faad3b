"""Health and reflection: gRPC's own services, answered by ours in every stage of a node."""

import asyncio
from pathlib import Path
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import pytest
from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from tests.node.services.nodes import Node, run, single, start, until
from tests.node.services.nodes import parse_config as settings

STATUS = health_pb2.HealthCheckResponse
Ask = reflection_pb2.ServerReflectionRequest


async def ask(node: Node, version: str, *questions: Any) -> list[Any]:
    """Ask reflection in one stream; v1 and v1alpha have the same bytes."""
    method = node.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        Ask.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    return [each async for each in method(iter(questions), timeout=20)]


def files_of(answer: Any) -> dict[str, Any]:
    found = answer.file_descriptor_response.file_descriptor_proto
    return {each.name: each for each in map(descriptor_pb2.FileDescriptorProto.FromString, found)}


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection_tells_everything_that_tools_ask_for(tmp_path: Path, version: str) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            kinds = await ask(
                node,
                version,
                Ask(list_services="*"),
                Ask(file_containing_symbol="onelog.v1.KV.Put"),
                Ask(file_by_filename="onelog/v1/kv.proto"),
                Ask(file_containing_symbol=f"grpc.reflection.{version}.ServerReflection"),
                Ask(file_containing_symbol="onelog.v1.Nothing"),
                Ask(all_extension_numbers_of_type="onelog.v1.GetRequest"),
                Ask(
                    file_containing_extension=reflection_pb2.ExtensionRequest(
                        containing_type="onelog.v1.GetRequest", extension_number=1
                    )
                ),
                Ask(),
            )
            names = [each.name for each in kinds[0].list_services_response.service]
            assert names == sorted(names)
            assert {"onelog.v1.KV", "grpc.health.v1.Health"} < set(names)
            assert {f"grpc.reflection.{each}.ServerReflection" for each in ("v1", "v1alpha")} < set(
                names
            )
            for answer in kinds[1:3]:
                files = files_of(answer)
                # With all that they import, so that nobody has to ask again.
                assert {"onelog/v1/kv.proto", "onelog/v1/common.proto"} <= files.keys()
            (own,) = files_of(kinds[3]).values()
            assert own.package == f"grpc.reflection.{version}"
            assert own.service[0].method[0].input_type.startswith(f".grpc.reflection.{version}.")
            assert [each.error_response.error_code for each in kinds[4:]] == [5, 0, 5, 5]
            numbers = kinds[5].all_extension_numbers_response
            assert numbers.base_type_name == "onelog.v1.GetRequest"
            assert kinds[1].original_request.file_containing_symbol == "onelog.v1.KV.Put"

    run(test())


def test_health_is_watched_and_listed(tmp_path: Path) -> None:
    async def test() -> None:
        async with single(tmp_path, shards=1) as node:
            stub = health_pb2_grpc.HealthStub(node.channel)
            watch = stub.Watch(health_pb2.HealthCheckRequest(service="onelog.v1.KV"))
            seen = [(await watch.read()).status]
            while seen[-1] != STATUS.SERVING:
                seen.append((await watch.read()).status)
            listed = (await stub.List(health_pb2.HealthListRequest())).statuses
            assert {"", "onelog.v1.KV", "onelog.v1.Admin"} <= listed.keys()
            assert {each.status for each in listed.values()} == {STATUS.SERVING}
            unknown = stub.Watch(health_pb2.HealthCheckRequest(service="tests.Nothing"))
            assert (await unknown.read()).status == STATUS.SERVICE_UNKNOWN
            health = node.server._health
            assert len(health._watchers) == 2
            unknown.cancel()
            await until(lambda: len(health._watchers) == 1)
            # It sees the change before its connection ends.
            node.server.stop()
            assert (await watch.read()).status == STATUS.NOT_SERVING
            await until(lambda: not health._watchers)

    run(test())


def test_open_services_are_answered_before_there_is_a_cluster(tmp_path: Path) -> None:
    async def test() -> None:
        config = settings(tmp_path / "n1", shards=1)
        other = (("n1", config.listen.peers), ("n2", config.listen.peers))
        object.__setattr__(config.cluster, "initial", other)
        node = await start(config)
        try:
            stub = health_pb2_grpc.HealthStub(node.channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
            assert answer.status == STATUS.NOT_SERVING
            (listed,) = await ask(node, "v1", Ask(list_services=""))
            assert listed.list_services_response.service
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await node.channel.unary_unary("/onelog.v1.KV/Get")(b"", timeout=20)
            assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            await asyncio.sleep(0)
        finally:
            await node.stop()

    run(test())
