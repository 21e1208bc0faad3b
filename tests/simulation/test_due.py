"""What ends by itself: the clients begin much of it, and who ends late or early is noticed."""

from collections.abc import Callable
from dataclasses import replace
from random import SystemRandom
from typing import Any

import pytest

from onelog.projections.kv import commands as kv_commands
from onelog.projections.kv.projection import EXPIRE_KEY, EXPIRE_LEASE, KV
from onelog.projections.kv.store import Leases
from onelog.projections.projection import Due
from onelog.projections.queue.deadlines import DELAY_ENDS, LEASE_ENDS, TTL_ENDS
from onelog.projections.queue.projection import Queue
from onelog.projections.queue.store import QueueState
from onelog.projections.system.projection import System
from tests.simulation.due import DueJudge
from tests.simulation.mutations import CALM
from tests.simulation.world import Violation, World

# Only followers are cut off, so a majority is well all the time, and so is the leader.
PROFILE = replace(CALM, deadlines=2, faults_s=20.0, heal_s=8.0)
SEEDS_MAX = 5
KINDS: dict[str, tuple[type[Any], Callable[[Due], bool]]] = {
    "brief|in-session": (KV, lambda due: due.item[0] == EXPIRE_KEY),
    "leased": (KV, lambda due: due.item[0] == EXPIRE_LEASE),
    "life": (Queue, lambda due: due.item[0] == TTL_ENDS),
    "delay": (Queue, lambda due: due.item[0] == DELAY_ENDS),
    "leases": (Queue, lambda due: due.item[0] == LEASE_ENDS),
    "session": (System, lambda _: True),
}


def test_what_is_due_happens_and_much_is_due() -> None:
    seed = SystemRandom().randrange(10**9)
    world = World(seed, PROFILE)
    world.run()

    assert world.due.happened > 30, seed


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_that_never_ends_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All replicas leave it alone, so their states agree: only who waits for it can tell."""
    owner, is_forgotten = KINDS[kind]
    find_due = owner.due

    def forget(self: Any, now_ns: int, limit: int) -> list[Due]:
        return [due for due in find_due(self, now_ns, limit) if not is_forgotten(due)]

    monkeypatch.setattr(owner, "due", forget)
    monkeypatch.setattr(DueJudge, "_look_at_deadlines", lambda *_: None)  # it would tell first
    seed = SystemRandom().randrange(10**9)

    with pytest.raises(Violation, match=rf"({kind}).* has not ended on .+, which leads"):
        World(seed, PROFILE).run()


def a_lifetime_is_halved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kv_commands, "deadline", lambda now_ns, ttl_ns: now_ns + ttl_ns // 2)


def a_lease_is_not_kept_alive(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leases, "renew", lambda *_: None)


def a_lease_of_a_message_is_not_extended(patch: pytest.MonkeyPatch) -> None:
    change_rows = QueueState.change_rows

    def change(self: Any, span: Any, after: Any, due_ns: int, token: int | None = None) -> None:
        if token is not None or not due_ns:
            change_rows(self, span, after, due_ns, token)

    patch.setattr(QueueState, "change_rows", change)


@pytest.mark.parametrize(
    "mistake",
    [a_lifetime_is_halved, a_lease_is_not_kept_alive, a_lease_of_a_message_is_not_extended],
)
def test_what_ends_too_early_is_noticed(
    mistake: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    mistake(monkeypatch)
    base = SystemRandom().randrange(10**9)

    def run() -> None:
        for seed in range(base, base + SEEDS_MAX):
            World(seed, PROFILE).run()

    with pytest.raises(Violation, match="too early"):
        run()
