"""Random logs from a seed: long enough to meet themselves, small enough to be replayed often.

Commands are drawn with a look at what exists (a version to expect, a lease to use), so that most
of them take effect. Time passes in between, and what is due is applied as the leader would do it.
"""

from collections.abc import Callable
from random import Random

from onelog.projections.codec import SessionRef
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
    encode_command,
    put_bodies,
)
from onelog.projections.kv.documents import Step
from onelog.projections.kv.reads import KeyValue
from onelog.projections.namespaces import Limits
from onelog.projections.system import commands
from onelog.projections.system.commands import encode_batch
from onelog.projections.system.holds import Cause
from onelog.ual.entry import TYPE_NOOP, Draft
from tests.projections.queue import queue_histories
from tests.projections.stream import stream_histories
from tests.projections.timeseries import ts_histories
from tests.projections.world import NAMESPACE, SECOND, World

KEYS = [b"key-%02d" % number for number in range(24)]
NUMBERS = [b"number-%d" % number for number in range(4)]
DOCUMENTS = [b"document-%d" % number for number in range(4)]
TEXTS = [b"1", b"1.50", b'"s"', b"[]", b"{}", b'{"x":[1,2],"y":{"x":3}}', b"null", b"{"]
# What time may pass at once: mostly seconds, so that leases and sessions meet each other; sometimes
# so much that schedules fire and everything is over.
SPANS_NS = (2 * SECOND,) * 5 + (90 * SECOND, 90 * SECOND, 2 * 3_600 * SECOND)
STEPS: list[Step] = ["x", "y", 0, 1, None]


