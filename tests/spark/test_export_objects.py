"""Exports into an object store: moto's S3 on loopback."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from onelog.errors import FailedPrecondition
from onelog.spark.export.job import Numbered, Task, run_export
from onelog.spark.export.journal import SplitFacts
from onelog.spark.export.object_target import ObjectTarget
from onelog.spark.export.target import LOCK_NAME, open_target
from onelog.spark.export.verify import verify_export
from tests.spark.exports import ask, directory, everything, export, three_days
from tests.spark.shard_dirs import Shard

server = pytest.importorskip("moto.server", reason="moto is not installed")


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """Run a store; yield the options of a URL in it."""
    from pyarrow import fs

    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    running.start()
    host, port = running.get_host_and_port()
    options = f"scheme=http&endpoint_override={host}%3A{port}&region=us-east-1"
    root, _ = fs.FileSystem.from_uri(
        f"s3://key:secret@exports/?allow_bucket_creation=true&{options}"
    )
    root.create_dir("exports")
    yield options
    running.stop()


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Shard:
    return three_days(tmp_path_factory.mktemp("log") / "data", groups=6)


def open_store(bucket: str, path: str) -> ObjectTarget:
    target = open_target(f"s3://key:secret@exports/{path}?{bucket}")
    assert isinstance(target, ObjectTarget)
    return target


def test_a_store_gets_the_files_that_a_directory_gets(
    bucket: str, shard: Shard, tmp_path: Path
) -> None:
    target = open_store(bucket, "plain")

    def stop_after_one(
        work: Sequence[Numbered], task: Task, on_done: Callable[[Sequence[SplitFacts]], None]
    ) -> None:
        on_done([task(*work[0])])
        on_done([task(*work[1])])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_export(ask(shard.path, target), stop_after_one)
    outcome = export(shard.path, target)
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

    other = open_store(bucket, "other")
    other.write("notes.txt", b"mine")
    with pytest.raises(FailedPrecondition) as caught:
        export(shard.path, other)
    assert caught.value.reason == "TARGET_NOT_EMPTY"
