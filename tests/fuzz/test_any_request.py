"""Whatever a request holds, it is answered or refused with a reason, and a refusal does nothing.

Valid requests of every call that reflection lists are changed at random and sent to a real server.
The test runs for ``FUZZ_SECONDS`` (30 by default; ``make fuzz SECONDS=600`` takes longer), prints
its seed. ``FUZZ_SEED`` repeats the choices of a run; with ``FUZZ_ONLY=Queue/Ack`` only those of a
call, or of all whose names begin so.
"""

import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from google.protobuf import text_format  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

from onelog.projections.reasons import Reason
from onelog.reasons import list_sections
from tests.fuzz.calls import CALL_S, INTERNAL, UNKNOWN, Calls, Outcome, errors_in
from tests.fuzz.mutants import Mutator
from tests.fuzz.samples import NEVER_ACCEPTED, SAMPLES, World
from tests.system.nodes import ServeProcess, nodes

SECONDS = float(os.environ.get("FUZZ_SECONDS", "30"))
SEED = int(os.environ.get("FUZZ_SEED") or secrets.randbits(32))
ONLY = os.environ.get("FUZZ_ONLY", "")
SHARDS = 2
# Of one sample before it is made again in another namespace, unless one of them was carried out.
MUTANTS_MAX = 20
INVALID_ARGUMENT = 3
# What leaders write by themselves, whatever is asked of them meanwhile.
MAINTENANCE = frozenset((
    0x0001, 0x0002, 0x0003, 0x000D,  # no-ops, members, what is due, holds that break
    0x020B, 0x020F,  # steps of redrives, schedules that fire
    0x0303, 0x030A, 0x030B, 0x030C,  # blocks of points, retention, rollups
    0x0406, 0x0412,  # retention, dead letters
))  # fmt: skip
# What only the state tells; everything else that is invalid must not reach the log.
TOLD_BY_STATE = frozenset(("BATCH_REFUSED", "TRANSACTION_REFUSED", "VALUE_TOO_LARGE"))
# The codes of each reason that a call may end with.
CODES = {
    each.reason: {kind.code for kind in each.kinds}
    for each in list_sections({each.name: each.meaning for each in Reason})[0].meanings
}
# They have the class of the operation that was refused.
OF_A_PART = frozenset(("BATCH_REFUSED", "TRANSACTION_REFUSED"))
# How much of a request is shown.
SHOWN_MAX = 2_000


@contextmanager
def served(directory: Path) -> Iterator[tuple[ServeProcess, Calls]]:
    with nodes(directory, "n1", shards=str(SHARDS)) as made:
        server = made["n1"].start()
        server.until_ready()
        with connected(server) as calls:
            yield server, calls


