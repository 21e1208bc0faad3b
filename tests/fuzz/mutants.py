"""Requests that are no longer what a sample was: a field, an element or a byte is another."""

from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

DEPTH_MAX = 8
BYTES_MAX = 4 << 20
CHANGES_MAX = 3

_SMALL = (0, 1, 2, 3, 5, 15, 16, 100, 128, 1_000, 1_001, 4_096, 10_001, 65_535, 65_536, 1 << 20)
_LARGE = (1 << 31, 1 << 32, 1 << 40, 10**15, 10**18, 1 << 62, 1 << 63, 1 << 64)
_NUMBERS = (*_SMALL, *(number + by for number in _LARGE for by in (-1, 0, 1)))
_DOUBLES = (
    0.0, -0.0, 1.0, -1.0, 0.5, 99.9, 100.0, 101.0, 1e300, -1e300, 5e-324, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip
_TEXTS = (
    "", " ", "a", "\0", "\n", "\x7f", "é", "\U0010ffff", "default", "_", ".", ":", "a:b",
    "{", "}", "{}", "{w}", "{a}{b}", "cg:x", "_ts:x", "a" * 127, "a" * 128, "a" * 129, "é" * 65,
    "a" * 257, "a" * 4_097, "a" * 70_000, "..", "a/b", "%", "*", "[", "(", "(a", "a{1000}",
    "((a*)*)*b", "[[:x:]]", "\\", "\\p{L}", "a|b", "?", "* * * * *", "* * * *", "60 * * * *",
    "*/0 * * * *", "0 0 31 2 *", "1-0 * * * *", "99999999999999999999 * * * *", "@daily",
    "127.0.0.1:1", "localhost", "[::1]:99999", "http://x", "-1", "0", "1e9", "nan", "null",
    '{"a":1}', "\ufffe",
    "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff", "dlq.x",
)  # fmt: skip
_BYTES = (
    b"\xff", b"\xff" * 128, b"\x80" * 4_096, bytes(4_096), bytes(4_097), bytes(70_000),
    b"[" * 65, b"[" * 10_000, b'{"a": ' * 70, b"1e999", b"-0", b'"\\ud800"', b"\xef\xbb\xbf1",
    b"9" * 400, b"cg:", b"\x01", b"\0" * 9,
)  # fmt: skip
_COUNTS = (2, 3, 33, 65, 101, 1_001, 1_025, 10_001)

_SIGNED = frozenset((
    FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_INT64, FieldDescriptor.TYPE_SINT32,
    FieldDescriptor.TYPE_SINT64, FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64,
))  # fmt: skip
_NARROW = frozenset((
    FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_ENUM,
))  # fmt: skip


class Mutator:
    """Makes mutants of requests; one seed makes always the same of the same."""

    def __init__(self, random: Random) -> None:
        self._random = random
        # What other fields hold: an id in the place of another.
        self._numbers: list[int] = []
        self._texts: list[str] = []

    def learn(self, request: Message) -> None:
        """Keep the values of a sample, to put them where they do not belong."""
        self._numbers, self._texts = [], []
        self._collect(request)

    def mutate(self, request: Message) -> bytes:
        """Return the bytes of a request that differs from this one, or is none."""
        random = self._random
        made = type(request)()
        made.CopyFrom(request)
        for _ in range(random.choice((1, 1, 1, 2, CHANGES_MAX))):
            self._change(made, 0)
        data: bytes = made.SerializeToString()
        if random.random() < 0.1:
            data = self._mangle(data)
        elif random.random() < 0.03:
            data = self._nest(made, data)
        return data if len(data) <= BYTES_MAX else data[:BYTES_MAX]

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return what else comes with the call: mostly nothing."""
        random = self._random
        if random.random() < 0.95:
            return ()
        name = random.choice(("onelog-forwarded", "onelog-shard", "onelog-client", "traceparent"))
        text = random.choice(("1", "0", "", "-1", "²", "9" * 30, "x" * 100, "00-" + "a" * 52))
        return ((name, text.encode("ascii", "ignore").decode()),)

    # Values

    def _collect(self, message: Message) -> None:
        for field, value in message.ListFields():
            if _is_map(field):
                continue
            values = value if _is_repeated(field) else [value]
            for each in values:
                if isinstance(each, Message):
                    self._collect(each)
                elif isinstance(each, bool):
                    pass
                elif isinstance(each, int):
                    self._numbers.append(each)
                elif isinstance(each, str):
                    self._texts.append(each)

    def _value(self, field: Any) -> Any:
        random = self._random
        match field.cpp_type:
            case FieldDescriptor.CPPTYPE_BOOL:
                return random.random() < 0.5
            case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
                return random.choice(_DOUBLES)
            case FieldDescriptor.CPPTYPE_STRING:
                return self._text(field)
        if field.type == FieldDescriptor.TYPE_ENUM:
            return random.choice((-1, 0, 1, 2, 3, 7, 99, 2**31 - 1, -(2**31)))
        number = random.choice((*_NUMBERS, *self._numbers, random.getrandbits(64)))
        number += random.choice((0, 0, 0, 1, -1))
        if random.random() < 0.3:
            number = -number
        bits = 32 if field.cpp_type in _NARROW else 64
        if field.type in _SIGNED:
            return (number + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
        return number % (1 << bits)

    def _text(self, field: Any) -> Any:
        random = self._random
        if field.type == FieldDescriptor.TYPE_STRING:
            return random.choice((*_TEXTS, *self._texts))
        if random.random() < 0.01:
            return bytes(BYTES_MAX - 1_000)
        if random.random() < 0.5:
            return random.choice(_BYTES)
        return random.choice((*_TEXTS, *self._texts)).encode()

    # Messages

    def _change(self, message: Message, depth: int) -> None:
        """Change something in a message, or in one that it holds."""
        fields = message.DESCRIPTOR.fields
        if not fields:
            return
        field = self._random.choice(fields)
        if _is_map(field):
            self._change_map(getattr(message, field.name), field)
        elif _is_repeated(field):
            self._change_repeated(getattr(message, field.name), field, depth)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            self._change_one(message, field, depth)
        elif self._random.random() < 0.15:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, self._value(field))

    def _change_one(self, message: Message, field: Any, depth: int) -> None:
        chance = self._random.random()
        if chance < 0.15:
            message.ClearField(field.name)
        elif chance < 0.3 or depth >= DEPTH_MAX:
            message.ClearField(field.name)
            getattr(message, field.name).SetInParent()
        else:
            getattr(message, field.name).SetInParent()
            self._change(getattr(message, field.name), depth + 1)

    def _change_repeated(self, values: Any, field: Any, depth: int) -> None:
        random = self._random
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        chance = random.random()
        if chance < 0.1:
            del values[:]
        elif chance < 0.2 and values:
            del values[random.randrange(len(values))]
        elif chance < 0.3 and values:
            self._multiply(values, random.choice(_COUNTS), is_message=is_message)
        elif chance < 0.4 and len(values) > 1:
            shown = [values[at] for at in range(len(values))]
            random.shuffle(shown)
            shown = [_copy(each) for each in shown] if is_message else shown
            del values[:]
            values.extend(shown)
        elif not is_message:
            if values and random.random() < 0.7:
                values[random.randrange(len(values))] = self._value(field)
            else:
                values.append(self._value(field))
        elif values and random.random() < 0.8:
            self._change(values[random.randrange(len(values))], depth + 1)
        elif depth < DEPTH_MAX:
            self._change(values.add(), depth + 1)

    def _multiply(self, values: Any, count: int, *, is_message: bool) -> None:
        one = self._random.choice(values)
        size = one.ByteSize() if is_message else len(str(one))
        count = min(count, BYTES_MAX // (size + 4))
        values.extend([_copy(one) for _ in range(count)] if is_message else [one] * count)

    def _change_map(self, values: Any, field: Any) -> None:
        key, value = (field.message_type.fields_by_name[each] for each in ("key", "value"))
        if self._random.random() < 0.2:
            values.clear()
        for _ in range(self._random.choice((1, 1, 2, 40))):
            made = self._value(key)
            if value.type == FieldDescriptor.TYPE_MESSAGE:
                values[made].SetInParent()
            else:
                values[made] = self._value(value)

    # Bytes

    def _mangle(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.randint(1, 4)):
            at = random.randrange(len(changed) + 1)
            match random.randrange(4):
                case 0:
                    changed.insert(at, random.randrange(256))
                case 1:
                    del changed[at : at + random.randint(1, 8)]
                case 2:
                    changed += random.randbytes(random.randint(1, 8))
                case _:
                    changed[at : at + 1] = random.randbytes(1)
        return bytes(changed)

    def _nest(self, message: Message, data: bytes) -> bytes:
        """Put a request into itself, where it may hold another, again and again."""
        own = [
            each for each in message.DESCRIPTOR.fields if each.message_type == message.DESCRIPTOR
        ]
        for field in own[:1]:
            for _ in range(self._random.choice((1, 2, 50, 98, 200))):
                data = _varint(field.number << 3 | 2) + _varint(len(data)) + data
        return data


def _is_repeated(field: Any) -> bool:
    return bool(field.is_repeated)


def _is_map(field: Any) -> bool:
    return (
        _is_repeated(field)
        and field.type == FieldDescriptor.TYPE_MESSAGE
        and field.message_type.GetOptions().map_entry
    )


def _copy(message: Message) -> Message:
    made = type(message)()
    made.CopyFrom(message)
    return made


def _varint(number: int) -> bytes:
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*made, number))
