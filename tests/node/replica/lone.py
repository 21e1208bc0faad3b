"""A group of one on a simulated disk, for what needs no other member."""

from dataclasses import replace

from onelog.node.replica.shard import Shard
from onelog.projections.kv import commands
from onelog.projections.result import Result
from onelog.ual.entry import Draft
from tests.simulation.mutations import CALM
from tests.simulation.world import World

NAMESPACE = "default"
ALONE = replace(CALM, members=1, clients=0, stale_readers=0, weights={"mend": 1.0})


class LoneNode:
    """A group of one on a simulated disk with small segments."""

    def __init__(self) -> None:
        self.world = World(1, ALONE)
        self.replica = self.world.replicas[0]
        self.replica.start()
        self.pass_time(2.0)

    @property
    def shard(self) -> Shard:
        assert self.replica.shard is not None
        return self.replica.shard

    def pass_time(self, seconds: float) -> None:
        schedule = self.world.schedule
        schedule.run_until(schedule.now_s + seconds)

    def write(self, *drafts: Draft) -> list[Result]:
        outcomes: list[object] = []
        deadline_s = self.replica.clock.now_s() + 5.0
        self.replica.run(lambda shard: shard.propose(drafts, deadline_s, outcomes.append))
        self.pass_time(0.1)
        assert len(outcomes) == 1
        assert isinstance(outcomes[0], list), outcomes
        return outcomes[0]

    def fill(self) -> None:
        """Write segments full of something else, and cover them by two snapshots."""
        for _ in range(2):
            for number in range(30):
                self.write(commands.encode_command(commands.Put(b"k", b"%0900d" % number),
                                                      NAMESPACE))  # fmt: skip
            self.replica.snapshot()

    def trimmed_to(self) -> int:
        """Trim, and return where the log begins now."""
        self.replica.trim()
        return self.shard.log.first_index
