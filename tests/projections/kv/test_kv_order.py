"""The ordered index against sorted()."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.projections.kv.store import GARBAGE_MAX, OrderedKeys

keys = st.binary(min_size=1, max_size=2)
steps = st.lists(st.tuples(st.sampled_from(["add", "remove", "walk"]), keys, keys), max_size=60)


@given(changes=steps, reverse=st.booleans())
def test_a_walk_is_in_order_whatever_came_and_went(
    changes: list[tuple[str, bytes, bytes]], *, reverse: bool
) -> None:
    records: dict[bytes, bytes] = {}
    order = OrderedKeys(records)
    for step, key, other in changes:
        if step == "add" and key not in records:
            records[key] = b""
            order.add(key)
        elif step == "remove" and key in records:
            del records[key]
            order.removed()
        elif step == "walk":
            start, end = min(key, other), max(key, other)
            inside = sorted((k for k in records if start <= k < end), reverse=reverse)
            assert list(order.walk(start, end, reverse=reverse)) == inside
            ending = sorted(k for k in records if start <= k <= end)
            assert list(order.walk(start, end, end_included=True)) == ending
        order.check()
    assert list(order.walk(b"", None)) == sorted(records)


def test_nothing_is_kept_until_somebody_asks_for_order() -> None:
    records: dict[bytes, bytes] = {}
    order = OrderedKeys(records)
    for number in range(100):
        records[b"%d" % number] = b""
        order.add(b"%d" % number)
    assert order.pending is None
    assert order.memory() == 0


def test_keys_that_come_and_go_do_not_pile_up() -> None:
    records: dict[bytes, bytes] = {b"stays": b""}
    order = OrderedKeys(records)
    list(order.walk(b"", None))
    for _ in range(3 * GARBAGE_MAX):
        records[b"k"] = b""
        order.add(b"k")
        del records[b"k"]
        order.removed()
        assert len(order.pending or []) <= GARBAGE_MAX + 1
    assert list(order.walk(b"", None)) == [b"stays"]
