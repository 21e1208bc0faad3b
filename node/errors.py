"""Why a node does not start or had to stop, for people and programs.

::

    NodeError
    ├── ConfigError        a setting is wrong: which, where it came from, what would be right
    │   ├── KeyExposed        others can read a private key
    │   ├── KeyMismatch       a private key is not that of its certificate
    │   └── CertificateUnfit  a certificate is not this node's, or not for its purpose
    ├── FormationRefused   a formed cluster does not want this node as it is
    ├── MemberRemoved      the cluster has removed this node: exit code 4
    ├── OutOfMemory        an allocation failed where the process cannot continue
    └── WorkerFailed       one of several worker processes ended by itself

``reason`` is stable and meant for programs; the message is meant for people and says what to do.
What a running node answers to its clients is not here but in the errors of its API.
"""

from typing import ClassVar


class NodeError(Exception):
    """Base of every error that ends a node on purpose."""

    reason: ClassVar[str] = "NODE_ERROR"
    # Of ``onelog serve``; None: the usual one of the reason.
    exit_code: ClassVar[int | None] = None


class ConfigError(NodeError):
    """A setting cannot be used as it is."""

    reason = "BAD_CONFIG"


class KeyExposed(ConfigError):
    """Others can read a private key."""

    reason = "KEY_EXPOSED"


class KeyMismatch(ConfigError):
    """A private key does not belong to its certificate."""

    reason = "KEY_MISMATCH"


class CertificateUnfit(ConfigError):
    """A certificate names another node, or is not for what it is used for."""

    reason = "CERTIFICATE_UNFIT"


class FormationRefused(NodeError):
    """This node cannot be a part of the cluster; ``peer_reason`` is the stable word of why."""

    reason = "FORMATION_REFUSED"

    def __init__(self, peer_reason: str, message: str) -> None:
        super().__init__(message)
        self.peer_reason = peer_reason


class MemberRemoved(NodeError):
    """The cluster has removed this node: starting it again changes nothing."""

    reason = "MEMBER_REMOVED"
    exit_code = 4


class ShardDamaged(NodeError):
    """A shard cannot start: its log is damaged, and no other member can repair it."""

    reason = "SHARD_DAMAGED"


class OutOfMemory(NodeError):
    """The process has no more memory; the message says what it held."""

    reason = "OUT_OF_MEMORY"


class WorkerFailed(NodeError):
    """A worker process ended although nobody had asked it to; ``code`` is its exit code."""

    reason = "WORKER_FAILED"

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
