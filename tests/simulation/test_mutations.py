"""Each protection taken away must be noticed: within 200 seeds, from a random base that is printed.

And it must be the missing protection that is noticed: the same seed holds when it is there.
"""

from random import SystemRandom

import pytest

from tests.simulation.mutations import MUTATIONS
from tests.simulation.world import Violation, World

SEEDS_MAX = 200


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_missing_protection_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    base = SystemRandom().randrange(10**9)
    found = None
    with mutation.applied():
        for seed in range(base, base + SEEDS_MAX):
            try:
                World(seed, mutation.profile, mutation.protections).run()
            except Violation as violation:
                found = (seed, str(violation).splitlines()[0])
                break
    assert found is not None, f"without {name!r}, seeds from {base} on all hold"
    seed, what = found
    print(f"without {name!r}: {what} (base {base})")  # noqa: T201 - shown on request, and on failure

    World(seed, mutation.profile and mutation.profile.with_sessions()).run()
