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
    answered_after = [0] * (count + 1)  # how many from here on have an answer
    for at in range(count - 1, -1, -1):
        is_answered = operations[at].ended_s < INFINITY
        answered_after[at] = answered_after[at + 1] + is_answered
    seen: set[tuple[int, int, Any]] = set()
    # All before the first number are done, and of those from there on, the bits; the state.
    stack: list[tuple[int, int, Any]] = [(0, 0, initial)]
    while stack:
        base, done, state = stack.pop()
        # Whatever comes next must have begun before the first unfinished operation ended.
        first_end_s, end = INFINITY, base
        is_over = True
        while end < count and operations[end].began_s <= first_end_s:
            if not done >> (end - base) & 1:
                first_end_s = min(first_end_s, operations[end].ended_s)
                is_over = is_over and operations[end].ended_s == INFINITY
            end += 1
        if is_over and not answered_after[end]:
            return True
        for at in range(base, end):
            operation = operations[at]
            if done >> (at - base) & 1 or operation.began_s > first_end_s:
                continue
            after, result = model(state, operation.argument)
            if operation.ended_s < INFINITY and result != operation.result:
                continue
            following_base, following_done = base, done | 1 << (at - base)
            while following_done & 1:
                following_base, following_done = following_base + 1, following_done >> 1
            following = (following_base, following_done, after)
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return False
