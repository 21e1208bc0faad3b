"""Exports that are interrupted, refused or disturbed: resumed, they leave the same files."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onelog.errors import (
    DataLoss,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    OutOfRange,
    ResourceExhausted,
)
from onelog.spark.export.job import Numbered, Progress, Task, run_export
from onelog.spark.export.journal import Plan, SplitFacts, journal_name
from onelog.spark.export.target import DirectoryTarget, open_target
from onelog.spark.export.verify import verify_export
from tests.simulation.disk import CrashPolicy, SimDisk
from tests.spark.exports import (
    ask,
    directory,
    everything,
    export,
    seal,
    serial,
    simulated,
    three_days,
)
from tests.spark.shard_dirs import Shard
from tests.ual.shards import drop_before

COLUMNS = "index,payload"


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data", groups=8)


@pytest.fixture(scope="module")
def undisturbed(shard: Shard) -> dict[str, bytes]:
    target = simulated(SimDisk())
    export(shard.path, target, columns=COLUMNS)
    found = everything(target)
    assert len(found) >= 5
    return found


class Killed(BaseException):
    """The process is gone; what the disk holds goes on."""

    def __init__(self, disk: SimDisk) -> None:
        super().__init__()
        self.disk = disk


def kill_at(disk: SimDisk, operation: int, policy: CrashPolicy, rng: Random | None = None) -> None:
    def count(_: str) -> None:
        if disk.operations == operation:
            raise Killed(disk.crash(policy, rng))

    disk.after_operation = count


@pytest.mark.parametrize("policy", [CrashPolicy.KEPT, CrashPolicy.LOST, CrashPolicy.RANDOM])
def test_an_export_that_is_killed_at_any_operation_is_resumed(
    policy: CrashPolicy, shard: Shard, undisturbed: dict[str, bytes]
) -> None:
    operation = killed = 0
    rng = Random(policy.value)
    while True:
        operation += 1
        disk = SimDisk(forget_directories=policy is not CrashPolicy.KEPT)
        kill_at(disk, operation, policy, rng)
        try:
            export(shard.path, simulated(disk), columns=COLUMNS)
        except Killed as caught:
            killed += 1
            target = simulated(caught.disk)
            export(shard.path, target, columns=COLUMNS)
            assert everything(target) == undisturbed, operation
        else:
            break
    assert killed > 20


def test_what_is_done_is_not_done_again(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")

    class Stopped(Exception):
        pass

    def stop_after_two(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        serial(work[:2], task, on_done)
        raise Stopped

    class Seen(Progress):
        def plan(self, plan: Plan, done: Sequence[SplitFacts], note: str) -> None:
            self.before = [each.split for each in done]
            self.after: list[int] = []

        def advance(self, done: Sequence[SplitFacts]) -> None:
            self.after += [each.split for each in done]

    with pytest.raises(Stopped):
        run_export(ask(shard.path, target), stop_after_two)
    assert verify_refuses(target) == "NO_RECEIPT"
    seen = Seen()
    outcome = run_export(ask(shard.path, target), serial, seen)
    assert seen.before == [0, 1]
    assert seen.after == list(range(2, 2 + len(seen.after)))
    assert len(seen.after) >= 1
    again = run_export(ask(shard.path, target), serial, Seen())
    assert outcome.is_new
    assert not again.is_new
    assert again.receipt == outcome.receipt


def verify_refuses(target: DirectoryTarget) -> str:
    from onelog.errors import OnelogError

    with pytest.raises(OnelogError) as caught:
        verify_export(target)
    return caught.value.reason


def test_a_file_that_is_gone_since_it_was_noted_is_written_again(
    shard: Shard, undisturbed: dict[str, bytes]
) -> None:
    disk = SimDisk()
    target = simulated(disk)

    def remove_one(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        on_done([task(*work[0])])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_export(ask(shard.path, target, columns=COLUMNS), remove_one)
    target.remove(target.names("log")[0])
    export(shard.path, target, columns=COLUMNS)
    assert everything(target) == undisturbed


def test_a_task_that_runs_twice_changes_nothing(
    shard: Shard, undisturbed: dict[str, bytes]
) -> None:
    target = simulated(SimDisk())

    def twice(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        for number, split in reversed(work):
            first, second = task(number, split), task(number, split)
            assert first == second
            on_done([second])

    run_export(ask(shard.path, target, columns=COLUMNS), twice)
    assert everything(target) == undisturbed


def test_a_disk_that_is_full_halfway_ends_the_export_and_a_rerun_finishes_it(
    shard: Shard, undisturbed: dict[str, bytes]
) -> None:
    size = sum(map(len, undisturbed.values()))
    for share in (0.1, 0.4, 0.7, 0.95):
        disk = SimDisk(capacity=int(size * share))
        with pytest.raises(ResourceExhausted) as caught:
            export(shard.path, simulated(disk), columns=COLUMNS)
        assert caught.value.reason == "TARGET_FULL"
        assert not [name for name in simulated(disk).names("log") if name.endswith(".tmp")]
        disk.capacity = None
        export(shard.path, simulated(disk), columns=COLUMNS)
        assert everything(simulated(disk)) == undisturbed


def test_a_target_that_vanishes_is_not_made_anew(shard: Shard, tmp_path: Path) -> None:
    path = tmp_path / "out"

    def lose_target(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        on_done([task(*work[0])])
        shutil.rmtree(path)
        on_done([task(*work[1])])

    with pytest.raises(NotFound) as caught:
        run_export(ask(shard.path, directory(path)), lose_target)
    assert caught.value.reason == "TARGET_GONE"
    assert not path.exists()


def test_of_two_exports_at_a_time_the_second_is_refused(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")

    def meanwhile(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            export(shard.path, directory(tmp_path / "out"))
        assert caught.value.reason == "TARGET_IN_USE"
        serial(work, task, on_done)

    assert run_export(ask(shard.path, target), meanwhile).is_new
    assert verify_export(target).is_good


def test_a_target_that_holds_something_else_is_refused(shard: Shard, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, directory(tmp_path))
    assert caught.value.reason == "TARGET_NOT_EMPTY"
    assert [each.name for each in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InvalidArgument, match="no directory"):
        export(shard.path, directory(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    "other", [{"view": "kv_operations"}, {"format": "csv"}, {"columns": "index"}, {"types": "put"}]
)
def test_an_unfinished_export_is_resumed_by_the_same_command_only(
    other: dict[str, Any], shard: Shard, tmp_path: Path
) -> None:
    target = directory(tmp_path / "out")
    interrupt(shard, target)
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, target, **other)
    assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, target, to_index="50")
    assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"
    assert export(shard.path, target).is_new


@pytest.mark.parametrize(
    "other",
    [
        {"view": "kv_operations"}, {"view": "kv"}, {"format": "csv"}, {"columns": "index"},
        {"types": "put"}, {"to_index": "50"}, {"from_index": "5"}, {"from_time": "1"},
    ],
)  # fmt: skip
def test_a_complete_export_is_found_by_the_same_request_only(
    other: dict[str, Any], shard: Shard, undisturbed: dict[str, bytes]
) -> None:
    target = simulated(SimDisk())
    export(shard.path, target, columns=COLUMNS)
    view = {"columns": COLUMNS} if "view" not in other else {}
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, target, **{**view, **other})
    assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"
    assert everything(target) == undisturbed
    same = {"columns": COLUMNS, "shards": "0", "from_index": "1", "from_kept": True}
    for again in ({"columns": COLUMNS}, same):
        outcome = export(shard.path, target, **again)
        assert (outcome.is_new, outcome.receipt.number) == (False, 1)


def interrupt(shard: Shard, target: DirectoryTarget) -> None:
    """Leave an export with one split done."""

    def stop(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        on_done([task(*work[0])])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_export(ask(shard.path, target), stop)


def test_a_torn_end_of_the_journal_is_cut_and_other_damage_is_refused(
    shard: Shard, tmp_path: Path
) -> None:
    target = directory(tmp_path / "out")
    interrupt(shard, target)
    path = tmp_path / "out" / journal_name(1)
    data = path.read_bytes()
    plan_size = data.index(b"\n") + 1
    for torn in (data[:-1], data[:-40], data[: plan_size + 3], data[:-30] + b"\0" * 29 + b"\n"):
        path.write_bytes(torn)
        resumed = tmp_path / f"resumed-{len(torn)}-{torn[-2]}"
        shutil.copytree(tmp_path / "out", resumed)
        interrupt(shard, directory(resumed))  # what is noted now must not be lost behind the tear
        export(shard.path, directory(resumed))
        assert verify_export(directory(resumed)).is_good
    path.write_bytes(data[:10] + bytes([data[10] ^ 1]) + data[11:])
    with pytest.raises(DataLoss) as caught:
        export(shard.path, target)
    assert caught.value.reason == "JOURNAL_DAMAGED"


def test_a_resumed_export_keeps_the_cut_of_its_plan(tmp_path: Path) -> None:
    shard = three_days(tmp_path / "data", groups=8)
    last = shard.sealed_index
    target = directory(tmp_path / "out")
    interrupt(shard, target)
    shard.write(10)
    seal(shard)
    receipt = export(shard.path, target).receipt
    assert receipt.ranges[0].last_index == last < shard.sealed_index


def test_an_export_that_is_killed_at_its_end_while_the_log_grows_keeps_its_plan(
    tmp_path: Path,
) -> None:
    shard = three_days(tmp_path / "data", groups=8)
    shutil.copytree(shard.path, tmp_path / "before")
    shard.write(20)
    seal(shard)
    disk = SimDisk()
    receipt = export(tmp_path / "before", simulated(disk), columns=COLUMNS).receipt
    for operation in range(disk.operations - 8, disk.operations):
        killed = SimDisk()
        kill_at(killed, operation, CrashPolicy.KEPT)
        with pytest.raises(Killed) as caught:
            export(tmp_path / "before", simulated(killed), columns=COLUMNS)
        target = simulated(caught.value.disk)
        assert export(shard.path, target, columns=COLUMNS).receipt == receipt, operation
        assert verify_export(target).is_good, operation


def test_what_the_log_dropped_before_a_rerun_is_named(tmp_path: Path) -> None:
    shard = three_days(tmp_path / "data", groups=8)
    target = directory(tmp_path / "out")
    interrupt(shard, target)
    assert drop_before(shard.live.log, shard.sealed_index - 2)
    kept = shard.live.log.first_index
    with pytest.raises(OutOfRange) as caught:
        export(shard.path, target)
    assert f"to {kept - 1}" in str(caught.value)
    assert "export into another target" in str(caught.value)


def test_a_path_a_url_and_nothing_are_told_apart(tmp_path: Path) -> None:
    target = open_target(f"file://{tmp_path}/a%20b")
    assert isinstance(target, DirectoryTarget)
    assert target.path == tmp_path / "a b"
    for text in ("", "file://elsewhere/x", "nothing://x/y", "s3://bucket"):
        with pytest.raises(InvalidArgument) as caught:
            open_target(text)
        assert caught.value.reason == "TARGET"


def test_another_cluster_does_not_resume(shard: Shard, tmp_path: Path) -> None:
    target = directory(tmp_path / "out")
    interrupt(shard, target)
    request = ask(shard.path, target)

    class Elsewhere(type(request.origin)):  # type: ignore[misc]
        def cut(self, shards: Sequence[int] | None = None) -> object:
            return replace(super().cut(shards), cluster_id="another")

    with pytest.raises(FailedPrecondition) as caught:
        run_export(replace(request, origin=Elsewhere(str(shard.path))), serial)
    assert caught.value.reason == "TARGET_HAS_ANOTHER_EXPORT"
