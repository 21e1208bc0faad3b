"""Making a directory in two steps: whose it is first, which cluster it belongs to later."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from onelog.ual.directory import Claim, DataDirectory, Founder, Node, System, Topology
from onelog.ual.errors import DirectoryInUse, NotADataDirectory, TopologyMismatch
from tests.simulation.disk import CrashPolicy, SimDisk

PATH = Path("/var/data")
NODE = Node(UUID(int=1), "n1", "2026-01-01T00:00:00Z")
OTHER = Node(UUID(int=2), "n2", "2026-01-01T00:00:01Z")
FOUNDERS = (Founder(UUID(int=1), "n1", "a:1"), Founder(UUID(int=2), "n2", "b:1"))
SYSTEM = System(UUID(int=9), Topology(2, 16), "2026-01-01T00:00:02Z", "c", FOUNDERS)


def claim(disk: SimDisk, node: Node = NODE, *, of_workers: bool = False) -> Claim:
    return DataDirectory.claim(disk, PATH, node, of_workers=of_workers)


def test_a_claimed_directory_knows_its_node_and_then_its_cluster() -> None:
    disk = SimDisk()
    first = claim(disk)
    assert (first.node, first.system) == (NODE, None)
    first.close()

    # Another start draws another id, and keeps the one that was said to others.
    second = claim(disk, OTHER)
    assert (second.node, second.system) == (NODE, None)
    directory = second.complete(SYSTEM)
    assert (directory.node, directory.system) == (NODE, SYSTEM)
    directory.close()

    third = claim(disk, OTHER)
    assert (third.node, third.system) == (NODE, SYSTEM)
    third.complete(SYSTEM).close()


def test_a_claim_holds_the_lock_until_it_is_given_up_or_handed_on() -> None:
    disk = SimDisk()
    first = claim(disk)
    with pytest.raises(DirectoryInUse):
        claim(disk)
    directory = first.complete(SYSTEM)
    first.close()  # no longer its to release
    with pytest.raises(DirectoryInUse):
        claim(disk)
    directory.close()
    claim(disk).close()


def test_somebody_elses_directory_is_not_claimed() -> None:
    disk = SimDisk()
    disk.make_directory(PATH / "photos")
    with pytest.raises(NotADataDirectory):
        claim(disk)
    assert disk.list(PATH) == ["photos"]


def test_the_number_of_workers_cannot_change_between_one_and_several() -> None:
    disk = SimDisk()
    claim(disk, of_workers=True).close()
    disk.make_directory(PATH / "worker-0")
    claim(disk, of_workers=True).close()
    with pytest.raises(TopologyMismatch, match="several workers"):
        claim(disk)

    disk = SimDisk()
    claim(disk).complete(SYSTEM).close()
    with pytest.raises(TopologyMismatch, match="one worker"):
        claim(disk, of_workers=True)


@pytest.mark.parametrize("step", ["claim", "complete"])
def test_a_crash_in_either_step_is_finished_by_the_next_start(step: str) -> None:
    """What was claimed before the crash is claimed after it: others may have been told the id."""
    disk = SimDisk(tear_writes=True, forget_directories=True)
    points = 0

    def check(operation: str) -> None:
        nonlocal points
        for policy in CrashPolicy:
            points += 1
            left = disk.crash(policy, Random(points))
            again = claim(left, OTHER)
            label = f"{operation}, {policy}"
            assert again.node in ((NODE, OTHER) if step == "claim" else (NODE,)), label
            assert again.system in (None, SYSTEM), label
            directory = again.complete(SYSTEM)
            durable = DataDirectory.open_existing(left.crash(CrashPolicy.LOST), PATH, lock=False)
            assert (durable.node, durable.system) == (directory.node, SYSTEM), label

    def run(work: Callable[[], object]) -> None:
        disk.after_operation = check
        work()
        disk.after_operation = None

    if step == "claim":
        run(lambda: claim(disk))
    else:
        claimed = claim(disk)
        run(lambda: claimed.complete(SYSTEM))
    assert points > 15
