"""Batches: conditions, then entries of any owner, all or nothing.

A batch is one ``batch`` entry and the entries that it counts, all in one group. Its entries are
collected until the last one is there and then run in one go, so that no read in between sees half
of it. When a condition fails or an entry is refused, every projection rolls back and the whole
range of indexes is void.

Which operation was refused is said by its position among all of them: an entry is one operation,
except ``put_many``, which is as many as it has puts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from onelog.projections.codec import Prefix, read_prefix
from onelog.projections.conditions import Condition
from onelog.projections.kv.commands import TYPE_PUT_MANY, put_count
from onelog.projections.reasons import Reason
from onelog.projections.result import Applied, Duplicate, Refused, Result
from onelog.projections.system.commands import Batch
from onelog.ual.entry import Entry


class Judge(Protocol):
    """Who can tell whether conditions on keys hold: the KV projection."""

    def first_failed(self, namespace: str, conditions: Sequence[Condition]) -> int | None:
        """Return the position of the first condition that does not hold."""


@dataclass(slots=True)
class OpenBatch:
    """A batch whose entries are being collected."""

    head: Entry
    prefix: Prefix
    command: Batch
    entries: list[Entry] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether the last entry is there."""
        return len(self.entries) == self.command.entry_count

    @property
    def missing_count(self) -> int:
        """How many entries are still to come."""
        return self.command.entry_count - len(self.entries)

    @property
    def last_index(self) -> int:
        """The index of the last entry, once complete."""
        return self.head.index + self.command.entry_count


def refusal(entries: Sequence[Entry], at: int, refused: Refused) -> Refused:
    """Return the result of a batch whose entry at ``at`` was refused."""
    position, cause = sum(map(_operation_count, entries[:at])), refused.reason
    if entries[at].entry_type == TYPE_PUT_MANY and refused.cause is not None:
        position, cause = position + refused.detail, refused.cause
    return Refused(Reason.BATCH_REFUSED, position, cause)


def _operation_count(entry: Entry) -> int:
    """Return how many operations an entry is that was applied."""
    if entry.entry_type != TYPE_PUT_MANY:
        return 1
    _, body = read_prefix(entry.plain_payload())
    return put_count(body)


def spread(result: Result, entry_count: int) -> list[Result]:
    """Return the results of a batch's entries, given the one result of the batch."""
    if isinstance(result, Applied):
        return list(result.results)
    assert isinstance(result, Refused | Duplicate), result
    return [result] * entry_count
