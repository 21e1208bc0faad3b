"""Why something that a peer says is refused, in words that stay the same."""

from enum import StrEnum


class Reason(StrEnum):
    """Why a peer, or something that it sent, is refused."""

    # The handshake
    CLUSTER_MISMATCH = "CLUSTER_MISMATCH"
    TOPOLOGY_MISMATCH = "TOPOLOGY_MISMATCH"
    PROTOCOL_TOO_OLD = "PROTOCOL_TOO_OLD"
    PROTOCOL_TOO_NEW = "PROTOCOL_TOO_NEW"
    UNKNOWN_NODE = "UNKNOWN_NODE"
    WRONG_TARGET = "WRONG_TARGET"
    WRONG_DIRECTION = "WRONG_DIRECTION"
    STALE_SESSION = "STALE_SESSION"
    HELLO_EXPECTED = "HELLO_EXPECTED"
    HANDSHAKE_TIMEOUT = "HANDSHAKE_TIMEOUT"
    # Introductions
    CLUSTER_NAME_MISMATCH = "CLUSTER_NAME_MISMATCH"
    FOUNDERS_MISMATCH = "FOUNDERS_MISMATCH"
    NAME_TAKEN = "NAME_TAKEN"
    NODE_REPLACED = "NODE_REPLACED"
    NOT_FOUNDED = "NOT_FOUNDED"
    NOT_A_PEER_PORT = "NOT_A_PEER_PORT"  # nobody sends it: it is said of who does not understand
    # Frames
    UNREADABLE = "UNREADABLE"
    FRAME_TOO_LARGE = "FRAME_TOO_LARGE"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    TOO_MANY_MESSAGES = "TOO_MANY_MESSAGES"
    BAD_FRAGMENT = "BAD_FRAGMENT"
    UNEXPECTED_HELLO = "UNEXPECTED_HELLO"
    # Messages
    UNKNOWN_KIND = "UNKNOWN_KIND"
    UNKNOWN_SHARD = "UNKNOWN_SHARD"
    BAD_NUMBER = "BAD_NUMBER"
    BAD_GROUP = "BAD_GROUP"
    BAD_ID = "BAD_ID"
    BAD_CHUNK = "BAD_CHUNK"
    BAD_STATE_REPORT = "BAD_STATE_REPORT"


class WireError(Exception):
    """What a peer sent is refused; ``reason`` is stable, ``detail`` is for people."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