class Writer:
    """Writes a random log into a world."""

    def __init__(self, seed: int, world: World | None = None) -> None:
        self.draw = Random(seed)
        self.world = World() if world is None else world
        self.leases: list[int] = []
        self.sessions: list[int] = []
        self.sequence = 0
        self.namespaces = [NAMESPACE]

    def write(self, count: int) -> World:
        """Apply ``count`` steps, each of one or several entries."""
        for _ in range(count):
            self.step()
        return self.world

    def step(self) -> None:
        draw, world = self.draw, self.world
        chance = draw.random()
        if chance < 0.46:
            self.use_other_models()
        elif chance < 0.68:
            world.draft(self.command())
        elif chance < 0.74:
            self.send_in_session()
        elif chance < 0.82:
            drafts = [self.command() for _ in range(draw.randint(1, 4))]
            world.group(encode_batch(drafts, self.conditions(), NAMESPACE))
        elif chance < 0.90:
            world.group([self.command() for _ in range(draw.randint(2, 6))])
        elif chance < 0.91:
            world.draft(self.hold())
        elif chance < 0.97:
            world.pass_time(draw.randrange(draw.choice(SPANS_NS)))
        elif chance < 0.98:
            self.change_namespaces()
        elif chance < 0.985:
            kind = draw.choice((TYPE_NOOP, commands.TYPE_RAFT_CONFIG))
            world.draft(Draft(kind, draw.randbytes(9) if kind != TYPE_NOOP else b""))
        else:
            self.use_sessions()

    def use_other_models(self) -> None:
        """Use a queue, a stream or a series, by itself or in one batch with the others."""
        draw, state = self.draw, self.world.state
        models: list[Callable[[], list[Draft]]] = [
            lambda: queue_histories.random_commands(draw, state.queue),
            lambda: stream_histories.random_commands(draw, state.stream),
            lambda: ts_histories.random_commands(draw, state.series),
        ]
        if draw.random() < 0.7:
            self.world.group(draw.choice(models)() or [self.command()])
            return
        drafts = [draft for model in models for draft in model()]
        self.world.group(encode_batch([*drafts, self.command()], self.conditions(), NAMESPACE))

    def command(self, session: SessionRef | None = None) -> Draft:
        command = self.draw_command()
        namespace = self.draw.choice(self.namespaces)
        if isinstance(command, LeaseGrant):
            self.leases.append(self.world.index + 1)  # right if it is not in a group
        return encode_command(command, namespace, session)

    def draw_command(self) -> Command:
        draw = self.draw
        match draw.randrange(20):
            case 0:
                return LeaseGrant(draw.randint(1, 9) * SECOND)
            case 1 if self.leases:
                return LeaseKeepalive(draw.choice(self.leases))
            case 2 if self.leases and draw.random() < 0.3:
                return LeaseRevoke(draw.choice(self.leases))
            case 3 | 4:
                operations = [self.operation() for _ in range(draw.randint(1, 5))]
                split = draw.randint(0, len(operations))
                return Transaction(
                    tuple(self.conditions()), tuple(operations[:split]), tuple(operations[split:])
                )
            case _:
                operation = self.operation()
                if isinstance(operation, Put) and operation.expected is operation.lease is None:
                    return _at_once(operation)
                return Put(b"got", b"") if isinstance(operation, Get) else operation

    def operation(self) -> Nested:
        draw = self.draw
        key = draw.choice(KEYS)
        expected = self.version(key) if draw.random() < 0.2 else None
        ttl_ns = draw.randint(1, 5 * SECOND)
        match draw.randrange(16):
            case 0 | 1 | 2 | 3:
                return Put(key, self.value())
            case 4:
                lease = draw.choice(self.leases) if self.leases and draw.random() < 0.7 else None
                lifetime = ttl_ns if draw.random() < 0.5 else None
                return Put(key, self.value(), lifetime, lease, expected)
            case 5 | 6:
                return Delete(key, expected)
            case 7:
                with_version = draw.random() < 0.5
                return Touch(key, ttl_ns if draw.random() < 0.8 else 0, expected, with_version)
            case 8:
                return Increment(draw.choice(NUMBERS), draw.randint(-9, 9))
            case 9:
                number, operand = draw.choice(NUMBERS), draw.randint(-99, 99)
                return Minimum(number, operand) if operand < 0 else Maximum(number, operand)
            case 10:
                return Append(key, draw.randbytes(draw.randint(0, 40)))
            case 11 | 12:
                path = tuple(draw.choice(STEPS) for _ in range(draw.randint(0, 2)))
                return JsonSet(
                    draw.choice(DOCUMENTS), path, draw.choice(TEXTS), draw.random() < 0.5
                )
            case 13:
                return JsonDelete(draw.choice(DOCUMENTS), (draw.choice(STEPS),))
            case 14:
                start, end = sorted(draw.sample(KEYS, 2))
                return DeleteRange(start, end if draw.random() < 0.8 else None, draw.randint(1, 4))
            case _:
                return Get(key)

    def value(self) -> bytes:
        draw = self.draw
        size = draw.choice(
            [0, draw.randint(1, 20), draw.randint(64, 128), draw.randint(500, 1_500)]
        )
        return draw.randbytes(size)

    def version(self, key: bytes) -> int:
        item = self.world.state.kv.get(NAMESPACE, key)
        return item.version if isinstance(item, KeyValue) else 0

    def conditions(self) -> list[Condition]:
        draw = self.draw
        key = draw.choice(KEYS)
        comparison = draw.choice([Comparison.EQUAL, Comparison.LESS_OR_EQUAL, Comparison.NOT_EQUAL])
        match draw.randrange(6):
            case 0:
                return [Condition(key, Target.EXISTS)]
            case 1:
                return [Condition(key, Target.MISSING)]
            case 2:
                return [Condition(key, Target.VERSION, comparison, version=self.version(key))]
            case 3:
                return [Condition(key, Target.VALUE, comparison, value=b"")]
            case _:
                return []

    def use_sessions(self) -> None:
        """Open a session, or keep or close one of the last."""
        draw, world = self.draw, self.world
        chance = draw.random()
        if chance < 0.6 or not self.sessions:
            world.system(commands.SessionOpen(draw.randint(1, 9) * SECOND))
            self.sessions.append(world.index)
        elif chance < 0.8:
            world.system(commands.SessionKeepalive(draw.choice(self.sessions[-3:])))
        else:
            world.system(commands.SessionClose(draw.choice(self.sessions[-3:])))

    def hold(self) -> Draft:
        """Create, move, release or break a hold of a few, as it is or as it was."""
        draw, index = self.draw, self.world.index
        name, ttl_ns = draw.choice(["export", "query"]), draw.randint(0, 200) * SECOND
        known = self.world.state.system.holds.get(name)
        command: commands.Command
        if known is None or draw.random() < 0.1:
            command = commands.HoldSet(name, False, draw.randint(0, index + 2), ttl_ns, 9)
        elif (chance := draw.random()) < 0.5:
            to_index = draw.choice((0, known.index, draw.randint(known.index, index + 2)))
            command = commands.HoldSet(name, True, to_index, ttl_ns, draw.randint(0, 9))
        elif chance < 0.8:
            cause, set_index = draw.choice(list(Cause)), known.set_index - draw.choice((0, 0, 1))
            command = commands.HoldBreak(name, cause, set_index)
        else:
            command = commands.HoldRelease(name)
        return commands.encode_command(command)

    def send_in_session(self) -> None:
        """Send a request of a session, often twice, sometimes an old one again."""
        draw = self.draw
        if not self.sessions:
            return
        self.sequence += 1
        session = draw.choice(self.sessions[-3:])
        ref = SessionRef(session, self.sequence, max(0, self.sequence - draw.randint(0, 9)))
        draft = self.command(ref)
        for _ in range(draw.choice([1, 2])):
            self.world.draft(draft)

    def change_namespaces(self) -> None:
        draw, world = self.draw, self.world
        name = draw.choice(["orders", "users"])
        limits = Limits(draw.randint(1, 5), 2_000, 0, draw.randint(0, 12))
        if name not in self.namespaces:
            world.system(commands.NamespaceCreate(limits), name)
            self.namespaces.append(name)
        elif draw.random() < 0.3:
            world.system(commands.NamespaceDelete(), name)
            self.namespaces.remove(name)
        else:
            world.system(commands.NamespaceConfigure(limits), name)


def _at_once(put: Put) -> Command:
    """Return the put, or, of some, many at once that begin with it."""
    count = len(put.value) % 5
    if not count:
        return put
    first = len(put.value) % len(KEYS)
    keys = [put.key, *(KEYS[first:] + KEYS[:first])[:count]]
    return PutMany(put_bodies(keys, [put.value] * len(keys), put.ttl_ns))
