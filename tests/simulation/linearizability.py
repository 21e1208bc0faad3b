"""Is a history of concurrent operations on one register explained by some order of them?

Wing and Gong's search with memoised states: pick any operation that began before every unfinished
one ended, apply it to the model, go on. Operations without an answer may have happened at any time
after they began, or never. Histories are per key, which is sound: linearizability is local.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

INFINITY = float("inf")

# (state, argument) -> (state, result); a read's argument is None
Model = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(slots=True)
class Operation:
    """One call of a client. ``ended_s`` is infinite while nobody knows how it ended."""

    client: int
    argument: Any
    began_s: float
    ended_s: float = INFINITY
    result: Any = None


def is_linearizable(history: Sequence[Operation], model: Model, initial: Any) -> bool:
    """Tell whether some order explains every result."""
    operations = sorted(history, key=lambda each: each.began_s)
    count = len(operations)
    answered = sum(1 << at for at, each in enumerate(operations) if each.ended_s < INFINITY)
    seen: set[tuple[int, Any]] = set()
    stack: list[tuple[int, Any]] = [(0, initial)]  # which are done, as bits; the state
    while stack:
        done, state = stack.pop()
        if done & answered == answered:
            return True
        # Whatever comes next must have begun before the first unfinished operation ended.
        first_end_s = min(each.ended_s for at, each in enumerate(operations) if not done >> at & 1)
        for at in range(count):
            operation = operations[at]
            if operation.began_s > first_end_s:
                break
            if done >> at & 1:
                continue
            after, result = model(state, operation.argument)
            if operation.ended_s < INFINITY and result != operation.result:
                continue
            following = (done | 1 << at, after)
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return False
