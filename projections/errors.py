"""Exceptions of projections. A bad entry is no exception: it is refused, which is a result.

::

    ProjectionError
    ├── BadPayload       inside decoding only: the router turns it into Refused(reason)
    ├── BadDocument      inside JSON operations only: they turn it into Refused(reason)
    ├── BadResult        bytes that are not a stored result
    ├── CorruptSection   a snapshot section cannot be loaded; the router is unusable afterwards
    └── SpillLost        a spilled value cannot be read back; the replica must stop
"""

from onelog.projections.reasons import Reason


class ProjectionError(Exception):
    """Base of everything that this package raises on purpose."""


class BadPayload(ProjectionError):
    """A payload breaks its format. Raised by decoders, before any state has changed.

    ``message`` says more than the reason does, where more is known; results do not keep it.
    """

    def __init__(self, reason: Reason, detail: int = 0, message: str = "") -> None:
        super().__init__(f"{reason.name} ({detail})")
        self.reason = reason
        self.detail = detail
        self.message = message


class BadDocument(ProjectionError):
    """A JSON text or a path is invalid. Raised before any state has changed."""

    def __init__(self, reason: Reason, detail: int = 0) -> None:
        super().__init__(f"{reason.name} ({detail})")
        self.reason = reason
        self.detail = detail


class BadResult(ProjectionError):
    """Bytes that should be a stored result are not one."""


class CorruptSection(ProjectionError):
    """The section of ``owner`` breaks ``rule``; discard what was loaded so far."""

    def __init__(self, owner: int, rule: str) -> None:
        super().__init__(f"snapshot section 0x{owner:02x}: {rule}")
        self.owner = owner
        self.rule = rule


class SpillLost(ProjectionError):
    """The spill store does not return what was put into it.

    Spill stores are derived data: a restart rebuilds the state.
    """

    def __init__(self, value_id: int, rule: str) -> None:
        super().__init__(f"spilled value {value_id}: {rule}")
        self.value_id = value_id
        self.rule = rule
