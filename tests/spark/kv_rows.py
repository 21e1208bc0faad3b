"""Operations on keys: random ones from a seed, and their rows by the projections' decoder.

The commands have every value that a field can hold; they are encoded and never applied.
"""

from collections.abc import Callable
from random import Random

from onelog.projections.codec import SessionRef, read_prefix
from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
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
    Nested,
    Put,
    PutMany,
    Touch,
    Transaction,
    decode_command,
    encode_command,
    put_bodies,
)
from onelog.projections.kv.documents import Path, Step
from onelog.projections.limits import I64_MAX, I64_MIN, TTL_NS_MAX
from onelog.ual.entry import OWNER_KV, Draft, Entry
from tests.spark.entries import Row

NAMESPACES = ("default", "d", "ä" * 20, "orders-" + "x" * 50)
NAMES: dict[type[Command], str] = {
    Put: "put", Delete: "delete", Touch: "touch", Increment: "increment", Minimum: "min",
    Maximum: "max", Append: "append", JsonSet: "json_set", JsonDelete: "json_delete",
    LeaseGrant: "lease_grant", LeaseKeepalive: "lease_keepalive", LeaseRevoke: "lease_revoke",
    Transaction: "transaction", DeleteRange: "delete_range", PutMany: "put_many", Get: "get",
}  # fmt: skip
COMPARISONS = (None, "==", "!=", "<", "<=", ">", ">=")
OPERANDS = (
    "key", "value", "ttl_ns", "lease", "expected", "operand", "path", "create_parents", "end_key",
    "limit", "branch", "conditions",
)  # fmt: skip


class Commands:
    """Draws commands of every kind."""

    def __init__(self, seed: int) -> None:
        self.draw = Random(seed)

    def draft(self) -> Draft:
        draw = self.draw
        session = None
        if draw.random() < 0.2:
            session = SessionRef(*sorted(draw.getrandbits(63) for _ in range(3)))
        return encode_command(self.command(), draw.choice(NAMESPACES), session)

    def command(self) -> Command:
        draw = self.draw
        match draw.randrange(16):
            case 0:
                return LeaseGrant(draw.randint(1, TTL_NS_MAX))
            case 1:
                return LeaseKeepalive(self.number())
            case 2:
                return LeaseRevoke(self.number())
            case 3 | 4:
                return self.put_many()
            case 5:
                return self.transaction()
            case _:
                return draw.choice(self.OPERATIONS)(self)

    def put_many(self) -> PutMany:
        draw = self.draw
        count = draw.choice((1, 2, 5, 30))
        bodies: list[bytes] = []
        while len(bodies) < count:
            some = range(draw.randint(1, count - len(bodies)))
            keys, values = [self.key() for _ in some], [self.value() for _ in some]
            bodies += put_bodies(keys, values, self.lifetime())
        return PutMany(tuple(bodies))

    def transaction(self) -> Transaction:
        draw = self.draw
        conditions = tuple(self.condition() for _ in range(draw.choice((0, 1, 3))))
        then, otherwise = (
            tuple(self.operation() for _ in range(draw.choice((0, 1, 2, 7)))) for _ in range(2)
        )
        return Transaction(conditions, then, otherwise)

    def operation(self) -> Nested:
        return self.draw.choice((*self.OPERATIONS, Commands.get))(self)

    def condition(self) -> Condition:
        draw, key = self.draw, self.key()
        comparison = Comparison(draw.randint(1, 6))
        match draw.choice(list(Target)):
            case Target.VERSION:
                return Condition(key, Target.VERSION, comparison, version=self.number())
            case Target.VALUE:
                return Condition(key, Target.VALUE, comparison, value=self.value())
            case other:
                return Condition(key, other)

    def put(self) -> Nested:
        draw = self.draw
        if draw.random() < 0.5:
            return Put(self.key(), self.value())
        lease = self.number() if draw.random() < 0.5 else None
        return Put(self.key(), self.value(), self.lifetime(), lease, self.expected())

    def delete(self) -> Nested:
        return Delete(self.key(), self.expected())

    def touch(self) -> Nested:
        with_version = self.draw.random() < 0.5
        return Touch(self.key(), self.lifetime() or 0, self.expected(), with_version)

    def increment(self) -> Nested:
        return Increment(self.key(), self.signed())

    def minimum(self) -> Nested:
        return Minimum(self.key(), self.signed())

    def maximum(self) -> Nested:
        return Maximum(self.key(), self.signed())

    def append(self) -> Nested:
        return Append(self.key(), self.value())

    def json_set(self) -> Nested:
        return JsonSet(self.key(), self.path(), self.value(), self.draw.random() < 0.5)

    def json_delete(self) -> Nested:
        return JsonDelete(self.key(), self.path())

    def delete_range(self) -> Nested:
        start, end = sorted((self.key(), self.key()[:4_095] + b"z"))
        has_end = self.draw.random() < 0.8 and start < end
        return DeleteRange(start, end if has_end else None, self.draw.randint(1, 500))

    def get(self) -> Nested:
        return Get(self.key())

    OPERATIONS: tuple[Callable[["Commands"], Nested], ...] = (
        put, delete, touch, increment, minimum, maximum, append, json_set, json_delete,
        delete_range,
    )  # fmt: skip

    def key(self) -> bytes:
        draw = self.draw
        match draw.randrange(20):
            case 0:
                return b"\xff" + draw.randbytes(draw.randint(0, 9))  # never UTF-8
            case 1:
                return b"k" * draw.choice((1, 255, 256, 4_096))
            case 2:
                return "schlüssel-€-😀".encode()
            case _:
                return b"user:%d" % draw.randrange(1_000)

    def value(self) -> bytes:
        draw = self.draw
        chance = draw.random()
        if chance < 0.03:
            return bytes((draw.randrange(256),)) * draw.randint(1_000, 3_000)  # packed
        return draw.randbytes(draw.choice((0, 1, 8, 40)))

    def lifetime(self) -> int | None:
        draw = self.draw
        return (
            draw.choice((1, TTL_NS_MAX, draw.randint(1, 1 << 40))) if draw.random() < 0.4 else None
        )

    def expected(self) -> int | None:
        draw = self.draw
        return draw.choice((0, self.number())) if draw.random() < 0.4 else None

    def number(self) -> int:
        return self.draw.choice((1, I64_MAX, self.draw.getrandbits(63)))

    def signed(self) -> int:
        return self.draw.choice((0, -1, I64_MAX, I64_MIN, self.draw.randint(I64_MIN, I64_MAX)))

    def path(self) -> Path:
        draw = self.draw
        steps: tuple[Step, ...] = ("a", "", "ä/~.", 0, (1 << 32) - 1, None)
        count = draw.choice((0, 1, 2, 3, 64 if draw.random() < 0.05 else 4))
        return tuple(draw.choices(steps, k=count))


