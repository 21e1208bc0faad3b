"""Small JSON files with a checksum: a single changed bit is detected.

SYSTEM, NODE and MANIFEST are JSON so that a person can read them in an emergency, and checksummed
so that a program never trusts a damaged one. A file is the canonical encoding of one object::

    json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=True) + "\\n"

with one key of ours in it, ``crc32c``: eight lowercase hex digits, the crc32c of the canonical
encoding of all *other* fields.

Invariants:

* One value has one encoding. Decoding encodes again and compares every byte, so damage that JSON
  itself would forgive (whitespace, the case of an escape, a repeated key) is found as well.
* The checksum is checked before the version: a flipped bit in ``version`` is damage, and only a
  version that was really written is reported as a newer onelog.
* Nothing larger than ``JSON_FILE_SIZE_MAX``, or the limit of its kind of file, is read into memory,
  or written.

A crash leaves the old file or the new one (``replace_file``). ``CorruptFile`` therefore means that
the disk or a person changed the file; it names the rule that broke and is never worked around here.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from uuid import UUID

from crc32c import crc32c

from onelog.ual.errors import CorruptFile, UnknownVersion
from onelog.ual.files import Files, replace_file

JSON_FILE_SIZE_MAX = 16 << 20  # about 80,000 cold ranges; everything else is far smaller
U64_MAX = (1 << 64) - 1
U32_MAX = (1 << 32) - 1

_CRC_KEY = "crc32c"


def encode_json_file(fields: Mapping[str, Any], *, size_max: int | None = None) -> bytes:
    """Return the bytes of a file that holds ``fields``, which carry their own ``version``."""
    assert _CRC_KEY not in fields, "the checksum is added here"
    assert type(fields.get("version")) is int, "every file says its version"
    data = _canonical({**fields, _CRC_KEY: _checksum(fields)})
    size_max = JSON_FILE_SIZE_MAX if size_max is None else size_max
    assert len(data) <= size_max, f"{len(data)} bytes could never be read back"
    return data


def decode_json_file(
    path: str, data: bytes, version_max: int, *, size_max: int | None = None
) -> dict[str, Any]:
    """Return the fields in ``data`` without the checksum, or say which rule is broken."""
    size_max = JSON_FILE_SIZE_MAX if size_max is None else size_max
    if len(data) > size_max:
        raise CorruptFile(path, f"{len(data)} bytes, limit {size_max}")
    fields = _parse(path, data)
    written = fields.pop(_CRC_KEY, None)
    if written is None:
        raise CorruptFile(path, f"field {_CRC_KEY} missing")
    try:
        checksum = _checksum(fields)
    except RecursionError as error:  # the parser goes deeper than the writer
        raise CorruptFile(path, "nested too deep") from error
    if written != checksum:
        raise CorruptFile(path, "checksum")
    version = fields.get("version")
    if type(version) is not int or version < 1:
        raise CorruptFile(path, f"field version is {_shown(version)}, not an integer from 1")
    if version > version_max:
        raise UnknownVersion(path, version, version_max)
    canonical = _canonical({**fields, _CRC_KEY: written})
    if canonical != data:
        raise CorruptFile(path, "not in canonical form", _first_difference(canonical, data))
    return fields


def read_json_file(files: Files, path: Path, version_max: int) -> dict[str, Any]:
    """Read and decode an existing file; its size is checked before anything is read."""
    file = files.open_read(path)
    size = file.size()
    if size > JSON_FILE_SIZE_MAX:
        raise CorruptFile(str(path), f"{size} bytes, limit {JSON_FILE_SIZE_MAX}")
    return decode_json_file(str(path), file.read(size, 0), version_max)


def write_json_file(files: Files, path: Path, fields: Mapping[str, Any]) -> None:
    """Write ``fields`` so that a crash leaves the old file or the new one."""
    replace_file(files, path, [encode_json_file(fields)])


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one decoded object, read by type; a wrong one is ``CorruptFile``.

    The checksum holds when these run, so a broken rule means that somebody wrote a file by other
    rules, not that the disk rotted. It is refused all the same: a file is never trusted in part.
    """

    path: str
    values: Mapping[str, Any]
    prefix: str = ""  # where this object stands in the file, for messages: "cold[3]."

    def only(self, *names: str) -> None:
        """Refuse a field that this version does not know; a new field needs a new version."""
        for name in self.values:
            if name not in names:
                self.refuse(f"field {self.prefix}{name[:80]} unknown")

    def integer(self, name: str, *, minimum: int = 0, maximum: int = U64_MAX) -> int:
        """Return a whole number within the limits."""
        value = self._value(name)
        # bool is a subclass of int in Python, and True is not 1 in a file.
        if type(value) is not int:
            self.refuse(f"field {self.prefix}{name} is {_shown(value)}, not an integer")
        if not minimum <= value <= maximum:
            self.refuse(
                f"field {self.prefix}{name} is {_shown(value)}, not within {minimum} to {maximum}"
            )
        return value

    def integer_or_none(self, name: str, *, minimum: int = 0) -> int | None:
        """Return a whole number, or None for null. The field itself must be there."""
        return None if self._value(name) is None else self.integer(name, minimum=minimum)

    def text(self, name: str, *, size_max: int, size_min: int = 1) -> str:
        """Return a text whose length is within the limits."""
        value = self._value(name)
        if not isinstance(value, str):
            self.refuse(f"field {self.prefix}{name} is {_shown(value)}, not a text")
        if not size_min <= len(value) <= size_max:
            self.refuse(
                f"field {self.prefix}{name} has {len(value)} characters, "
                f"not {size_min} to {size_max}"
            )
        return value

    def uuid(self, name: str) -> UUID:
        """Return a UUID that is written in its usual form."""
        text = self.text(name, size_max=36)
        try:
            value = UUID(text)
        except ValueError:
            value = None
        if value is None or str(value) != text:
            self.refuse(f"field {self.prefix}{name} is {_shown(text)}, not a UUID")
        return value

    def nested(self, name: str) -> "Fields":
        """Return the object in a field."""
        return self._as_object(self._value(name), name)

    def rows(self, name: str, *, count_max: int) -> list["Fields"]:
        """Return the objects of a list."""
        value = self._value(name)
        if not isinstance(value, list | tuple):  # a tuple: fields that are about to be encoded
            self.refuse(f"field {self.prefix}{name} is {_shown(value)}, not a list")
        if len(value) > count_max:
            self.refuse(f"field {self.prefix}{name} has {len(value)} items, limit {count_max}")
        return [self._as_object(row, f"{name}[{number}]") for number, row in enumerate(value)]

    def refuse(self, rule: str) -> NoReturn:
        """Raise ``CorruptFile`` for a rule that only the caller knows."""
        raise CorruptFile(self.path, rule)

    def _value(self, name: str) -> Any:
        if name not in self.values:
            self.refuse(f"field {self.prefix}{name} missing")
        return self.values[name]

    def _as_object(self, value: Any, name: str) -> "Fields":
        if not isinstance(value, dict):
            self.refuse(f"field {self.prefix}{name} is {_shown(value)}, not an object")
        return Fields(self.path, value, f"{self.prefix}{name}.")


