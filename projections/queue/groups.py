"""Message groups: in order within a key, one in flight per key, keys side by side.

A group is the live messages of one queue that share a key, in the order of their ids. Its turn is
always that of the lowest id, and only while no message of the group is leased. A delayed message
(a retry that waits for its backoff) holds up its group: that is what order means. When the lowest
id is done, dead, expired, cancelled or purged, the next one's turn comes in the same apply.

A group exists while it has messages, and has a number for as long: that is what a row holds.
"""

from array import array
from bisect import bisect_left

from onelog.projections.codec import U8

GROUP_SIZE = 445  # bytes of a group: object, name twice, array, number, two table slots
MEMBER_SIZE = 8.5

_TRIM_ROWS = 64


class Group:
    """The messages of one key. ``leased`` and ``placed`` are ids, 0 for none."""

    __slots__ = ("head", "leased", "members", "number", "placed", "tail")

    def __init__(self, name: bytes = b"", number: int = 0) -> None:
        self.tail = U8.pack(len(name)) + name  # the name as the canonical bytes of a row have it
        self.number = number
        self.members = array("Q")
        self.head = 0  # members before it are gone
        self.leased = 0
        self.placed = 0  # the message that has been put among the ready ones

    def __len__(self) -> int:
        return len(self.members) - self.head

    @property
    def name(self) -> bytes:
        """The key."""
        return self.tail[1:]

    def turn(self) -> int:
        """Return the id whose turn it is, 0 while one is leased."""
        return 0 if self.leased or not len(self) else self.members[self.head]

    def add(self, message_id: int) -> None:
        """Add a message; most are newer than all others."""
        members = self.members
        if not members or message_id > members[-1]:
            members.append(message_id)
        else:
            members.insert(bisect_left(members, message_id, self.head), message_id)

    def remove(self, message_id: int) -> None:
        """Remove a message; most are the first."""
        members, head = self.members, self.head
        if members[head] != message_id:
            at = bisect_left(members, message_id, head)
            assert members[at] == message_id, f"{message_id} is not in its group"
            del members[at]
            return
        self.head = head = head + 1
        if head >= _TRIM_ROWS and head * 2 >= len(members):
            del members[:head]
            self.head = 0

    def ids(self) -> list[int]:
        """Return all ids, ascending."""
        return list(self.members[self.head :])


class Groups:
    """The groups of one queue, by key and by number."""

    __slots__ = ("_by_name", "_next", "by_number")

    def __init__(self) -> None:
        self._by_name: dict[bytes, Group] = {}
        self.by_number: dict[int, Group] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: bytes) -> bool:
        return name in self._by_name

    def join(self, name: bytes, message_id: int) -> Group:
        """Add a message to the group of a key and return it."""
        group = self._by_name.get(name)
        if group is None:
            number = self._next
            self._next = number + 1
            group = self._by_name[name] = self.by_number[number] = Group(name, number)
        group.add(message_id)
        return group

    def leave(self, group: Group, message_id: int) -> bool:
        """Remove a message; tell whether the group still has any, or is forgotten."""
        group.remove(message_id)
        if group.head < len(group.members):
            return True
        del self.by_number[group.number]
        del self._by_name[group.name]
        return False

    def memory(self) -> int:
        """Return the bytes held."""
        members = sum(map(len, self.by_number.values()))
        return GROUP_SIZE * len(self.by_number) + int(MEMBER_SIZE * members)

    def check(self, members: dict[bytes, list[int]]) -> None:
        """Assert that the groups are these."""
        assert {name: group.ids() for name, group in self._by_name.items()} == members, "groups"
        for number, group in self.by_number.items():
            assert group.number == number, f"number {number} of group {group.name!r}"
            assert self._by_name[group.name] is group, f"name of group {number}"
        assert len(self.by_number) == len(self._by_name), "numbers of groups"