def expected_rows(entry: Entry) -> list[Row]:
    """Return what the view says of an entry beside its header, by the projections' decoder."""
    assert entry.owner == OWNER_KV
    prefix, reader = read_prefix(entry.plain_payload())
    command = decode_command(entry.entry_type & 0xFF, reader)
    rows = [_row(operation) for operation in _parts(command)]
    if isinstance(command, Transaction):
        branches = ["then"] * len(command.then) + ["else"] * len(command.otherwise)
        for row, branch in zip(rows[1:], branches, strict=True):
            row["branch"] = branch
    for position, row in enumerate(rows):
        row |= {"position": position, "namespace": prefix.namespace}
        if row["operation"] == "lease_grant":
            row["lease"] = entry.index
        if isinstance(command, PutMany):
            row["operation"] = "put_many"
        row["key_text"] = text_or_none(row["key"])
    return rows


def _parts(command: Command) -> list[Command]:
    match command:
        case PutMany():
            return list(command.puts())
        case Transaction(_, then, otherwise):
            return [command, *then, *otherwise]
        case _:
            return [command]


def _row(command: Command) -> Row:
    row: Row = dict.fromkeys(OPERANDS) | {"operation": NAMES[type(command)]}
    match command:
        case Put(key, value, ttl_ns, lease, expected):
            row |= {"key": key, "value": value}
            row |= {"ttl_ns": ttl_ns, "lease": lease, "expected": expected}
        case Delete(key, expected):
            row |= {"key": key, "expected": expected}
        case Touch(key, ttl_ns, expected):
            row |= {"key": key, "ttl_ns": ttl_ns, "expected": expected}
        case Increment(key, number) | Minimum(key, number) | Maximum(key, number):
            row |= {"key": key, "operand": number}
        case Append(key, data):
            row |= {"key": key, "value": data}
        case JsonSet(key, path, text, create_parents):
            row |= {"key": key, "path": _steps(path), "value": text}
            row |= {"create_parents": create_parents}
        case JsonDelete(key, path):
            row |= {"key": key, "path": _steps(path)}
        case LeaseGrant(ttl_ns):
            row |= {"ttl_ns": ttl_ns}
        case LeaseKeepalive(lease) | LeaseRevoke(lease):
            row |= {"lease": lease}
        case DeleteRange(start, end, limit):
            row |= {"key": start, "end_key": end, "limit": limit}
        case Get(key):
            row |= {"key": key}
        case Transaction(conditions):
            row |= {"conditions": [_condition(condition) for condition in conditions]}
        case PutMany():
            raise AssertionError("its puts are rows")
    return row


def _steps(path: Path) -> list[Row]:
    return [
        {
            "member": step if isinstance(step, str) else None,
            "element": step if isinstance(step, int) else None,
        }
        for step in path
    ]


def _condition(condition: Condition) -> Row:
    return {
        "key": condition.key,
        "target": condition.target.name.lower(),
        "comparison": COMPARISONS[condition.comparison],
        "version": condition.version if condition.target is Target.VERSION else None,
        "value": condition.value if condition.target is Target.VALUE else None,
    }


def text_or_none(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None
