"""Conditions and operations as JSON, for ``onelog kv txn`` and ``onelog transact``.

A field of bytes is text under its name, or base64 under ``NAME_base64``; ``value_json`` is any JSON
that becomes the value. A field that is missing, unknown or of the wrong type is refused, with its
place in the document (``then[2].key``), before anything is sent.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import typer

from onelog.cli.failure import CommandFailed
from onelog.cli.output import plain
from onelog.cli.values import duration_s, parse_json, time_ns

Entry = dict[str, Any]
# Of each field of an operation: the function that reads it, and whether it is required.
Fields = dict[str, tuple[Callable[[Entry, str, str], Any], bool]]


def wrong(where: str, why: str) -> CommandFailed:
    """Return the error for a wrong document."""
    return CommandFailed("DOCUMENT_INVALID", f"{where} {why}")


def read(data: bytes, parts: Sequence[str]) -> dict[str, list[Entry]]:
    """Return the parts of a document, each a list of objects."""
    document = parse_json(data, "the document")
    if not isinstance(document, dict):
        raise wrong("the document", "is no object")
    unknown = sorted(set(document) - set(parts))
    if unknown:
        raise wrong(unknown[0], f"is not one of {', '.join(parts)}")
    found = {}
    for part in parts:
        entries = document.get(part, [])
        if not isinstance(entries, list) or not all(isinstance(each, dict) for each in entries):
            raise wrong(part, "is no list of objects")
        found[part] = entries
    return found


# Fields


def bytes_field(entry: Entry, name: str, where: str) -> bytes:
    """Return a field of bytes, under any of its names."""
    if isinstance(entry.get(name), str):
        return _encoded(str(entry[name]), f"{where}.{name}")
    if isinstance(entry.get(f"{name}_base64"), str):
        try:
            return base64.b64decode(entry[f"{name}_base64"], validate=True)
        except ValueError:  # also of what is not ASCII
            raise wrong(f"{where}.{name}_base64", "is no base64") from None
    if f"{name}_json" in entry:
        text = json.dumps(entry[f"{name}_json"], ensure_ascii=False, separators=(",", ":"))
        return _encoded(text, f"{where}.{name}_json")
    raise wrong(f"{where}.{name}", f"is no text, and there is no {name}_base64")


def _encoded(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can name half of a character
        raise wrong(where, "is no text that UTF-8 can hold") from None


def _typed(kinds: tuple[type, ...], what: str) -> Callable[[Entry, str, str], Any]:
    def read_field(entry: Entry, name: str, where: str) -> Any:
        # Not isinstance: to Python true is a number.
        if type(entry[name]) not in kinds:
            raise wrong(f"{where}.{name}", f"is no {what}")
        return entry[name]

    return read_field


_number = _typed((int,), "whole number")
_text = _typed((str,), "text")
_switch = _typed((bool,), "true or false")


def _anything(entry: Entry, name: str, _where: str) -> Any:
    return entry[name]


def _parsed(parse: Callable[[str], Any]) -> Callable[[Entry, str, str], Any]:
    def read_field(entry: Entry, name: str, where: str) -> Any:
        try:
            return parse(str(entry[name]))
        except typer.BadParameter as error:
            raise wrong(f"{where}.{name}", error.message) from None

    return read_field


_duration, _time = _parsed(duration_s), _parsed(time_ns)


def _path(entry: Entry, name: str, where: str) -> Any:
    path = entry[name]
    steps = path if isinstance(path, list) else [path]
    if not all(type(step) in (str, int) for step in steps):
        raise wrong(f"{where}.{name}", "is no name, no number and no list of them")
    return steps


def _headers(entry: Entry, name: str, where: str) -> Any:
    headers = entry[name]
    if not isinstance(headers, dict):
        raise wrong(f"{where}.{name}", "is no object")
    names = {each.removesuffix("_base64") for each in headers}
    return {each: bytes_field(headers, each, f"{where}.{name}") for each in names}


def _list(*kinds: type) -> Callable[[Entry, str, str], Any]:
    def read_field(entry: Entry, name: str, where: str) -> Any:
        listed = entry[name]
        if not isinstance(listed, list) or not all(type(each) in kinds for each in listed):
            raise wrong(f"{where}.{name}", f"is no list of {kinds[0].__name__}")
        return listed

    return read_field


def _columns(entry: Entry, name: str, where: str) -> Any:
    columns = entry[name]
    if not isinstance(columns, dict):
        raise wrong(f"{where}.{name}", "is no object")
    return {each: _list(float, int, bool)(columns, each, f"{where}.{name}") for each in columns}


def _tags(entry: Entry, name: str, where: str) -> Any:
    tags = entry[name]
    if not isinstance(tags, dict) or not all(isinstance(each, str) for each in tags.values()):
        raise wrong(f"{where}.{name}", "is no object of texts")
    return tags


def _number_pairs(entry: Entry, name: str, where: str) -> Any:
    pairs = entry[name]
    if not isinstance(pairs, list) or not all(
        isinstance(each, list) and len(each) == 2 and all(type(part) is int for part in each)
        for each in pairs
    ):
        raise wrong(f"{where}.{name}", "is no list of pairs of numbers")
    return pairs


def _producer(entry: Entry, name: str, where: str) -> Any:
    from onelog import Producer

    given, names = entry[name], {"id", "epoch", "sequence"}
    if not isinstance(given, dict) or given.keys() != names:
        raise wrong(f"{where}.{name}", "is no object with id, epoch and sequence")
    numbers = {each: _number(given, each, f"{where}.{name}") for each in names}
    return Producer(numbers["id"], numbers["epoch"], numbers["sequence"])


# Operations

_KEY: Fields = {"key": (bytes_field, True)}
_PUT: Fields = _KEY | {
    "value": (bytes_field, True), "ttl": (_duration, False), "lease": (_number, False),
    "expected_version": (_number, False),
}  # fmt: skip
_KEY_OPERATIONS: dict[str, Fields] = {
    "put": _PUT,
    "delete": _KEY | {"expected_version": (_number, False)},
    "touch": _KEY | {"ttl": (_duration, True)},
    "increment": _KEY | {"by": (_number, False)},
    "append": _KEY | {"data": (bytes_field, True)},
    "set_json": _KEY | {"path": (_path, True), "value": (_anything, True)},
    "delete_json": _KEY | {"path": (_path, True)},
}
TXN_OPERATIONS: dict[str, Fields] = {"get": _KEY, **_KEY_OPERATIONS}
_MESSAGES: Fields = {"queue": (_text, True), "messages": (_number_pairs, True)}
BATCH_OPERATIONS: dict[str, Fields] = {
    **_KEY_OPERATIONS,
    "enqueue": {
        "queue": (_text, True), "body": (bytes_field, True), "priority": (_number, False),
        "delay": (_duration, False), "at": (_time, False), "ttl": (_duration, False),
        "dedup_id": (bytes_field, False), "group": (bytes_field, False),
        "tenant": (bytes_field, False), "headers": (_headers, False),
    },
    "ack": _MESSAGES,
    "nack": _MESSAGES | {"delay": (_duration, False), "reason": (_text, False)},
    "append_record": {
        "stream": (_text, True), "value": (bytes_field, True), "key": (bytes_field, False),
        "tag": (_text, False), "headers": (_headers, False), "partition": (_number, False),
        "producer": (_producer, False),
    },
    "ack_records": {
        "stream": (_text, True), "group": (_text, True), "member_id": (_number, True),
        "records": (_number_pairs, True),
    },
    "commit_offsets": {
        "stream": (_text, True), "group": (_text, True), "records": (_number_pairs, True),
        "member_id": (_number, False), "generation": (_number, False),
    },
    "write_points": {
        "measurement": (_text, True), "times": (_list(int), True), "fields": (_columns, True),
        "tags": (_tags, False),
    },
}  # fmt: skip
# The client's names for fields that differ from ours, by a unit or a number.
_PARAMETERS = {"ttl": "ttl_s", "delay": "delay_s", "at": "at_ns", "lease": "lease_id",
               "times": "times_ns"}  # fmt: skip


def add_conditions(target: Any, entries: Iterable[Entry]) -> None:
    """Add conditions to a transaction or a batch."""
    for number, entry in enumerate(entries):
        where = f"when[{number}]"
        key = bytes_field(entry, "key", where)
        tests: dict[str, Any] = {}
        if "exists" in entry:
            tests["exists"] = _switch(entry, "exists", where)
        if "version" in entry:
            tests["version"] = _number(entry, "version", where)
        if {"value", "value_base64", "value_json"} & entry.keys():
            tests["value"] = bytes_field(entry, "value", where)
        target.when(key, **tests, comparison=_text({"is": "=="} | entry, "is", where))


def add_operations(
    target: Any, entries: Iterable[Entry], part: str, operations: Mapping[str, Fields]
) -> None:
    """Add operations to a branch of a transaction, or to a batch."""
    for number, entry in enumerate(entries):
        where = f"{part}[{number}]"
        name = str(entry.get("op"))
        if name not in operations:
            raise wrong(f"{where}.op", f"is not one of {', '.join(operations)}")
        values = _values(entry, where, operations[name])
        getattr(target, name)(**_arguments(name, values))


def _values(entry: Entry, where: str, fields: Fields) -> dict[str, Any]:
    known = {"op", *fields} | {f"{name}{end}" for name in fields for end in ("_base64", "_json")}
    unknown = sorted(set(entry) - known)
    if unknown:
        raise wrong(f"{where}.{unknown[0]}", f"is not one of {', '.join(fields)}")
    values = {}
    for name, (read_field, is_required) in fields.items():
        if {name, f"{name}_base64", f"{name}_json"} & entry.keys():
            values[_PARAMETERS.get(name, name)] = read_field(entry, name, where)
        elif is_required:
            raise wrong(f"{where}.{name}", "is missing")
    return values


def _arguments(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the client's method of that name."""
    from onelog import Message, NewMessage, NewRecord, Record

    match name:
        case "enqueue":
            return {"queue": values.pop("queue"), "message": NewMessage(**values)}
        case "ack" | "nack":
            messages = [Message(number, b"", token) for number, token in values["messages"]]
            return values | {"messages": messages}
        case "append_record":
            stream, producer = values.pop("stream"), values.pop("producer", None)
            return {"stream": stream, "record": NewRecord(**values), "producer": producer}
        case "ack_records" | "commit_offsets":
            records = [Record(offset, b"", partition=at) for at, offset in values["records"]]
            return values | {"records": records}
        case _:
            return values


def shown(results: Iterable[Any]) -> list[Any]:
    """Convert the results of operations for JSON."""
    return [plain(each) for each in results]
