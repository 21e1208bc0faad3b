"""What tests of streams say often, to a client that is made of the protos alone."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from onelog.v1 import common_pb2
from onelog.v1 import pipeline_pb2 as pipeline
from onelog.v1 import stream_pb2 as pb
from tests.node.services.nodes import Node, run, single

S = "s{t}"


def on_a_node(directory: Path, test: Callable[[Node], Awaitable[None]], **changes: Any) -> None:
    async def main() -> None:
        async with single(directory, **changes) as node:
            await test(node)

    run(main())


def new(*values: bytes, **fields: Any) -> list[pb.NewRecord]:
    return [pb.NewRecord(value=value, **fields) for value in values]


async def append(node: Node, *values: bytes, stream: str = S, **fields: Any) -> list[int]:
    """Append records and return their offsets."""
    request = pb.AppendRecordsRequest(stream=stream, records=new(*values, **fields))
    answer = await node.stream.AppendRecords(request)
    assert not any(each.HasField("error") for each in answer.results)
    return [each.offset for each in answer.results]


async def read(node: Node, stream: str = S, **fields: Any) -> pb.ReadRecordsResponse:
    answer = await node.stream.ReadRecords(pb.ReadRecordsRequest(stream=stream, **fields))
    assert isinstance(answer, pb.ReadRecordsResponse)
    return answer


def values(records: Sequence[pb.Record]) -> list[bytes]:
    return [each.value for each in records]


async def open_session(node: Node, stream: str = S) -> int:
    edge = node.context.edge
    assert edge is not None
    request = pipeline.OpenSessionRequest(shard=edge.find_shard(stream.encode()))
    return int((await node.pipeline.OpenSession(request)).session_id)


def in_session(session_id: int, sequence: int) -> common_pb2.WriteOptions:
    session = common_pb2.Session(session_id=session_id, sequence=sequence, first_unacknowledged=1)
    return common_pb2.WriteOptions(session=session)
