"""A shard with one stream and one consumer group, and short ways to use them."""

from onelog.projections.limits import U64_MAX
from onelog.projections.result import Applied
from onelog.projections.stream.commands import (
    Claim,
    Deliver,
    GroupConfig,
    GroupCreate,
    GroupJoin,
)
from onelog.projections.stream.operations import Claimed, decode_claimed
from onelog.projections.stream.reads import GroupDescription, Record
from tests.projections.stream.stream_pages import read_undelivered
from tests.projections.stream.stream_world import StreamWorld
from tests.projections.world import NAMESPACE, SECOND

SHARED = GroupConfig(shared=True)


class GroupWorld(StreamWorld):
    """A world with a stream ``s`` and a group ``g``, and short ways to use them."""

    def open(self, partition_count: int = 1, config: GroupConfig = SHARED) -> None:
        self.create("dead")
        self.create("s", partition_count)
        assert isinstance(self.run(GroupCreate("s", "g", 0, config)), Applied)

    def join(self, seconds: int = 10) -> int:
        result = self.run(GroupJoin("s", "g", seconds * SECOND))
        assert isinstance(result, Applied), result
        return result.number

    def described(self) -> GroupDescription:
        found = self.stream.describe_group(NAMESPACE, "s", "g")
        assert isinstance(found, GroupDescription)
        return found

    def deliver(self, member: int, limit: int = 100, partition: int = 0) -> list[int]:
        """Do what a server does for a consumer that wants records."""
        page = read_undelivered(self.stream, self.memory_log, "s", "g", partition, limit)
        offsets = tuple(item.offset for item in page.items if isinstance(item, Record))
        group = self.described()
        command = Deliver(
            "s",
            "g",
            member,
            group.generation,
            partition,
            group.delivered[partition],
            page.next_offset,
            offsets,
        )
        assert self.run(command) == Applied(len(offsets))
        return list(offsets)

    def claim(self, member: int, idle_ns: int = U64_MAX) -> list[Claimed]:
        result = self.run(Claim("s", "g", member, self.described().generation, idle_ns, 1_000))
        assert isinstance(result, Applied), result
        assert result.value is not None
        return decode_claimed(result.value)
