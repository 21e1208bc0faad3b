"""How commands fail: with a reason for programs, words for people, and an exit code."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_NOT_FOUND = 3
EXIT_REFUSED = 4
EXIT_UNAVAILABLE = 5
EXIT_STATE_DIVERGED = 65  # of onelog serve: this replica's state is wrong
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130  # as if SIGINT had ended the process
EXIT_PIPE_CLOSED = 141  # as if SIGPIPE had

# Which extra of the distribution brings a library that only some commands need.
EXTRAS = {
    "cryptography": "server",
    "grpc": "server",
    "grpc_health": "server",
    "grpc_reflection": "server",
    "httptools": "server",
    "pcodec": "server",
    "prometheus_client": "server",
    "pyarrow": "spark",
    "pysyncobj": "server",
    "pyspark": "spark",
    "sortedcontainers": "server",
    "starlette": "server",
    "uvicorn": "server",
    "uvloop": "server",
    "xxhash": "server",
    "zstandard": "server",
}


def advice_for(module: str | None) -> str | None:
    """Return how to install a missing module, or None if no extra has it."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return extra and f"install it with: pip install 'onelogdb[{extra}]'"


class CommandFailed(Exception):
    """Ends a command; ``reason`` is stable and meant for programs."""

    def __init__(self, reason: str, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.code = code or (EXIT_USAGE if reason == "USAGE" else EXIT_ERROR)


# Changes of the cluster that are not possible as things are.
_REFUSED = frozenset(("LEARNER_BEHIND", "MEMBERSHIP_REFUSED", "TRANSFER_FAILED"))


def find_exit_code(error: Exception) -> int:
    """Return the exit code for an error of the API."""
    from onelog import errors

    match error:
        case errors.FailedPrecondition(reason=reason) if reason in _REFUSED:
            return EXIT_REFUSED
        case errors.NotFound():
            return EXIT_NOT_FOUND
        case errors.ConditionFailed() | errors.AlreadyExists() | errors.LeaseLost():
            return EXIT_REFUSED
        case errors.Unavailable() | errors.DeadlineExceeded():
            return EXIT_UNAVAILABLE
        case _:
            return EXIT_ERROR
