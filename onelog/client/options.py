"""Settings of a client, with defaults that fit most programs.

Every limit is here. A client has at most ``pending_operations_max`` operations and
``pending_bytes_max`` bytes under way; above that callers wait, within their own timeout.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from onelog.client.validation import check_fields
from onelog.errors import InvalidArgument

# ``prefer-async``: async where an operation can be answered before it is applied, else sync.
Durability = Literal["sync", "async", "prefer-async"]

# For calls whose time depends on how much data there is.
LONG_TIMEOUT_S = 3600.0

DEFAULT_PORT = "7400"
PORT_DIGITS_MAX = 5
DEFAULT_ENDPOINT = f"127.0.0.1:{DEFAULT_PORT}"
# A name, an IPv4 address, or an IPv6 address in brackets.
_HOST = re.compile(r"[^\s/\[\]@?#:]+|\[[0-9A-Fa-f:.%\w]+\]")

# Operations that a server accepts in one pipeline message, and results that it keeps for a session
# (docs/guarantees.md).
MESSAGE_OPERATIONS_MAX = 10_000
SESSION_RESULTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS: the CA, and the client's own certificate, as PEM bytes; no ``ca``: the system's CAs."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    # The name in the server's certificate, if it differs from the endpoint's host.
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of a client. All times are in seconds."""

    # How long a call may take, retries included; ``scoped`` overrides it.
    timeout_s: float = 10.0

    # How long to wait for a connection before another endpoint is tried.
    connect_timeout_s: float = 2.0

    # After this long without an answer the client asks who leads now, and may retry there.
    attempt_timeout_s: float = 1.0

    # Whether writes use sessions, so that a retry takes effect once. Without them a write whose
    # outcome is not known fails with OutcomeUnknown instead of being retried.
    sessions: bool = True
    session_ttl_s: float = 600.0

    # The most operations and bytes in one message to the server; more take further messages.
    batch_operations_max: int = 1_000
    batch_bytes_max: int = 1 << 20

    # Unanswered messages: of writes for each shard, of reads for each endpoint. Usually there is
    # one, and calls made meanwhile go together in the next. Further ones are sent early if they are
    # full or hold acks. Writes still take effect in the order in which they were called.
    messages_in_flight_max: int = 4

    # Unanswered operations and bytes of the whole client; above these limits callers wait.
    pending_operations_max: int = 100_000
    pending_bytes_max: int = 64 << 20

    # Waiting before a retry: doubled each time, with jitter.
    backoff_first_s: float = 0.02
    backoff_max_s: float = 1.0

    # How often to refresh the topology although nothing failed.
    topology_refresh_s: float = 30.0

    # The largest message in either direction; the server has the same limit.
    message_bytes_max: int = 16 << 20

    # Transport security, and the certificate that shows who calls.
    tls: Tls | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        for name in (
            "timeout_s", "connect_timeout_s", "attempt_timeout_s", "backoff_first_s",
            "backoff_max_s", "topology_refresh_s", "batch_operations_max", "batch_bytes_max",
            "messages_in_flight_max", "pending_operations_max", "pending_bytes_max",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise _wrong(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 1 <= self.session_ttl_s <= 86_400:
            raise _wrong(f"session_ttl_s is {self.session_ttl_s}; 1 to 86,400")
        if self.batch_operations_max > MESSAGE_OPERATIONS_MAX:
            raise _wrong(f"batch_operations_max is above {MESSAGE_OPERATIONS_MAX}")
        # The server keeps a limited number of answers that the client has not confirmed: the
        # messages under way and one more must fit.
        if (self.messages_in_flight_max + 1) * self.batch_operations_max > SESSION_RESULTS_MAX:
            raise _wrong(
                "messages_in_flight_max + 1 times batch_operations_max is above "
                f"{SESSION_RESULTS_MAX}, which is what a session can hold"
            )
        if self.batch_bytes_max > self.message_bytes_max // 2:
            raise _wrong("batch_bytes_max is above half of message_bytes_max")


def parse_endpoint(text: str) -> str:
    """Return an endpoint as HOST:PORT; without a port it is 7400."""
    host, colon, port = text.rpartition(":")
    if "://" in text:
        scheme, _, rest = text.partition("://")
        hint = ", and pass tls=Tls()" if scheme == "https" else ""
        raise _no_endpoint(text, f"has a scheme; write {rest.partition('/')[0]}{hint}")
    if "," in text:
        raise _no_endpoint(text, "is several; pass a list")
    if not colon or text.endswith("]"):
        host, port = text, DEFAULT_PORT
    elif host.count(":") > 0 and not host.startswith("["):
        raise _no_endpoint(text, "is ambiguous; put an IPv6 address in brackets: [::1]:7400")
    if not _HOST.fullmatch(host) or host.isdecimal():
        raise _no_endpoint(text, "is not HOST:PORT")
    is_number = port.isascii() and port.isdecimal() and len(port) <= PORT_DIGITS_MAX
    if not is_number or not 0 < int(port) < 1 << 16:
        raise _no_endpoint(text, "has no port of 1 to 65535")
    return f"{host}:{port}"


def to_route(endpoint: str | None) -> Callable[[], str] | None:
    """Return what sends a call to this endpoint; None: anywhere."""
    return None if endpoint is None else partial(parse_endpoint, endpoint)


def _no_endpoint(text: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{text!r} {what}", reason="ENDPOINT_INVALID")


def _wrong(what: str) -> InvalidArgument:
    return InvalidArgument(what, reason="OPTION_INVALID")


@dataclass(frozen=True, slots=True)
class Scope:
    """Namespace, timeout and durability of the calls of one view of a client."""

    namespace: str = ""
    timeout_s: float = 10.0
    durability: Durability = "sync"

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise _wrong(f"timeout_s is {self.timeout_s}; it must be above 0")
        if self.durability not in get_args(Durability):
            choices = ", ".join(get_args(Durability))
            raise _wrong(f"durability is {self.durability!r}; it must be one of {choices}")

    @property
    def is_early(self) -> bool:
        """Whether writes are answered before they are applied, where that is possible."""
        return self.durability != "sync"

    def need_result(self, what: str) -> None:
        """Refuse a write whose answer exists only once it is applied, if it may not be sync."""
        if self.durability == "async":
            raise InvalidArgument(
                f"{what} has a result to wait for; use the durability sync, or prefer-async",
                reason="ASYNC_NEEDS_RESULT",
            )
