"""Message groups: in order within a key, one in flight per key, keys side by side.

A group is the live messages of one queue that share a key, in the order of their ids. Its turn is
always that of the lowest id, and only while no message of the group is leased. A delayed message
(a retry that waits for its backoff) holds up its group: that is what order means. When the lowest
id is done, dead, expired, cancelled or purged, the next one's turn comes in the same apply.
"""

from array import array
from bisect import bisect_left

GROUP_SIZE = 240  # bytes of a group beside its name: object, array, table slot
MEMBER_SIZE = 8.5

_TRIM_ROWS = 64


class Group:
    """The messages of one key. ``leased`` and ``placed`` are ids, 0 for none."""

    __slots__ = ("_head", "_members", "leased", "placed")

    def __init__(self) -> None:
        self._members = array("Q")
        self._head = 0
        self.leased = 0
        self.placed = 0  # the message that has been put among the ready ones

    def __len__(self) -> int:
        return len(self._members) - self._head

    def first(self) -> int:
        """Return the lowest id; there must be one."""
        return self._members[self._head]

    def turn(self) -> int:
        """Return the id whose turn it is, 0 while one is leased."""
        return 0 if self.leased or not len(self) else self._members[self._head]

    def add(self, message_id: int) -> None:
        """Add a message; most are newer than all others."""
        members = self._members
        if not members or message_id > members[-1]:
            members.append(message_id)
        else:
            members.insert(bisect_left(members, message_id, self._head), message_id)

    def remove(self, message_id: int) -> None:
        """Remove a message; most are the first."""
        members = self._members
        if members[self._head] != message_id:
            at = bisect_left(members, message_id, self._head)
            assert members[at] == message_id, f"{message_id} is not in its group"
            del members[at]
            return
        self._head += 1
        if self._head >= _TRIM_ROWS and self._head * 2 >= len(members):
            del members[: self._head]
            self._head = 0

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return list(self._members[self._head :])
