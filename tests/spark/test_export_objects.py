"""Exports into an object store: moto's S3 on loopback."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.export.job import Numbered, Task, run_export
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.object_target import ObjectTarget
from onelog.spark.export.target import LOCK_NAME
from onelog.spark.export.verify import verify_export
from tests.spark.exports import (
    ask,
    directory,
    everything,
    export,
    object_store,
    open_store,
    serial,
    three_days,
)
from tests.spark.shard_dirs import Shard

pytest.importorskip("moto.server", reason="moto is not installed")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as options:
        yield options


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data", groups=6)


def test_a_store_gets_the_files_that_a_directory_gets(
    bucket: str, shard: Shard, tmp_path: Path
) -> None:
    target = open_store(bucket, "plain")

    def stop_after_one(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        on_done([task(*work[0])])
        raise KeyboardInterrupt

    left: list[int] = []

    def finish(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        left.extend(number for number, _ in work)
        serial(work, task, on_done)

    with pytest.raises(KeyboardInterrupt):
        run_export(ask(shard.path, target), stop_after_one)
    outcome = run_export(ask(shard.path, target), finish)
    assert left  # without the first: the journal has what was done
    assert 0 not in left
    export(shard.path, directory(tmp_path / "out"))
    there = everything(directory(tmp_path / "out"))
    del there[LOCK_NAME]
    assert everything(target) == there
    report = verify_export(target)
    assert report.is_good
    assert report.files == len(outcome.receipt.files) > 1
    name = outcome.receipt.files[0].name
    target.write(name, (target.read(name) or b"") + b"x")
    assert [(each.kind, each.name) for each in verify_export(target).differences] == [
        ("CHANGED", name)
    ]


def test_the_second_export_and_other_objects_are_refused(bucket: str, shard: Shard) -> None:
    target = open_store(bucket, "shared")

    def meanwhile(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            export(shard.path, open_store(bucket, "shared"))
        assert caught.value.reason == "TARGET_IN_USE"
        # Somebody removes the lock, and another export takes it: this one must not finish.
        target.write(LOCK_NAME, b"another")
        on_done([task(number, split) for number, split in work])

    with pytest.raises(FailedPrecondition) as caught:
        run_export(ask(shard.path, target), meanwhile)
    assert caught.value.reason == "TARGET_IN_USE"
    assert target.read("receipt-000001.json") is None
    assert target.read(LOCK_NAME) == b"another"
    assert target.name == "s3://exports/shared"

    class Raced(ObjectTarget):
        """Another export writes its name in the same moment."""

        def write(self, name: str, data: bytes) -> None:
            super().write(name, b"another" if name == LOCK_NAME else data)

    raced = open_store(bucket, "raced")
    raced.__class__ = Raced
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, raced)
    assert caught.value.reason == "TARGET_IN_USE"
    assert raced.names() == [LOCK_NAME]

    with pytest.raises(InvalidArgument) as refused:
        export(shard.path, open_store(bucket, "table"), as_table="iceberg")
    assert refused.value.reason == "TABLE_TARGET"

    other = open_store(bucket, "other")
    other.write("notes.txt", b"mine")
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, other)
    assert caught.value.reason == "TARGET_NOT_EMPTY"


def test_a_journal_that_is_half_removed_is_none(bucket: str, shard: Shard) -> None:
    """Its parts are objects, and an export may die between any two of them."""

    class Dying(ObjectTarget):
        """Removes one part of a journal, and no more."""

        def remove(self, name: str) -> None:
            super().remove(name)
            if "journal-" in name:
                raise KeyboardInterrupt

    target = open_store(bucket, "dying")
    target.__class__ = Dying
    with pytest.raises(KeyboardInterrupt):
        export(shard.path, target)
    again = open_store(bucket, "dying")
    assert any("journal-" in name for name in again.names())
    assert verify_export(again).notes == []
    assert not export(shard.path, again).is_new
    assert not any("journal-" in name for name in again.names())
