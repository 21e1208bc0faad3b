"""A bare gRPC server that returns every message of a stream or a call, as bytes: ``ADDRESS``."""

import sys
from typing import Any

import grpc.aio  # type: ignore[import-untyped]
import uvloop

from bench.peers_load_echo import METHOD, OPTIONS, UNARY_METHOD


async def main(address: str) -> None:
    async def echo(_requests: Any, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            await context.write(message)

    async def echo_once(message: bytes, _context: Any) -> bytes:
        return message

    server = grpc.aio.server(options=OPTIONS)
    service, method = METHOD.strip("/").split("/")
    handlers = {
        method: grpc.stream_stream_rpc_method_handler(echo),
        UNARY_METHOD.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(echo_once),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
