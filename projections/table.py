"""Which projection answers for which owner byte, and how they are put together.

To add a projection: write it (projection.py says what it must do) and add a line to ``FACTORIES``.
"""

from collections.abc import Callable
from dataclasses import dataclass

from projections.kv import KV
from projections.projection import Notes, Position, Projection, SpillStore
from projections.router import ProjectionRouter
from projections.system import System
from ual.entry import OWNER_KV

FACTORIES: dict[int, Callable[[Position, SpillStore | None], Projection]] = {
    OWNER_KV: KV,
}


@dataclass(frozen=True, slots=True)
class Projections:
    """A router with its projections, for those who read from them."""

    router: ProjectionRouter
    system: System
    kv: KV


def build_projections(notes: Notes, spill: SpillStore | None = None) -> Projections:
    """Return a fresh set of projections that has applied nothing."""
    position = Position()
    table = {owner: factory(position, spill) for owner, factory in FACTORIES.items()}
    system = System(table)
    kv = table[OWNER_KV]
    assert isinstance(kv, KV), kv
    router = ProjectionRouter(table, notes, system=system, judge=kv, position=position)
    return Projections(router, system, kv)
