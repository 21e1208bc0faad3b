"""The rows that the model of streams and the model of groups share."""

from dataclasses import dataclass

from onelog.projections.stream.commands import Append


@dataclass(frozen=True)
class Turn:
    """Where in the log the model stands."""

    index: int
    now_ns: int
    size: int


@dataclass(frozen=True)
class ModelRecord:
    """One record; ``original`` is what a dead letter leads to."""

    offset: int
    timestamp_ns: int
    size: int
    value: bytes
    command: Append
    original: "ModelRecord | None" = None
