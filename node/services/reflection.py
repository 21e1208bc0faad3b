"""What this process serves, in the words of its protos, for tools such as grpcurl.

``grpc.reflection.v1`` and the older ``v1alpha`` are the same messages under two names. Only the
latter comes with the library, so the former is made of it. Descriptors are those of the protos that
this process has loaded.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2  # type: ignore[import-untyped]

from onelog.errors import NotFound
from onelog.node.context import Service
from onelog.node.edge.calls import Call, Calls

_POOL = descriptor_pool.Default()
_V1ALPHA, _V1 = "grpc.reflection.v1alpha", "grpc.reflection.v1"
_NAME = "ServerReflection"


def make_reflection(calls: Calls, names: Sequence[str]) -> list[Service]:
    """Return the services that tell about these, about health and about themselves."""
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    reflection = _Reflection((*names, health, f"{_V1ALPHA}.{_NAME}", f"{_V1}.{_NAME}"))
    return [
        calls.service(_find_v1alpha(), reflection, is_open=True),
        calls.service(_find_v1(), reflection, is_open=True),
    ]


def _find_v1alpha() -> Any:
    return reflection_pb2.DESCRIPTOR.services_by_name[_NAME]


def _find_v1() -> Any:
    """Return the service of v1, made of v1alpha's if it is not loaded."""
    try:
        return _POOL.FindServiceByName(f"{_V1}.{_NAME}")
    except KeyError:
        pass
    file = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "grpc/reflection/v1/reflection.proto", _V1

    def renamed(name: str) -> str:
        return name.replace(f".{_V1ALPHA}.", f".{_V1}.")

    for message in file.message_type:
        for field in filter(lambda each: each.type_name, message.field):
            field.type_name = renamed(field.type_name)
    for method in file.service[0].method:
        method.input_type = renamed(method.input_type)
        method.output_type = renamed(method.output_type)
    _POOL.AddSerializedFile(file.SerializeToString())
    return _POOL.FindServiceByName(f"{_V1}.{_NAME}")


class _Reflection:
    """Answers questions about descriptors."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = sorted(names)

    async def server_reflection_info(
        self,
        messages: AsyncIterator[Any],
        call: Call,
        send: Callable[[Any], Awaitable[None]],
    ) -> None:
        """Answer each question of a stream."""
        async for request in messages:
            answer = call.response(original_request=request, valid_host=request.host)
            try:
                self._fill(answer, request)
            except KeyError:
                answer.error_response.error_code = NotFound.code
                answer.error_response.error_message = "not found"
            await send(answer)

    def _fill(self, answer: Any, request: Any) -> None:
        """Put in what is asked for; raises KeyError."""
        match request.WhichOneof("message_request"):
            case "file_by_filename":
                _fill_files(answer, _POOL.FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                _fill_files(answer, _find_file(request.file_containing_symbol))
            case "file_containing_extension":
                asked = request.file_containing_extension
                extended = _POOL.FindMessageTypeByName(asked.containing_type)
                found = _POOL.FindExtensionByNumber(extended, asked.extension_number)
                _fill_files(answer, found.file)
            case "all_extension_numbers_of_type":
                asked = request.all_extension_numbers_of_type
                extended = _POOL.FindMessageTypeByName(asked)
                numbers = answer.all_extension_numbers_response
                numbers.base_type_name = extended.full_name
                found = _POOL.FindAllExtensions(extended)
                numbers.extension_number.extend(sorted(each.number for each in found))
            case "list_services":
                for name in self._names:
                    answer.list_services_response.service.add(name=name)
            case _:
                raise KeyError


def _find_file(symbol: str) -> Any:
    """Return the file of a symbol, which may be a method; the pool knows those by their service."""
    try:
        return _POOL.FindFileContainingSymbol(symbol)
    except KeyError:
        service, _, method = symbol.rpartition(".")
        return _POOL.FindServiceByName(service).methods_by_name[method].containing_service.file


def _fill_files(answer: Any, file: Any) -> None:
    """Add a file and all that it imports, directly or not."""
    files, waiting = {file.name: file}, [file]
    while waiting:
        for each in waiting.pop().dependencies:
            if each.name not in files:
                files[each.name] = each
                waiting.append(each)
    for each in files.values():
        proto = descriptor_pb2.FileDescriptorProto()
        each.CopyToProto(proto)
        answer.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
