"""How a command fails whose errors ``main`` does not know: with their reason and their words."""


class CommandFailed(Exception):
    """Ends a command; ``reason`` is stable and meant for programs."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
