"""One line about a key-value entry, for people who look into a log."""

import codecs
from typing import assert_never

from projections.kv_commands import (
    Append,
    Command,
    Delete,
    DeleteRange,
    Get,
    Increment,
    JsonDelete,
    JsonSet,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Operation,
    Put,
    PutMany,
    Touch,
    Transaction,
    decode_command,
)
from projections.kv_json import Path
from projections.payload import read_prefix
from ual.entry import Entry

SHOWN_BYTES_MAX = 60  # of one key or value
OPERATIONS_SHOWN_MAX = 4  # of one list of a transaction


def describe_kv_entry(entry: Entry) -> str:
    """Return what an entry of owner 0x01 asks for; raise ``BadPayload`` or ``DataError``.

    Keys and values come from the log and are not escaped.
    """
    prefix, reader = read_prefix(entry.plain_payload())
    return f"{prefix.namespace}: {_describe(decode_command(entry.entry_type & 0xFF, reader))}"


def shown_bytes(data: bytes) -> str:
    """Return the beginning of some bytes: as text if they are that, else in hex."""
    begin = data[:SHOWN_BYTES_MAX]
    is_cut = len(data) > len(begin)
    try:
        # A character that is cut in two at the end is left out.
        shown = codecs.getincrementaldecoder("utf-8")().decode(begin, final=not is_cut)
    except UnicodeDecodeError:
        shown = f"0x{begin.hex()}"
    return f"{shown}…" if is_cut else shown


def _describe(command: Command) -> str:
    match command:
        case LeaseGrant(ttl_ns):
            return f"grant a lease of {_seconds(ttl_ns)}"
        case LeaseKeepalive(lease):
            return f"keep lease {lease} alive"
        case LeaseRevoke(lease):
            return f"revoke lease {lease}"
        case Transaction(conditions, then, otherwise):
            text = f"transaction: if {len(conditions)} conditions hold, {_describe_all(then)}"
            return f"{text}, else {_describe_all(otherwise)}" if otherwise else text
        case PutMany():
            return f"at once {_describe_all(tuple(command.puts()))}"
        case _:
            return _describe_operation(command)


def _describe_operation(operation: Operation) -> str:
    match operation:
        case Put(key, value, ttl_ns, lease, expected):
            ttl = None if ttl_ns is None else _seconds(ttl_ns)
            rest = _options(ttl=ttl, lease=lease, expected=expected)
            return f"put {shown_bytes(key)} = {shown_bytes(value)}{rest}"
        case Delete(key, expected):
            return f"delete {shown_bytes(key)}{_options(expected=expected)}"
        case Touch(key, ttl_ns, expected):
            how_long = f"for {_seconds(ttl_ns)}" if ttl_ns else "on"
            return f"let {shown_bytes(key)} live {how_long}{_options(expected=expected)}"
        case Increment(key, delta):
            return f"increment {shown_bytes(key)} by {delta}"
        case Minimum(key, operand):
            return f"lower {shown_bytes(key)} to {operand}"
        case Maximum(key, operand):
            return f"raise {shown_bytes(key)} to {operand}"
        case Append(key, data):
            return f"append {shown_bytes(data)} to {shown_bytes(key)}"
        case JsonSet(key, path, text):
            return f"set {_path(path)} of {shown_bytes(key)} to {shown_bytes(text)}"
        case JsonDelete(key, path):
            return f"delete {_path(path)} of {shown_bytes(key)}"
        case DeleteRange(start, end, limit):
            until = "the end" if end is None else shown_bytes(end)
            return f"delete up to {limit} keys from {shown_bytes(start)} to before {until}"
        case Get(key):
            return f"get {shown_bytes(key)}"
        case _:
            assert_never(operation)


def _describe_all(operations: tuple[Operation, ...]) -> str:
    shown = [_describe_operation(each) for each in operations[:OPERATIONS_SHOWN_MAX]]
    if len(operations) > len(shown):
        shown.append(f"and {len(operations) - len(shown)} more")
    return f"[{', '.join(shown)}]"


def _options(**options: int | str | None) -> str:
    shown = [f"{name} {value}" for name, value in options.items() if value is not None]
    return f" ({', '.join(shown)})" if shown else ""


def _path(path: Path) -> str:
    steps = (f".{step}" if isinstance(step, str) else f"[{_place(step)}]" for step in path)
    return "".join(steps) or "all"


def _place(step: int | None) -> str:
    return "end" if step is None else str(step)


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1_000_000_000:g} s"
