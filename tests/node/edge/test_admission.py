"""What may be under way at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.errors import ResourceExhausted
from onelog.node.edge.gate import CALLS_IN_ANY_CASE, CLIENT_SHARE, Admission


def test_one_client_gets_its_share_and_leaves_room_for_others() -> None:
    admission = Admission(requests_max=8, bytes_max=800)
    admission.enter("greedy", 10)
    admission.enter("greedy", 10)
    with pytest.raises(ResourceExhausted) as caught:
        admission.enter("greedy", 10)
    assert caught.value.reason == "TOO_MANY_REQUESTS"
    assert caught.value.metadata == {"limit": "2", "of": "requests of one client"}
    assert caught.value.retry_after_s
    admission.enter("modest", 10)
    admission.leave("greedy", 10)
    admission.enter("greedy", 10)


def test_others_keep_nobody_with_few_requests_out() -> None:
    """Calls that the gate has cut for a newcomer still count here: it gets in all the same."""
    admission = Admission(requests_max=32, bytes_max=800)
    for client in "abcd":
        for _ in range(32 // CLIENT_SHARE):
            admission.enter(client, 1)
    for _ in range(CALLS_IN_ANY_CASE):
        admission.enter("modest", 1)
    with pytest.raises(ResourceExhausted) as caught:
        admission.enter("modest", 1)
    assert caught.value.metadata == {"limit": "32", "of": "requests"}


def test_bytes_are_bounded_for_one_client_and_for_all() -> None:
    admission = Admission(requests_max=100, bytes_max=400)
    admission.enter("a", 60)
    with pytest.raises(ResourceExhausted, match="bytes of requests of one client"):
        admission.enter("a", 60)
    for client in "bcdef":
        admission.enter(client, 60)
    with pytest.raises(ResourceExhausted, match="400 bytes of requests are"):
        admission.enter("g", 60)
    assert admission.refused == 2


def test_a_request_that_is_alone_may_be_large() -> None:
    admission = Admission(requests_max=8, bytes_max=100)
    admission.enter("a", 500)
    with pytest.raises(ResourceExhausted):
        admission.enter("b", 1)
    admission.leave("a", 500)
    admission.enter("b", 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans())))
def test_the_books_are_right_whatever_comes_and_goes(
    steps: list[tuple[str, int, bool]],
) -> None:
    admission = Admission(requests_max=12, bytes_max=300)
    inside: list[tuple[str, int]] = []
    for client, size, leaves in steps:
        if leaves and inside:
            admission.leave(*inside.pop(0))
            continue
        try:
            admission.enter(client, size)
        except ResourceExhausted:
            continue
        inside.append((client, size))
        assert sum(each == client for each, _ in inside) <= 12 // CLIENT_SHARE
    assert admission.requests == len(inside)
    assert admission.bytes == sum(size for _, size in inside)
    assert set(admission._clients) == {client for client, _ in inside}
    for client, size in inside:
        admission.leave(client, size)
    assert (admission.requests, admission.bytes, admission._clients) == (0, 0, {})
