"""A future whose waiter continues in the very call that ends it.

asyncio continues a waiter one turn of the loop later, in a task. A unary call needs neither: its
exchange (node/edge/exchange.py) steps it by hand, and the answers of a whole group leave in the
turn in which its sync returned. Other code awaits it as any future.

The waiter may do anything in that call, so the code that ends a future must leave nothing half
done before it.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class DirectFuture(asyncio.Future[ResultT]):
    """See the module. ``proceed``, if it is set, continues the waiter."""

    proceed: Callable[[], None] | None = None

    def set_result(self, result: ResultT) -> None:
        """See ``asyncio.Future``."""
        super().set_result(result)
        if self.proceed is not None:
            self.proceed()

    def answer(self, result: ResultT) -> None:
        """Set the result, unless the waiter has left."""
        if not self.done():
            super().set_result(result)
            if self.proceed is not None:
                self.proceed()

    def cancel(self, msg: Any | None = None) -> bool:
        """See ``asyncio.Future``."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.proceed is not None:
            self.proceed()
        return is_cancelled
