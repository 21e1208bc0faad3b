"""Load on the echo: a bare gRPC server that returns the bytes of the same batches.

It shows the limit of gRPC for Python, client and server: nothing is decoded, kept or
synced. Each caller has a stream with one message in flight.
"""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio  # type: ignore[import-untyped]
import uvloop

from bench.peers_load import BATCH, VALUE, Ask, Step, serve
from onelog.v1 import pipeline_pb2

METHOD = "/echo.Echo/Echo"
UNARY_METHOD = "/echo.Echo/EchoOnce"
MESSAGE_SIZE_MAX = 16 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_SIZE_MAX),
    ("grpc.max_send_message_length", MESSAGE_SIZE_MAX),
)


def batch() -> bytes:
    """Return a message of puts as our client would send them one by one."""
    request = pipeline_pb2.ExecuteRequest(request_id=1)
    for number in range(BATCH):
        operation = request.operations.add()
        operation.put.key = b"key-%012d" % number
        operation.put.value = VALUE
    return bytes(request.SerializeToString())


async def main(endpoints: dict[str, str]) -> None:
    (address,) = endpoints.values()
    data = batch()
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await channel.channel_ready()

        @asynccontextmanager
        async def echo(ask: Ask) -> AsyncIterator[Step]:
            calls = [channel.stream_stream(METHOD)() for _ in range(ask.callers)]

            async def step(caller: int) -> int:
                await calls[caller].write(data)
                await calls[caller].read()
                return BATCH

            yield step
            for call in calls:
                call.cancel()

        await serve({f"echo of {BATCH}": echo})


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