@contextmanager
def connected(server: ServeProcess) -> Iterator[Calls]:
    options = [
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    with grpc.insecure_channel(server.flags["listen"], options=options) as channel:
        yield Calls(channel)


def test_every_call_that_reflection_lists_has_a_sample_and_takes_it(tmp_path: Path) -> None:
    with served(tmp_path) as (server, calls):
        assert set(calls.methods) == set(SAMPLES)
        calls.ask("Admin/TakeSnapshot", shard=0)
        for path in SAMPLES:
            world = World(calls)
            data = sample(world, path).SerializeToString()
            outcome = calls.send(path, data, timeout_s=CALL_S)
            if path in NEVER_ACCEPTED:
                assert outcome.reason, (path, outcome)
                continue
            # Streams that do not end by themselves are left after the first answers.
            assert outcome.answers, (path, outcome)
            assert [*errors_in(outcome.answers)] == [], path
        assert complaints(server) == []


def sample(world: World, path: str) -> Message:
    """Return a valid request; what it needs exists."""
    fields = SAMPLES[path](world)
    names = world.calls.methods[path].input_type.fields_by_name
    if "namespace" in names and "namespace" not in fields:
        fields = {"namespace": world.namespace, **fields}
    return world.calls.request(path, **fields)


def complaints(server: ServeProcess) -> list[dict[str, Any]]:
    """Return what the server logged as an error."""
    assert server.is_running, server.output[-3000:]
    assert "Traceback" not in server.output.replace('"exception": "Traceback', "")
    return [each for each in server.logged("") if each["level"] in ("error", "critical")]


@dataclass
class Shard:
    """How far a shard is, and in which state."""

    index: int
    state_hash: int


@dataclass
class Fuzzing:
    """Sends mutants to a server; says what should not have happened."""

    calls: Calls
    count: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    spent_s: dict[str, float] = field(default_factory=dict)

    def turn(self, path: str) -> None:
        """Send mutants of a valid request, until one of them is carried out."""
        began_s = time.monotonic()
        self.turns[path] += 1
        mutator = Mutator(Random(f"{SEED} {path} {self.turns[path]}"))
        world = World(self.calls)
        request = sample(world, path)
        mutator.learn(request)
        for _ in range(MUTANTS_MAX):
            before = self.state()
            data, metadata = mutator.mutate(request), mutator.metadata()
            outcome = self.calls.send(path, data, metadata)
            self.count += 1
            problem = self.judge(outcome, before)
            if problem is not None:
                pytest.fail(
                    f"{problem}\n{outcome}\n{self.shown(path, data)} {metadata}\n"
                    f"FUZZ_SEED={SEED} FUZZ_ONLY={path}, turn {self.turns[path]}"
                )
            if not outcome.is_refused:
                break
        world.end()
        self.spent_s[path] = self.spent_s.get(path, 0) + time.monotonic() - began_s

    def judge(self, outcome: Outcome, before: list[Shard]) -> str | None:
        """Say what is wrong with the outcome of a mutant, if something is."""
        if outcome.code in (INTERNAL, UNKNOWN):
            return "the server did not know what to say"
        if outcome.is_refused and not outcome.reason:
            return "refused without a reason"
        if outcome.is_refused and not outcome.message:
            return "refused without a message"
        for error in (*([outcome] if outcome.is_refused else []), *errors_in(outcome.answers)):
            if error.code in (0, INTERNAL, UNKNOWN) or not error.reason or not error.message:
                return f"an operation failed with {error}"
            if error.reason in OF_A_PART:
                continue
            if error.code not in CODES.get(error.reason, ()):
                return f"the list of reasons does not have {error.reason} with code {error.code}"
        if not outcome.is_refused:
            return None
        for number, was in enumerate(before):
            now = self.shard(number)
            if now.index == was.index:
                if now.state_hash != was.state_hash:
                    return f"the state of shard {number} changed without an entry"
                continue
            if applied := self.applied(number, was):
                return f"it was refused, and shard {number} has applied {applied}"
            is_invalid = outcome.code == INVALID_ARGUMENT and outcome.reason not in TOLD_BY_STATE
            if is_invalid and self.applied(number, was, voids=True):
                return f"it is invalid, and shard {number} has it in the log"
        return None

    def state(self) -> list[Shard]:
        return [self.shard(number) for number in range(SHARDS)]

    def shard(self, number: int) -> Shard:
        found = self.calls.ask("Admin/GetStateHash", shard=number)
        return Shard(found.index, found.state_hash)

    def applied(self, number: int, since: Shard, *, voids: bool = False) -> set[str]:
        """Return the types of the entries that calls have written since.

        ``voids``: also of those that were refused when they were applied.
        """
        last = self.shard(number).index
        if last == since.index:
            return set()
        page = self.calls.ask(
            "Admin/ReadLog",
            shard=number,
            first_index=since.index + 1,
            last_index=last,
            with_voids=voids,
        )
        types = {entry.entry_type for entry in page.entries} - MAINTENANCE
        return {f"{each:#06x}" for each in types}

    def shown(self, path: str, data: bytes) -> str:
        """Return a request as people read it, and as bytes."""
        try:
            request = self.calls.request(path)
            request.ParseFromString(data)
            text = text_format.MessageToString(request, as_one_line=True)
        except DecodeError:
            text = "no message"
        return f"{path}: {text[:SHOWN_MAX]}\n{data[:SHOWN_MAX].hex()}"


def test_no_request_is_too_strange(tmp_path: Path) -> None:
    print(f"FUZZ_SEED={SEED}")  # noqa: T201 - shown if it fails
    with served(tmp_path) as (server, calls):
        fuzzing = Fuzzing(calls)
        paths = [path for path in SAMPLES if path.startswith(ONLY)]
        calls.ask("Admin/TakeSnapshot", shard=0)
        until_s = time.monotonic() + SECONDS
        while time.monotonic() < until_s:
            # Those that wait have fewer turns, or nothing else would have any.
            fuzzing.turn(min(paths, key=lambda path: fuzzing.spent_s.get(path, 0)))
            assert complaints(server) == []
        for number in range(SHARDS):
            calls.ask("Admin/TakeSnapshot", shard=number)  # replays the log, and compares
        assert complaints(server) == []
    print(fuzzing.count, "requests")  # noqa: T201
