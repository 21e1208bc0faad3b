"""What a client can be told to do otherwise, with defaults that fit most programs.

Every limit is here. A client holds at most ``pending_operations_max`` operations and
``pending_bytes_max`` bytes that are not answered; callers wait for room within their own timeout.
"""

from dataclasses import dataclass
from typing import Literal

Durability = Literal["sync", "async"]

DEFAULT_ENDPOINT = "127.0.0.1:7400"

# What a server takes in one message of a pipeline, and keeps for a session (docs/guarantees.md).
MESSAGE_OPERATIONS_MAX = 10_000
SESSION_RESULTS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust a server, and to be trusted: PEM bytes; without ``ca`` the system's are used."""

    ca: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None

    # The name in the server's certificate, if it is not that of the endpoint.
    server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Settings of a client. All times are in seconds."""

    # How long a call may take, retries included, unless it says otherwise.
    timeout_s: float = 10.0

    # How long to wait for a connection before another endpoint is tried.
    connect_timeout_s: float = 2.0

    # An answer that takes longer makes the client ask who leads now; it may then ask there.
    attempt_timeout_s: float = 1.0

    # Whether writes go through sessions, so that a retry is exact. Without, a write whose outcome
    # is not known fails with OutcomeUnknown instead of being tried again.
    sessions: bool = True
    session_ttl_s: float = 600.0

    # One message to the server. More operations than these form further messages.
    batch_operations_max: int = 1_000
    batch_bytes_max: int = 1 << 20

    # Unanswered messages of writes for each shard, and of reads for each endpoint. Usually there is
    # one, and what is called meanwhile goes together. More are sent where they are full, or acks,
    # and no order is lost by it: writes take effect in the order in which they were called.
    messages_in_flight_max: int = 4

    # Unanswered operations of the whole client; callers wait above them.
    pending_operations_max: int = 100_000
    pending_bytes_max: int = 64 << 20

    # Waiting before a retry: doubled each time, with jitter.
    backoff_first_s: float = 0.02
    backoff_max_s: float = 1.0

    # How often the topology is asked for although nothing failed.
    topology_refresh_s: float = 30.0

    # One message in either direction; a server takes no more either.
    message_bytes_max: int = 16 << 20

    # Transport security and who the caller is.
    tls: Tls | None = None
    token: str | None = None

    def __post_init__(self) -> None:
        for name in (
            "timeout_s", "connect_timeout_s", "attempt_timeout_s", "backoff_first_s",
            "backoff_max_s", "topology_refresh_s", "batch_operations_max", "batch_bytes_max",
            "messages_in_flight_max", "pending_operations_max", "pending_bytes_max",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        if not 1 <= self.session_ttl_s <= 86_400:
            raise ValueError(f"session_ttl_s is {self.session_ttl_s}; 1 to 86,400")
        if self.batch_operations_max > MESSAGE_OPERATIONS_MAX:
            raise ValueError(f"batch_operations_max is above {MESSAGE_OPERATIONS_MAX}")
        # Answers that the client has not confirmed are kept by the server, so many and no more:
        # one message less than that may be under way.
        if (self.messages_in_flight_max + 1) * self.batch_operations_max > SESSION_RESULTS_MAX:
            raise ValueError(
                "messages_in_flight_max + 1 times batch_operations_max is above "
                f"{SESSION_RESULTS_MAX}, which is what a session can hold"
            )
        if self.batch_bytes_max > self.message_bytes_max // 2:
            raise ValueError("batch_bytes_max is above half of message_bytes_max")


@dataclass(frozen=True, slots=True)
class Scope:
    """What the calls of one view of a client have in common."""

    namespace: str = ""
    timeout_s: float = 10.0
    durability: Durability = "sync"
