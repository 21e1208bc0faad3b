"""JSON documents: reading and changing one field of a value.

A document is stored as the bytes that the client sent until one of its fields is changed. Then it
is written again in one fixed form: no spaces, members in their old order, new members at the end,
of a repeated member the last one, characters beyond ASCII as UTF-8. Numbers are kept as text:
nothing here turns them into floats, so a rewrite does not change them.

Depth is checked on the text before it is parsed: the parser's own limit depends on the stack
that is left, which differs between replicas, and refusals must not.
"""

import json
import re
from collections.abc import Sequence
from json.encoder import encode_basestring
from typing import NoReturn

from onelog.projections.codec import U8, U16, U32, Reader, encode_sized
from onelog.projections.errors import BadDocument, BadPayload
from onelog.projections.limits import JSON_DEPTH_MAX, JSON_PATH_MAX, JSON_SIZE_MAX
from onelog.projections.reasons import Reason

Step = str | int | None
"""A member's name, an element's position, or None: one past the last element."""

Path = tuple[Step, ...]

STEP_MEMBER = 1
STEP_ELEMENT = 2
STEP_PAST_END = 3

# Strings first, so that brackets inside them do not count. Possessive, and an unclosed string
# runs to the end: each byte is visited once, whatever the text.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[{]|[\]}]', re.DOTALL)


class Number(str):
    """A JSON number as it was written."""

    __slots__ = ()


Json = dict[str, "Json"] | list["Json"] | str | bool | None
"""A parsed document; numbers are ``Number``."""


def read_path(reader: Reader) -> Path:
    """Read a path from a payload."""
    count = reader.number(U8)
    if count > JSON_PATH_MAX:
        raise BadPayload(Reason.PAYLOAD_COUNT_TOO_LARGE, count)
    steps: list[Step] = []
    for _ in range(count):
        kind = reader.number(U8)
        if kind == STEP_MEMBER:
            steps.append(reader.text(U16))
        elif kind == STEP_ELEMENT:
            steps.append(reader.number(U32))
        elif kind == STEP_PAST_END:
            steps.append(None)
        else:
            raise BadPayload(Reason.PAYLOAD_FIELD_INVALID, kind)
    return tuple(steps)


def encode_path(path: Path) -> bytes:
    """Return the bytes of a path."""
    parts = [U8.pack(len(path))]
    for step in path:
        if isinstance(step, str):
            parts += (U8.pack(STEP_MEMBER), encode_sized(U16, step.encode()))
        elif isinstance(step, int):
            parts += (U8.pack(STEP_ELEMENT), U32.pack(step))
        else:
            parts.append(U8.pack(STEP_PAST_END))
    return b"".join(parts)


def get_field(text: bytes, path: Path) -> bytes:
    """Return the field at ``path`` as JSON text."""
    node = _parse(text)
    for position, step in enumerate(path):
        node = _child(node, step, position)
    return _encode(node)


def set_field(text: bytes | None, path: Path, field: bytes, *, create_parents: bool) -> bytes:
    """Return the document with the field set; ``text`` is None where there is no document yet."""
    value = _parse(field)
    if not path:
        return _encode(value)
    if text is not None:
        root = _parse(text)
    elif create_parents:
        root = _empty_for(path[0], 0)
    else:
        raise BadDocument(Reason.KEY_NOT_FOUND)
    node = root
    for position, step in enumerate(path[:-1]):
        node = _descend(node, step, path[position + 1], position, create_parents=create_parents)
    last, position = path[-1], len(path) - 1
    match node, last:
        case dict(), str():
            node[last] = value
        case list(), None:
            node.append(value)
        case list(), int():
            _child(node, last, position)
            node[last] = value
        case _:
            raise BadDocument(Reason.JSON_PATH_INVALID, position)
    return _encode(root)


def delete_field(text: bytes, path: Path) -> bytes:
    """Return the document without the field."""
    if not path:
        raise BadDocument(Reason.JSON_PATH_INVALID)
    root = _parse(text)
    node = root
    for position, step in enumerate(path):
        parent, node = node, _child(node, step, position)
    match parent, path[-1]:
        case dict(), str(name):
            del parent[name]
        case list(), int(at):
            del parent[at]
    return _encode(root)


def _descend(
    node: Json, step: Step, following: Step, position: int, *, create_parents: bool
) -> Json:
    """Go one step down; create a missing parent of the type that the following step needs."""
    if create_parents:
        if isinstance(node, dict) and isinstance(step, str) and step not in node:
            node[step] = _empty_for(following, position + 1)
        elif isinstance(node, list) and step is None:
            node.append(_empty_for(following, position + 1))
            return node[-1]
    return _child(node, step, position)


def _empty_for(step: Step, position: int) -> Json:
    if isinstance(step, str):
        return {}
    if step is None:
        return []
    raise BadDocument(Reason.JSON_PATH_NOT_FOUND, position)


def _child(node: Json, step: Step, position: int) -> Json:
    match node, step:
        case dict(), str():
            if step not in node:
                raise BadDocument(Reason.JSON_PATH_NOT_FOUND, position)
            return node[step]
        case list(), int():
            if not -len(node) <= step < len(node):  # only reads count from the end
                raise BadDocument(Reason.JSON_PATH_NOT_FOUND, position)
            return node[step]
        case _:
            raise BadDocument(Reason.JSON_PATH_INVALID, position)


def _parse(text: bytes) -> Json:
    if len(text) > JSON_SIZE_MAX:
        raise BadDocument(Reason.JSON_TOO_LARGE, len(text))
    _check_depth(text)
    try:
        document: Json = json.loads(
            text.decode(), parse_float=Number, parse_int=Number, parse_constant=_refuse_constant
        )
    except ValueError as error:  # also what bad UTF-8 raises
        raise BadDocument(Reason.JSON_INVALID) from error
    return document


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _check_depth(text: bytes) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        first = text[token.start()]
        if first in b"[{":
            depth += 1
            if depth > JSON_DEPTH_MAX:
                raise BadDocument(Reason.JSON_TOO_DEEP, JSON_DEPTH_MAX)
        elif first in b"]}":
            depth -= 1


def _encode(node: Json) -> bytes:
    parts: list[str] = []
    _write(node, parts)
    try:
        text = "".join(parts).encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, written as an escape
        raise BadDocument(Reason.JSON_INVALID) from error
    if len(text) > JSON_SIZE_MAX:
        raise BadDocument(Reason.JSON_TOO_LARGE, len(text))
    _check_depth(text)
    return text


def _write(node: Json, parts: list[str]) -> None:
    match node:
        case None:
            parts.append("null")
        case bool():
            parts.append("true" if node else "false")
        case Number():
            parts.append(node)
        case str():
            parts.append(encode_basestring(node))
        case dict():
            _write_list("{", [(encode_basestring(name) + ":", node[name]) for name in node], parts)
            parts.append("}")
        case list():
            _write_list("[", [("", element) for element in node], parts)
            parts.append("]")


def _write_list(opening: str, members: Sequence[tuple[str, Json]], parts: list[str]) -> None:
    parts.append(opening)
    for position, (name, value) in enumerate(members):
        parts.append(("," if position else "") + name)
        _write(value, parts)
