"""Why a node does not start or had to stop, for people and programs.

::

    NodeError
    ├── ConfigError        a setting is wrong: which, where it came from, what would be right
    ├── FormationRefused   a formed cluster does not want this node as it is
    └── WorkerFailed       one of several worker processes ended by itself

``reason`` is stable and meant for programs; the message is meant for people and says what to do.
What a running node answers to its clients is not here but in the errors of its API.
"""

from typing import ClassVar


class NodeError(Exception):
    """Base of every error that ends a node on purpose."""

    reason: ClassVar[str] = "NODE_ERROR"


class ConfigError(NodeError):
    """A setting cannot be used as it is."""

    reason = "BAD_CONFIG"


class FormationRefused(NodeError):
    """This node cannot be a part of the cluster; ``peer_reason`` is the stable word of why."""

    reason = "FORMATION_REFUSED"

    def __init__(self, peer_reason: str, message: str) -> None:
        super().__init__(message)
        self.peer_reason = peer_reason


class WorkerFailed(NodeError):
    """A worker process ended although nobody had asked it to."""

    reason = "WORKER_FAILED"
