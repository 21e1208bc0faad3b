"""Work that may block, made on the loop, run anywhere, and taken back on the loop."""

from collections.abc import Callable

from onelog.ual.errors import UalError


class ShipJob:
    """One step of shipping, receiving or repair.

    ``act`` touches nothing that the loop changes. ``done`` follows on the loop with the error that
    ``act`` ended with, if it is one that files and bytes can cause.
    """

    __slots__ = ("_act", "_done", "error")

    def __init__(self, act: Callable[[], None], done: Callable[[Exception | None], None]) -> None:
        self._act = act
        self._done = done
        self.error: Exception | None = None

    def run(self) -> None:
        """Do it."""
        try:
            self._act()
        except (OSError, UalError) as error:
            self.error = error

    def finish(self) -> None:
        """Take it back."""
        self._done(self.error)
