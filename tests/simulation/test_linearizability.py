"""The checker itself: it accepts what an order explains, and nothing else."""

from typing import Any

from tests.simulation.linearizability import INFINITY, Operation, is_linearizable


def register(state: Any, argument: Any) -> tuple[Any, Any]:
    """Write what is given, read what is there."""
    return (state, state) if argument is None else (argument, "ok")


def write(value: str, began_s: float, ended_s: float = INFINITY) -> Operation:
    return Operation(1, value, began_s, ended_s, "ok")


def read(value: str | None, began_s: float, ended_s: float) -> Operation:
    return Operation(2, None, began_s, ended_s, value)


def check(*history: Operation) -> bool:
    return is_linearizable(history, register, None)


def test_a_read_sees_the_last_write_that_ended() -> None:
    assert check(write("a", 0, 1), write("b", 2, 3), read("b", 4, 5))
    assert not check(write("a", 0, 1), write("b", 2, 3), read("a", 4, 5))


def test_concurrent_operations_may_take_either_order() -> None:
    assert check(write("a", 0, 3), write("b", 1, 2), read("a", 4, 5))
    assert check(write("a", 0, 3), write("b", 1, 2), read("b", 4, 5))


def test_an_unanswered_write_may_happen_at_any_time_or_never() -> None:
    assert check(write("a", 0, 1), write("b", 2), read("a", 3, 4), read("b", 5, 6))
    assert check(write("a", 0, 1), write("b", 2), read("a", 3, 4))
    assert not check(write("a", 0, 1), write("b", 2), read("b", 3, 4), read("a", 5, 6))


def test_a_read_of_the_future_is_found() -> None:
    assert not check(read("a", 0, 1), write("a", 2, 3))


def test_two_readers_must_agree_on_the_order() -> None:
    assert not check(
        write("a", 0, 10),
        write("b", 0, 10),
        read("a", 11, 12),
        read("b", 13, 14),
        read("a", 15, 16),
    )
