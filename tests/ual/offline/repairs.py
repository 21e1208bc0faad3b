"""Planning and applying repairs in tests, and what must hold after each."""

from pathlib import Path

from onelog.ual.entry import Entry
from onelog.ual.offline.reader import OfflineLog
from onelog.ual.offline.repair import Repair, apply_repairs, plan_repairs
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.ual.directories import UNSYNCED_MAX, Built, check, tree
from tests.ual.shards import open_shard

STAMP = "20260101T000000Z"
COPIES = Path(f"/data/repair-{STAMP}")


def plan_for(disk: SimDisk, built: Built) -> list[Repair]:
    return plan_repairs(disk, built.data_dir, unsynced_bytes_max=UNSYNCED_MAX)


def apply(disk: SimDisk, built: Built, plan: list[Repair]) -> Path | None:
    return apply_repairs(disk, built.data_dir, plan, STAMP, unsynced_bytes_max=UNSYNCED_MAX)


def readable(disk: SimDisk, built: Built) -> list[Entry]:
    log = OfflineLog(disk, built.data_dir, 0)
    first, last = log.resolve_range(None, None, past_commit=True)
    return list(log.entries(first, last))


def repaired(disk: SimDisk, built: Built, remedy: type[object]) -> None:
    """Repair a damaged disk by one remedy and hold the result against all that was promised."""
    before = tree(disk, built.data_dir)
    operations = disk.operations
    plan = plan_for(disk, built)
    assert disk.operations == operations, "planning changed something"
    (repair,) = plan
    assert isinstance(repair.remedy, remedy)
    disk.forget_directories = True
    assert apply(disk, built, plan) == COPIES
    # Only the power is needed to lose what was not synced.
    after = disk.crash(CrashPolicy.LOST)
    assert check(after, built) == []
    assert readable(after, built) == built.kept_entries
    copied = tree(after, COPIES)
    (copy,) = copied
    start = int(copy.name.rpartition("from-")[2]) if ".from-" in copy.name else 0
    assert copied[copy] == before[repair.path][start:]
    untouched = {path: data for path, data in before.items() if path != repair.path}
    assert untouched.items() <= tree(after, built.data_dir).items()
    open_shard(after, built.paths)
    assert plan_for(after, built) == []
