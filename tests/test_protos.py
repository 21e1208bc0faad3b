"""The protos are the reference of the API: whatever is in one says what it is."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc  # type: ignore[import-untyped]

from tests.documents import ROOT

PROTOS = sorted((ROOT / "proto" / "onelog" / "v1").glob("*.proto"))

Place = tuple[int, ...]
Named = tuple[str, Place]

# Numbers of the fields of descriptor.proto, of which the paths of source locations are made.
FILE_MESSAGE, FILE_ENUM, FILE_SERVICE = 4, 5, 6
MESSAGE_FIELD, MESSAGE_NESTED, MESSAGE_ENUM, ENUM_VALUE, SERVICE_METHOD = 2, 3, 4, 2, 2


def compiled(protos: list[Path], root: Path, out: Path) -> FileDescriptorSet:
    arguments = [f"-I{root}", "--include_source_info", f"--descriptor_set_out={out}"]
    assert protoc.main(["protoc", *arguments, *map(str, protos)]) == 0
    return FileDescriptorSet.FromString(out.read_bytes())


def parts(file: FileDescriptorProto) -> Iterator[Named]:
    """Yield everything in a file that needs a word, with its path."""
    for at, message in enumerate(file.message_type):
        yield from message_parts(message, "", (FILE_MESSAGE, at))
    for at, enum in enumerate(file.enum_type):
        yield from enum_parts(enum, "", (FILE_ENUM, at))
    for at, service in enumerate(file.service):
        path = (FILE_SERVICE, at)
        yield service.name, path
        for number, method in enumerate(service.method):
            yield f"{service.name}.{method.name}", (*path, SERVICE_METHOD, number)


def message_parts(message: Any, outer: str, path: Place) -> Iterator[Named]:
    if message.options.map_entry:
        return  # made by the compiler
    name = outer + message.name
    yield name, path
    for at, field in enumerate(message.field):
        yield f"{name}.{field.name}", (*path, MESSAGE_FIELD, at)
    for at, nested in enumerate(message.nested_type):
        yield from message_parts(nested, f"{name}.", (*path, MESSAGE_NESTED, at))
    for at, enum in enumerate(message.enum_type):
        yield from enum_parts(enum, f"{name}.", (*path, MESSAGE_ENUM, at))


def enum_parts(enum: Any, outer: str, path: Place) -> Iterator[Named]:
    name = outer + enum.name
    yield name, path
    for at, value in enumerate(enum.value):
        yield f"{name}.{value.name}", (*path, ENUM_VALUE, at)


def silent(files: FileDescriptorSet) -> list[str]:
    """Return what has no comment of its own."""
    found = []
    for file in files.file:
        words = {
            tuple(each.path): (each.leading_comments + each.trailing_comments).strip()
            for each in file.source_code_info.location
        }
        found += [f"{file.name}: {name}" for name, path in parts(file) if not words.get(path)]
    return found


def test_every_message_field_value_and_call_has_a_comment_of_its_own(tmp_path: Path) -> None:
    files = compiled(PROTOS, ROOT / "proto", tmp_path / "all")

    assert sum(1 for file in files.file for _ in parts(file)) > 1_500
    assert not silent(files)


SILENT = """
syntax = "proto3";

// Of nothing: a line is between.

message Known {
  int32 told = 1;  // Told.
  int32 untold = 2;
  enum Kind { NONE = 0; }
  map<string, int32> both = 3;  // A map.
}

service Serves { rpc Call(Known) returns (Known); }
"""


def test_what_has_no_comment_of_its_own_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x.proto"
    file.write_text(SILENT)

    found = silent(compiled([file], tmp_path, tmp_path / "out"))

    names = ["Known", "Known.untold", "Known.Kind", "Known.Kind.NONE", "Serves", "Serves.Call"]
    assert found == [f"x.proto: {each}" for each in names]
