"""Skeleton."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from projections.namespaces import Namespace
from projections.payload import Reader
from projections.projection import DerivedKeys, Due, FastPath, Position
from projections.reasons import Reason
from projections.result import Outcome, Refused
from ual.entry import OWNER_TIMESERIES, Draft, Entry


class TimeSeries:
    """Skeleton."""

    owner = OWNER_TIMESERIES

    def __init__(self, position: Position, keys: DerivedKeys) -> None:
        self._position = position

    def fast_paths(self) -> Mapping[int, FastPath]:
        return {}

    def apply(self, entry: Entry, namespace: str, reader: Reader) -> Outcome:
        return Refused(Reason.OPERATION_UNKNOWN, entry.entry_type & 0xFF)

    def begin_batch(self) -> None: ...
    def commit_batch(self) -> None: ...
    def rollback_batch(self) -> None: ...
    def namespace_created(self, namespace: Namespace) -> None: ...
    def namespace_configured(self, namespace: Namespace) -> None: ...
    def namespace_deleted(self, namespace: Namespace) -> None: ...
    def next_deadline(self) -> int | None:
        return None

    def due(self, now_ns: int, limit: int) -> list[Due]:
        return []

    def expire(self, item: bytes, index: int, timestamp_ns: int) -> bool:
        return False

    def chores(self, now_ns: int, limit: int) -> list[Draft]:
        return []

    def first_pinned(self) -> int | None:
        return None

    def pinned(self, first_index: int, last_index: int) -> Sequence[int]:
        return ()

    def state_hash(self) -> int:
        return 0

    def memory(self) -> dict[str, int]:
        return {}

    def evict(self, size: int) -> int:
        return 0

    def counts(self) -> dict[str, int]:
        return {}

    def dump(self) -> Iterator[bytes]:
        return iter(())

    def load(self, chunks: Iterable[bytes]) -> None:
        for _ in chunks:
            raise AssertionError

    def check(self) -> None: ...
