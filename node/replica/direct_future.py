"""A future that continues whoever waits for it in the very call that ends it.

asyncio continues a waiter one turn of the loop later, in a task. A unary call needs neither: its
exchange (node/edge/exchange.py) steps it by hand, and the answers of a whole group leave in the
turn in which its sync came back. Everybody else waits for it as for any future.

Who ends one must be ready for whatever its waiter does then, so nothing of its own is half done.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class DirectFuture(asyncio.Future[ResultT]):
    """See the module's text. ``proceed`` is what continues the one who waits, if it is set."""

    proceed: Callable[[], None] | None = None

    def set_result(self, result: ResultT) -> None:
        """See ``asyncio.Future``."""
        super().set_result(result)
        if self.proceed is not None:
            self.proceed()

    def cancel(self, msg: Any | None = None) -> bool:
        """See ``asyncio.Future``."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.proceed is not None:
            self.proceed()
        return is_cancelled
