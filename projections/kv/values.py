"""Values that stand outside their record: large ones, and those moved to the spill store.

A record refers to such a value by an id that is never reused. Ids say where a value is, not what
it is: they are local to this process, in no hash and in no snapshot. An id is resident (in
memory) or spilled (in the spill store), never both and never neither, from ``add`` until
``discard``. Each namespace has values of its own; they share one sequence of ids, because they
share the spill store.
"""

import sys
from collections.abc import Iterator

from onelog.projections.errors import SpillLost
from onelog.projections.projection import SpillStore

OBJECT_SIZE = 41  # of a bytes object besides its bytes: 33, and 8 that rounding to 16 costs
ID_SIZE = 32  # of the number that is a value's id; its slot in the table is counted with that


class Values:
    """Values by id, in memory or spilled."""

    __slots__ = ("_ids", "_resident", "_spill", "resident_size", "spilled_count")

    def __init__(self, spill: SpillStore | None, ids: Iterator[int]) -> None:
        self._spill = spill
        self._ids = ids
        self._resident: dict[int, bytes] = {}
        self.resident_size = 0
        self.spilled_count = 0

    @property
    def can_spill(self) -> bool:
        """Whether there is somewhere to move values to."""
        return self._spill is not None

    def add(self, value: bytes) -> int:
        """Keep a value in memory and return its id."""
        value_id = next(self._ids)
        self._resident[value_id] = value
        self.resident_size += len(value)
        return value_id

    def add_spilled(self, value: bytes) -> int:
        """Put a value straight into the spill store and return its id."""
        assert self._spill is not None, "no spill store"
        value_id = next(self._ids)
        self._spill.put(value_id, value)
        self.spilled_count += 1
        return value_id

    def get(self, value_id: int, size: int) -> bytes:
        """Return a value of ``size`` bytes, from wherever it is."""
        value = self._resident.get(value_id)
        if value is None:
            assert self._spill is not None, f"value {value_id} is nowhere"
            value = self._spill.get(value_id)
            if len(value) != size:
                raise SpillLost(value_id, f"{len(value)} bytes instead of {size}")
        assert len(value) == size, f"value {value_id} has {len(value)} bytes, not {size}"
        return value

    def is_resident(self, value_id: int) -> bool:
        """Whether the value is in memory."""
        return value_id in self._resident

    def move_out(self, value_id: int) -> int:
        """Spill a resident value and return the bytes that memory has won."""
        assert self._spill is not None, "no spill store"
        value = self._resident[value_id]
        self._spill.put(value_id, value)
        del self._resident[value_id]
        self.resident_size -= len(value)
        self.spilled_count += 1
        return len(value) + OBJECT_SIZE + ID_SIZE

    def discard(self, value_id: int) -> None:
        """Forget a value that no record refers to any more."""
        value = self._resident.pop(value_id, None)
        if value is not None:
            self.resident_size -= len(value)
            return
        assert self._spill is not None, f"value {value_id} is nowhere"
        self._spill.delete(value_id)
        self.spilled_count -= 1

    def memory(self) -> int:
        """Return the bytes in memory, objects and table included."""
        objects = len(self._resident) * (OBJECT_SIZE + ID_SIZE)
        return self.resident_size + objects + sys.getsizeof(self._resident)

    def check(self, referred: dict[int, int]) -> None:
        """Assert that exactly the ids in ``referred`` (id -> size) exist, with those sizes."""
        assert self.resident_size == sum(map(len, self._resident.values()))
        assert self._resident.keys() <= referred.keys(), "a value that nobody refers to"
        assert self.spilled_count == len(referred) - len(self._resident)
        for value_id, size in referred.items():
            self.get(value_id, size)
