"""Proposals by number: what Raft sees of the log.

Raft counts proposals, the log counts entries; a proposal is one group. A ``ProposalRange`` is a
window over them that holds numbers only. Slicing it costs nothing, and a group's bytes are read
when that one item is asked for, because Raft libraries like to ask for ``log[n:]`` and use one.
"""

from collections.abc import Callable, Sequence
from typing import overload


class ProposalRange(Sequence[bytes]):
    """The stored groups of the proposals ``numbers``, read one by one when asked for."""

    __slots__ = ("_read", "numbers")

    def __init__(self, read: Callable[[int], bytes], numbers: range) -> None:
        self._read = read
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> "ProposalRange": ...
    def __getitem__(self, at: int | slice) -> "bytes | ProposalRange":
        if isinstance(at, slice):
            return ProposalRange(self._read, self.numbers[at])
        return self._read(self.numbers[at])