def _canonical(fields: Mapping[str, Any]) -> bytes:
    text = json.dumps(fields, sort_keys=True, indent=2, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def _checksum(fields: Mapping[str, Any]) -> str:
    return f"{crc32c(_canonical(fields)):08x}"


def _parse(path: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(
            data.decode("ascii"), parse_float=_refuse_number, parse_constant=_refuse_number
        )
    except json.JSONDecodeError as error:
        raise CorruptFile(path, f"not JSON: {error.msg}", error.pos) from error
    except UnicodeDecodeError as error:
        raise CorruptFile(path, "not JSON: a byte outside ASCII", error.start) from error
    except (ValueError, RecursionError) as error:
        # Numbers of thousands of digits, or brackets nested without end: never ours.
        raise CorruptFile(path, f"not JSON: {str(error)[:80]}") from error
    if not isinstance(fields, dict):
        raise CorruptFile(path, "not a JSON object")
    return fields


def _refuse_number(text: str) -> NoReturn:
    """Refuse fractions, NaN and Infinity: no field of ours has them."""
    raise ValueError(f"{text[:40]} is not a whole number")


def _first_difference(expected: bytes, data: bytes) -> int:
    shorter = min(len(expected), len(data))
    return next((at for at in range(shorter) if expected[at] != data[at]), shorter)


def _shown(value: object) -> str:
    """Return a value for a message, shortened: a foreign file may hold megabytes."""
    if type(value) is int and value.bit_length() > 128:
        return "a number of more than 128 bits"
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    return repr(value)[:80]
