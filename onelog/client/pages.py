"""Items that arrive in pages, one for each message of the server: records, or events of a watch.

``_turn`` waits for the next page, in the event loop; ``_take`` takes an item of the page, in any
thread. A blocking client crosses threads once a page, not once an item (``blocking.PagesFacade``).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any, Generic, Self, TypeVar

ItemT = TypeVar("ItemT")


class Pages(ABC, Generic[ItemT]):
    """An iterator over the items of pages. Ends when it is closed, or at the end of ``with``."""

    def __init__(self) -> None:
        self._pages: AsyncGenerator[None, None] | None = None
        self._is_closed = False
        self._page: deque[Any] = deque()

    @abstractmethod
    def _run(self) -> AsyncGenerator[None, None]:
        """Yield when the stream has begun, then after each page."""

    @abstractmethod
    def _take(self) -> ItemT:
        """Take the next item of the page; IndexError if there is none."""

    async def _turn(self) -> None:
        """Wait for the next page; all items of the last one were taken."""
        if self._is_closed:
            raise StopAsyncIteration
        await self.start()
        assert self._pages is not None
        await anext(self._pages)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ItemT:
        while not self._page:
            await self._turn()
        return self._take()

    async def start(self) -> None:
        """Wait until it has begun: it will see every change from now on."""
        if self._pages is None:
            self._pages = self._run()
            await anext(self._pages)

    async def close(self) -> None:
        """End it."""
        pages, self._pages = self._pages, None
        self._is_closed = True
        self._page.clear()
        if pages is not None:
            await pages.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
