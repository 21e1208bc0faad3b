"""What becomes of a log whose write has failed.

A full disk is the caller's to wait out: everything before the write stays. Any other failure leaves
unknown bytes on disk, and from then on everything that would write is refused until the log is
opened again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from onelog.ual.errors import DiskFull, LogFailed
from onelog.ual.files import OUT_OF_SPACE
from onelog.ual.free_space import FreeSpace


class WriteGuard:
    """One log's answer to errors of its files."""

    def __init__(self, space: FreeSpace) -> None:
        self._space = space
        self.failure: str | None = None

    def refuse_if_failed(self) -> None:
        """Raise if nothing may be written any more."""
        if self.failure is not None:
            raise LogFailed(f"{self.failure}; open the log again to recover")

    def refuse_or_fail(self, what: str, error: OSError) -> NoReturn:
        """Report an error of something that can be tried again when there is space."""
        if error.errno in OUT_OF_SPACE:
            self._space.ask_again()
            raise DiskFull(f"{what}: {error}; free some space") from error
        self.fail(what, error)

    @contextmanager
    def fatal_errors(self, what: str) -> Iterator[None]:
        """Let an error in something that MANIFEST has decided end this log's writing."""
        try:
            yield
        except OSError as error:
            self.fail(what, error)

    def fail(self, what: str, error: OSError) -> NoReturn:
        """Refuse everything from now on."""
        self.failure = f"{what} failed: {error}"
        raise LogFailed(f"{self.failure}; open the log again to recover") from error
