"""Who founds a cluster: the rules, between introducers that talk directly."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from hashlib import sha1
from itertools import permutations
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.cluster.transport.handshake import (
    INTRODUCTION_SIZE_MAX,
    Introduction,
    decode_answer,
    decode_introduction,
    encode_answer,
    encode_introduction,
)
from onelog.cluster.transport.wire import Reason, WireError
from onelog.node.membership.peer_port import Introducer, make_cluster_id
from onelog.ual.directory import Founder, System, Topology

NAMES = ("n1", "n2", "n3")
ADDRESSES = {name: f"{name}:7500" for name in NAMES}


def introduction(name: str, number: int, **other: object) -> Introduction:
    made = Introduction("c", name, UUID(int=number), 4, 256, 1)
    return replace(made, **other)  # type: ignore[arg-type]


def introducers(numbers: Iterable[int] = (1, 2, 3)) -> dict[str, Introducer]:
    return {
        name: Introducer(introduction(name, number), dict(ADDRESSES))
        for name, number in zip(NAMES, numbers, strict=True)
    }


def ask(caller: Introducer, answerer: Introducer) -> tuple[Founder, ...] | None:
    """Introduce one to the other, through bytes; return the founders if the caller knows them."""
    name = answerer.mine.node_name
    asked = decode_introduction(encode_introduction(replace(caller.mine, target_name=name)))
    answer = decode_answer(encode_answer(answerer.answer(asked), None))
    assert answer.refusal is None
    assert answer.introduction is not None
    return caller.heard(answer.introduction, name)


def system_of(founders: tuple[Founder, ...]) -> System:
    ids = [each.node_id for each in founders]
    return System(make_cluster_id("c", ids), Topology(4, 256), "now", "c", founders)


@pytest.mark.parametrize("seed", range(20))
def test_founders_agree_in_whatever_order_they_talk(seed: int) -> None:
    random, cluster, founded = Random(seed), introducers(), {}
    for _ in range(200):
        caller, answerer = random.sample(NAMES, 2)
        if caller in founded:
            continue
        founders = ask(cluster[caller], cluster[answerer])
        if founders is not None:
            founded[caller] = founders
            cluster[caller].found(system_of(founders))
    assert set(founded) == set(NAMES)
    expected = tuple(Founder(UUID(int=n), f"n{n}", f"n{n}:7500") for n in (1, 2, 3))
    assert set(founded.values()) == {expected}


def test_nobody_founds_before_everybody_has_said_the_same() -> None:
    cluster = introducers()
    first, second, third = (cluster[name] for name in NAMES)
    assert ask(first, second) is None
    assert first.unknown_names == ["n3"]
    assert ask(first, third) is None  # all ids are known here, but not to the others
    assert first.unknown_names == ["n2", "n3"]
    assert ask(second, third) is None
    assert ask(first, second) is None
    assert first.unknown_names == ["n3"]


@pytest.mark.parametrize("seed", range(40))
def test_a_node_that_is_wiped_meanwhile_cannot_make_two_clusters(seed: int) -> None:
    """Whoever is wiped, and whenever: all lists that are founded are one list."""
    random, cluster, founded = Random(seed), introducers(), []
    has_founded: set[str] = set()
    refusals: set[Reason] = set()
    wiped_at, wiped = random.randrange(1, 12), random.choice(NAMES)
    for step in range(300):
        if step == wiped_at and wiped not in has_founded:
            cluster[wiped] = Introducer(introduction(wiped, 99), dict(ADDRESSES))
        caller, answerer = random.sample(NAMES, 2)
        if caller in has_founded:
            continue
        try:
            founders = ask(cluster[caller], cluster[answerer])
        except WireError as error:
            refusals.add(error.reason)
            continue
        if founders is not None:
            founded.append(founders)
            has_founded.add(caller)
            cluster[caller].found(system_of(founders))
    assert len(set(founded)) == 1
    assert refusals <= {Reason.NODE_REPLACED}


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        ({"shards": 8}, Reason.TOPOLOGY_MISMATCH),
        ({"partitions": 128}, Reason.TOPOLOGY_MISMATCH),
        ({"workers": 2}, Reason.TOPOLOGY_MISMATCH),
        ({"cluster_name": "d"}, Reason.CLUSTER_NAME_MISMATCH),
        ({"target_name": "n3"}, Reason.WRONG_TARGET),
        ({"node_name": "n2"}, Reason.NAME_TAKEN),
        ({"node_name": "n4"}, Reason.UNKNOWN_NODE),
        ({"founders": {"n1": (None, "a"), "n2": (None, "b")}}, Reason.FOUNDERS_MISMATCH),
        ({"protocol_min": 9, "protocol_max": 9}, Reason.PROTOCOL_TOO_NEW),
        ({"is_joining": True}, Reason.NOT_FOUNDED),
    ],
)
def test_what_does_not_fit_is_refused_with_a_reason(
    theirs: dict[str, object], reason: Reason
) -> None:
    cluster = introducers()
    caller = replace(cluster["n1"].mine, target_name="n2")
    if reason is Reason.UNKNOWN_NODE:
        cluster["n2"].found(system_of(tuple(Founder(UUID(int=n), f"n{n}", "") for n in (1, 2, 3))))
    before = cluster["n2"].mine

    with pytest.raises(WireError) as refused:
        cluster["n2"].answer(replace(caller, **theirs))  # type: ignore[arg-type]

    assert refused.value.reason is reason
    assert cluster["n2"].mine == before  # nothing of it was believed


def test_a_founder_takes_the_list_of_a_cluster_that_exists_if_it_is_on_it() -> None:
    founders = tuple(Founder(UUID(int=n), f"n{n}", f"n{n}:7500") for n in (1, 2, 3))
    for name, other in permutations(NAMES, 2):
        cluster = introducers()
        cluster[other].found(system_of(founders))
        assert ask(cluster[name], cluster[other]) == founders
    wiped = Introducer(introduction("n1", 99), dict(ADDRESSES))
    with pytest.raises(WireError) as refused:
        wiped.heard(cluster[other].mine, other)
    assert refused.value.reason is Reason.NODE_REPLACED


def test_a_newcomer_is_let_in_under_any_name_and_takes_the_list() -> None:
    founders = (Founder(UUID(int=2), "n2", "n2:7500"),)
    member = Introducer.founded(introduction("n2", 2), system_of(founders))
    mine = introduction("n2", 7, is_joining=True, shards=0, partitions=0, cluster_name="")
    newcomer = Introducer(mine, {})
    answer = member.answer(newcomer.mine)
    assert newcomer.joined(answer) == founders
    assert (answer.shards, answer.partitions, answer.cluster_name) == (4, 256, "c")


def test_the_id_of_a_cluster_depends_on_its_name_and_members_only() -> None:
    ids = [UUID(int=n) for n in (3, 1, 2)]
    assert make_cluster_id("c", ids) == make_cluster_id("c", ids[::-1])
    assert make_cluster_id("c", ids) != make_cluster_id("d", ids)
    assert make_cluster_id("c", ids) != make_cluster_id("c", ids[:2])
    # As docs/formats.md says, worked out from RFC 9562 instead of the library.
    text = "c\n" + ",".join(f"00000000-0000-0000-0000-00000000000{n}" for n in (1, 2, 3))
    namespace = bytes.fromhex("8c6f5b0e3d0f5a559a2e6f1d0c7b4e21")
    digest = bytearray(sha1(namespace + text.encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x50
    digest[8] = digest[8] & 0x3F | 0x80
    assert make_cluster_id("c", ids).bytes == bytes(digest)


@given(st.binary(max_size=200))
def test_bytes_of_a_stranger_are_an_introduction_or_refused(data: bytes) -> None:
    for decode in (decode_introduction, decode_answer):
        with suppress(WireError):
            decode(data)


def test_introductions_are_bounded() -> None:
    with pytest.raises(WireError) as refused:
        decode_introduction(bytes(INTRODUCTION_SIZE_MAX + 1))
    assert refused.value.reason is Reason.MESSAGE_TOO_LARGE
    many = {f"n{number}": (None, "") for number in range(65)}
    for bad in (
        {"founders": many},
        {"node_name": ""},
        {"node_name": "n" * 256},
        {"worker": 1},
        {"workers": 0},
        {"endpoints": ("e" * 513,)},
        {"endpoints": ("e",) * 257},
        {"protocol_min": 0},
    ):
        with pytest.raises(WireError):
            decode_introduction(encode_introduction(introduction("n1", 1, **bad)))
