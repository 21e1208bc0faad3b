"""How much longer the blocking client takes than the one with an event loop, in turns.

``python bench/blocking.py [ENDPOINT]``: without an endpoint it starts a server of its own. Each way
of reading many items is measured with both clients, one after the other and several times, so that
both meet the same machine. One line of JSON for each: the best rate of both, and their ratio.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.client import start
from onelog import AsyncClient, Client, Watched

ITEMS = 10_000
ROUNDS = 5
VALUE = bytes(100)


def prepare(client: Client) -> None:
    """Write what is read: records, keys; and a group that begins with the first record."""
    stream = client.stream("blocking")
    stream.create(exist_ok=True)
    stream.append_many([VALUE] * ITEMS)
    client.kv.put_many({f"blocking:{n:09}": VALUE for n in range(ITEMS)})
    client.queue("blocking").create(exist_ok=True)


def fill(client: Client) -> None:
    """Fill the queue, which a consumer empties."""
    queue = client.queue("blocking")
    queue.purge()
    queue.enqueue_many([VALUE] * ITEMS)


Items = Callable[[Any], Any]  # of a client: an iterator, blocking or not

WAYS: dict[str, Items] = {
    "tail": lambda client: client.stream("blocking").tail(from_offset=0),
    "watch": lambda client: client.watch(Watched("stream", name="blocking"), from_start=True),
    "read": lambda client: client.stream("blocking").read(),
    "scan": lambda client: client.kv.scan("blocking:"),
    "consume": lambda client: client.queue("blocking").consume(credit=ITEMS),
}


def take_blocking(client: Client, way: Items) -> float:
    """Return the seconds to take all items with the blocking client."""
    began_s = time.perf_counter()
    items: Iterator[Any] = way(client)
    count = sum(1 for _ in islice(items, ITEMS))
    spent_s = time.perf_counter() - began_s
    assert count == ITEMS, count
    items.close()  # type: ignore[attr-defined]
    return spent_s


async def take(client: AsyncClient, way: Items) -> float:
    """Return the seconds to take all items with the client with a loop."""
    began_s = time.perf_counter()
    items: AsyncIterator[Any] = way(client)
    count = 0
    async for _ in items:
        count += 1
        if count == ITEMS:
            break
    spent_s = time.perf_counter() - began_s
    close: Callable[[], Awaitable[None]] = getattr(items, "aclose", None) or items.close  # type: ignore[attr-defined]
    await close()
    return spent_s


def measure(name: str, way: Items, blocking: Client, endpoint: str) -> None:
    """Print the rates of both clients and their ratio."""

    async def run() -> float:
        async with AsyncClient(endpoint, timeout_s=60) as client:
            await client.kv.get("warm")
            return await take(client, way)

    best = {"blocking": float("inf"), "loop": float("inf")}
    for _ in range(ROUNDS):
        for kind in best:
            if name == "consume":
                fill(blocking)
            spent_s = take_blocking(blocking, way) if kind == "blocking" else asyncio.run(run())
            best[kind] = min(best[kind], spent_s)
    row: dict[str, Any] = {"name": name}
    row |= {f"{kind}_per_s": round(ITEMS / spent_s) for kind, spent_s in best.items()}
    print(json.dumps(row | {"ratio": round(best["blocking"] / best["loop"], 2)}), flush=True)


def main() -> None:
    with ExitStack() as stack:
        endpoint = sys.argv[1] if len(sys.argv) > 1 else start(stack)
        client = stack.enter_context(Client(endpoint, timeout_s=60))
        prepare(client)
        for name, way in WAYS.items():
            measure(name, way, client, endpoint)


if __name__ == "__main__":
    main()
