"""Load on onelog: the cases of bench/api.py by the ordinary calls of the Python client."""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import uvloop

from bench.api_cases import CASES, VALUE, Bench, Case
from bench.peers_load import KEYS, SETTLE_S, Ask, Row, Step, serve
from onelog import AsyncClient

# What a case leaves, and the next turn must not find.
QUEUES = {"lease 256 and ack": "leased", "consume and ack": "consumed"}
# Messages that are enqueued before: more than the callers take.
STOCK_PER_S = 200_000


def make_row(case: Case, client: AsyncClient, numbers: Iterator[int]) -> Row:
    """Return a case as a row, begun anew for each turn."""

    @asynccontextmanager
    async def row(ask: Ask) -> AsyncIterator[Step]:
        has_stock = case.stock > 1
        amount = ask.stock(STOCK_PER_S) if has_stock else KEYS
        bench = Bench(client, VALUE, batch=case.batch or 1, amount=amount, numbers=numbers)
        try:
            step = await case.begin(bench)
            if has_stock:
                await asyncio.sleep(SETTLE_S)
            yield step
        finally:
            await bench.close()
        if case.name in QUEUES:
            await client.queue(QUEUES[case.name]).delete()

    return row


async def main(endpoints: dict[str, str]) -> None:
    async with AsyncClient(list(endpoints.values())) as client:
        numbers = itertools.count()
        # Of cases of one name only the callers differ, and those the command says.
        await serve({case.name: make_row(case, client, numbers) for case in CASES})


if __name__ == "__main__":
    uvloop.run(main(json.loads(sys.argv[1])))
