"""Client and server must agree on where a name lives, for ever."""

from hypothesis import given
from hypothesis import strategies as st

from onelog.client.topology import find_shard, routing_key, routing_keys
from onelog.ual import routing

names = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(alphabet="{}ab", min_size=1, max_size=20).map(str.encode),
)


@given(names, st.integers(1, 300), st.integers(1, 20))
def test_the_client_routes_as_the_server_does(name: bytes, partitions: int, shards: int) -> None:
    assert routing_key(name) == routing.routing_key(name)
    expected = routing.find_shard(routing.find_partition(name, partitions), shards)
    assert find_shard(name, partitions, shards) == expected


@given(st.lists(names | st.from_regex(rb"[ab}]{0,2}\{[ab{]{0,2}\}[ab]{0,2}", fullmatch=True)))
def test_many_names_are_routed_as_each_of_them(many: list[bytes]) -> None:
    """The short way for names that share a tag must not take one for another."""
    expected = set(map(routing_key, many))
    assert routing_keys(many) == routing.routing_keys(many) == expected
