"""Routing is part of the format: the numbers here may never change."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.routing import find_shard, routing_key, routing_keys


@pytest.mark.parametrize(
    ("name", "key"),
    [
        (b"", b""),
        (b"order:1", b"order:1"),
        (b"{user7}:cart", b"user7"),
        (b"cart:{user7}", b"user7"),
        (b"{a}{b}", b"a"),
        (b"{}{b}", b"b"),
        (b"x{}y", b"x{}y"),
        (b"{}}", b"{}}"),
        (b"}{a}", b"a"),
        (b"{unclosed", b"{unclosed"),
        (b"a{b{c}d}", b"b{c"),
        (b"{{}}", b"{"),
        (b"{\0\xff}", b"\0\xff"),
    ],
)
def test_the_first_tag_that_is_not_empty_is_the_routing_key(name: bytes, key: bytes) -> None:
    assert routing_key(name) == key


@given(st.lists(st.sampled_from([b"{", b"}", b"a", b"\n", b"\xff"]), max_size=20).map(b"".join))
def test_the_routing_key_agrees_with_the_plain_pattern(name: bytes) -> None:
    match = re.search(rb"\{([^}]+)\}", name)

    assert routing_key(name) == (match.group(1) if match else name)


def test_the_shard_of_a_known_key_never_changes() -> None:
    """0xe3069283 is the published check value of crc32c for these nine digits."""
    assert find_shard(b"123456789", 1 << 32, 1 << 32) == 0xE3069283
    assert find_shard(b"123456789", 256, 256) == 0x83
    assert find_shard(b"any{123456789}where", 256, 256) == 0x83
    assert find_shard(b"123456789", 256, 4) == 0x83 % 4  # shards take partitions in turn
    assert find_shard(b"", 256, 4) == 0


_no_braces = st.binary(max_size=40).map(lambda name: name.translate(None, b"{}"))


@given(_no_braces, _no_braces.filter(bool), st.integers(1, 65_536), st.integers(1, 20))
def test_names_with_the_same_tag_share_a_shard(
    rest: bytes, tag: bytes, partitions: int, shards: int
) -> None:
    shard = find_shard(tag, partitions, shards)

    assert find_shard(b"%s{%s}" % (rest, tag), partitions, shards) == shard
    assert find_shard(b"{%s}%s" % (tag, rest), partitions, shards) == shard


names = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.text(alphabet="{}ab", min_size=1, max_size=20).map(str.encode),
)


@given(st.lists(names | st.from_regex(rb"[ab}]{0,2}\{[ab{]{0,2}\}[ab]{0,2}", fullmatch=True)))
def test_many_names_are_routed_as_each_of_them(many: list[bytes]) -> None:
    """The search for a tag that names share must not take one tag for another."""
    assert routing_keys(many) == set(map(routing_key, many))
