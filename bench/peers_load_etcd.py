"""Load on etcd by aetcd.

All callers share one connection to the leader. In two runs of five and seven turns it was the
fastest, or as fast as the fastest but for the noise, in every row: 64 gets 4,400 a second, with
two connections to the leader 3,500, with four 2,200, with one to each node 2,400; transactions
34,400 against 32,500, 32,800 and 30,600; one caller 1.95 ms against 1.9 to 2.3. Puts of 64 and of
256 callers are about the same with all of them.

Requests are built from etcd's own messages and sent by the stubs of aetcd: the calls of aetcd
create several objects for each put, and reach a fifth fewer transactions (33,100 and 40,200 in five
turns) and a tenth fewer puts.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aetcd
import uvloop
from aetcd.rpc import PutRequest, RangeRequest, TxnRequest

from bench.peers_load import BATCH, KEYS, VALUE, Ask, Step, serve

FILL_CALLERS = 16


class Etcd:
    """The operations of the rows, by a client of the leader at the start."""

    def __init__(self, endpoints: list[str], stack: AsyncExitStack) -> None:
        self._endpoints = endpoints
        self._stack = stack
        self._clients: dict[str, aetcd.Client] = {}
        self._numbers = itertools.count()
        self._is_filled = False

    def key(self) -> bytes:
        return b"key-%012d" % (next(self._numbers) % KEYS)

    async def client(self) -> aetcd.Client:
        """Return the client of the leader."""
        status = await (await self._client(self._endpoints[0])).status()
        return await self._client(status.leader.client_urls[0].removeprefix("http://"))

    async def _client(self, endpoint: str) -> aetcd.Client:
        if endpoint not in self._clients:
            host, port = endpoint.rsplit(":", 1)
            client = aetcd.Client(host, int(port))
            self._clients[endpoint] = await self._stack.enter_async_context(client)
        return self._clients[endpoint]

    @asynccontextmanager
    async def put(self, _ask: Ask) -> AsyncIterator[Step]:
        put, key = (await self.client()).kvstub.Put, self.key

        async def step(_caller: int) -> int:
            await put(PutRequest(key=key(), value=VALUE))
            return 1

        yield step

    @asynccontextmanager
    async def transaction(self, _ask: Ask) -> AsyncIterator[Step]:
        """As many puts as etcd takes in one transaction by default."""
        transact, key = (await self.client()).kvstub.Txn, self.key

        async def step(_caller: int) -> int:
            request = TxnRequest()
            for _ in range(BATCH):
                put = request.success.add().request_put
                put.key, put.value = key(), VALUE
            answer = await transact(request)
            assert answer.succeeded
            return BATCH

        yield step

    @asynccontextmanager
    async def get(self, ask: Ask) -> AsyncIterator[Step]:
        """Linearizable, the default of etcd."""
        if not self._is_filled:
            async with self.transaction(ask) as fill:
                for _ in range(0, KEYS, BATCH * FILL_CALLERS):
                    await asyncio.gather(*map(fill, range(FILL_CALLERS)))
            self._is_filled = True
        get, key = (await self.client()).kvstub.Range, self.key

        async def step(_caller: int) -> int:
            answer = await get(RangeRequest(key=key()))
            assert answer.count == 1
            return 1

        yield step


async def main(endpoints: dict[str, str]) -> None:
    async with AsyncExitStack() as stack:
        etcd = Etcd(list(endpoints.values()), stack)
        await etcd.client()
        await serve({"put": etcd.put, "transaction of 128": etcd.transaction, "get": etcd.get})


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
