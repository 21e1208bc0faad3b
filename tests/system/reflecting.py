"""What ``grpcurl`` does, as far as docs/api.md uses it: calls by what reflection says, as JSON.

``reflecting.py -plaintext [-reflect v1alpha | v1] [-d JSON] HOST:PORT
list | describe SYMBOL | SERVICE/METHOD``

It knows nothing of onelog: names, fields and types come from the server. JSON is that of protobuf,
as grpcurl prints it: names in camel case, 64-bit numbers as text, bytes as base64, defaults left
out. A failed call exits with 64 and its code.
"""

import argparse
import json
import sys
from typing import Any, TextIO

import grpc  # type: ignore[import-untyped]
from google.protobuf import descriptor_pb2, json_format  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # type: ignore[import-untyped]
    ProtoReflectionDescriptorDatabase,
)

TIMEOUT_S = 60
FAILED_CODE_BASE = 64
DETAILS = (error_details_pb2.ErrorInfo, error_details_pb2.RetryInfo)


def say(text: str, to: TextIO = sys.stdout) -> None:
    to.write(f"{text}\n")


class Reflection(ProtoReflectionDescriptorDatabase):  # type: ignore[misc]
    """Descriptors by either name of the service; the messages of both are the same on the wire."""

    def __init__(self, channel: grpc.Channel, version: str) -> None:
        super().__init__(channel)
        self._stub = self  # whom the database asks
        self.ServerReflectionInfo = channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-reflect", choices=("v1alpha", "v1"), default="v1alpha")
    parser.add_argument("-d", dest="data", default="{}")
    parser.add_argument("address")
    parser.add_argument("what")
    parser.add_argument("symbol", nargs="?")
    arguments = parser.parse_args()
    with grpc.insecure_channel(arguments.address) as channel:
        database = Reflection(channel, arguments.reflect)
        pool = DescriptorPool(database)
        if arguments.what == "list":
            say("\n".join(sorted(database.get_services())))
        elif arguments.what == "describe":
            describe(pool, arguments.symbol)
        else:
            return call(channel, pool, arguments.what, arguments.data)
    return 0


def describe(pool: DescriptorPool, symbol: str) -> None:
    """Print the fields of a message."""
    message = pool.FindMessageTypeByName(symbol)
    types = descriptor_pb2.FieldDescriptorProto.Type
    say(f"{symbol} is a message:")
    for field in message.fields:
        kind = types.Name(field.type).removeprefix("TYPE_").lower()
        name = field.message_type.full_name if field.message_type is not None else kind
        say(f"  {name} {field.name} = {field.number};")


def call(channel: grpc.Channel, pool: DescriptorPool, path: str, data: str) -> int:
    """Make a call and print each answer."""
    service, _, name = path.partition("/")
    method = pool.FindServiceByName(service).methods_by_name[name]
    request = json_format.Parse(data, GetMessageClass(method.input_type)())
    decode = GetMessageClass(method.output_type).FromString
    open_call: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
    run = open_call(f"/{service}/{name}", type(request).SerializeToString, decode)
    try:
        answers = run(request, timeout=TIMEOUT_S)
        for answer in answers if method.server_streaming else [answers]:
            say(json_format.MessageToJson(answer, indent=2))
    except grpc.RpcError as error:
        print_error(error)
        return FAILED_CODE_BASE + int(error.code().value[0])
    return 0


def print_error(error: Any) -> None:
    """Print a status with its details."""
    say(f"ERROR:\n  Code: {error.code().name}\n  Message: {error.details()}", sys.stderr)
    for key, value in error.trailing_metadata() or ():
        if key != "grpc-status-details-bin":
            continue
        for packed in status_pb2.Status.FromString(value).details:
            for kind in DETAILS:
                detail = kind()
                if packed.Unpack(detail):
                    document = json_format.MessageToDict(detail)
                    say(f"  {kind.DESCRIPTOR.name}: {json.dumps(document)}", sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
