"""Sequences, confirmations, and sessions that single calls have for themselves."""

import asyncio
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from onelog import AsyncClient, ClientOptions
from onelog.client.sessions import Session
from onelog.v1 import common_pb2
from tests.node.services.nodes import run, single


@given(st.lists(st.integers(1, 5), max_size=20), st.data())
def test_what_is_confirmed_is_what_nothing_before_it_waits_for(
    counts: list[int], data: st.DataObject
) -> None:
    session = Session(1, 7, 0.0)
    outstanding: set[int] = set()
    after = 1
    for count in counts:
        assert session.take(count, 0.0) == after
        outstanding.add(after)
        after += count
        for sequence in data.draw(st.sets(st.sampled_from(sorted(outstanding)), max_size=3)):
            session.done(sequence)
            outstanding.discard(sequence)
        message = common_pb2.Session()
        session.fill(message, after)
        assert message.first_unacknowledged == min(outstanding, default=after)
        assert session.is_idle == (not outstanding)
        if not outstanding:
            outstanding.add(session.take(1, 0.0))
            after += 1


def test_calls_and_pipelines_have_sessions_of_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with single(tmp_path) as node, AsyncClient(node.endpoint) as client:
            await client.kv.put("a", "1")
            lease = await client.kv.lease(10, key="a")
            sessions = client._connection.sessions
            shard = client._connection.topology.find_shard(b"a")
            pipelined, called = sessions.get(shard), sessions.get(shard, for_calls=True)
            assert pipelined is not None
            assert called is not None
            assert pipelined.session_id != called.session_id
            assert called.is_idle
            await lease.revoke()

    run(main())


def test_an_idle_session_is_kept_and_a_lost_one_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        options = ClientOptions(session_ttl_s=1.0)
        async with single(tmp_path) as node, AsyncClient(node.endpoint, options=options) as client:
            await client.kv.put("a", "1")
            sessions = client._connection.sessions
            shard = client._connection.topology.find_shard(b"a")
            session = sessions.get(shard)
            assert session is not None
            await asyncio.sleep(1.6)  # longer than it lives: time itself is what is tested
            await client.kv.put("a", "2")
            assert sessions.get(shard) is session
            await sessions._close(session)
            await client.kv.put("a", "3")
            await client.kv.increment("a{a}")
            replaced = sessions.get(shard)
            assert replaced is not None
            assert replaced.session_id != session.session_id

    run(main())
