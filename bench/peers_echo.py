"""A bare gRPC server that gives every message of a stream back, as bytes: ``ADDRESS``."""

import sys
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import uvloop

from bench.peers_load_echo import METHOD, OPTIONS


async def main(address: str) -> None:
    async def echo(_requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    server = grpc.aio.server(options=OPTIONS)
    service, method = METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
