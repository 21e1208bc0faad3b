"""The builder as a real process on a real directory."""

import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from onelog.projections.shard_state import Projections, build_projections
from onelog.snapshot.build import BuildRequest, Capture, plan_build
from onelog.snapshot.builder_process import NICENESS, BuilderProcess
from onelog.snapshot.errors import BuilderCancelled, BuilderFailed, BuilderTimeout
from onelog.snapshot.progress import Phase
from onelog.ual.directory import shard_paths
from onelog.ual.files import DiskFiles
from onelog.ual.log_config import LogConfig
from onelog.ual.manifest import SnapshotRecord
from onelog.ual.segments.sealed import SealedSegment
from tests.snapshot.live import LiveShard, Work, accept, put
from tests.snapshot.slow_builder import JUNK_SHARD, SILENT_SHARD
from tests.ual.shards import drop_before, seal_closed

ROOT = Path(__file__).parents[2]
CONFIG = LogConfig(ring_bytes=4096, segment_bytes_max=20_000, free_bytes_min=0)
SLOW = "tests.snapshot.slow_builder"


def live_shard(path: Path) -> LiveShard[Projections]:
    return LiveShard(DiskFiles(), build_projections, data_dir=path / "data", config=CONFIG)


def planned(live: LiveShard[Projections]) -> tuple[Capture, BuildRequest]:
    capture = Capture.of(live.state.router)
    live.created_s += 1
    request = plan_build(
        capture,
        live.log,
        live.store,
        data_dir=live.data_dir,
        shard=0,
        created_s=live.created_s,
    )
    return capture, request


def test_a_snapshot_is_built_by_another_process_while_the_server_appends_and_seals(
    tmp_path: Path,
) -> None:
    live = live_shard(tmp_path)
    work = Work(1)
    for number in range(300):
        live.do(work.group(live.log.last_index + 1))
        if number in (100, 200):
            live.snapshot()
    capture, request = planned(live)
    is_done = threading.Event()
    failures: list[BaseException] = []

    def serve() -> None:
        try:
            while not is_done.is_set():
                live.do(work.group(live.log.last_index + 1))
                seal_closed(live.log)
                drop_before(live.log, live.store.keep_from_index)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            failures.append(error)

    sealed_before = live.log.segments.sealed_index
    builder = BuilderProcess(live.files, request)
    server = threading.Thread(target=serve)
    server.start()
    try:
        result = builder.wait()
    finally:
        is_done.set()
        server.join()
    assert failures == []
    assert live.log.last_index > capture.index
    assert live.log.segments.sealed_index > sealed_before

    accept(live.log, live.store, result.record, capture.state_hash)

    assert result.base_index == request.snapshots[-1].index
    assert result.memory_bytes_peak > 1 << 20
    assert result.counts["keys"] > 0
    assert builder.progress is not None
    assert builder.progress[0] is Phase.WRITE
    live.log.close()
    again = live_shard(tmp_path)
    assert again.recovered.snapshot is not None
    assert again.recovered.snapshot.record == result.record
    assert again.state_hash == live.state_hash
    assert isinstance(again.log.segments.segments[0], SealedSegment)


def test_the_memory_of_the_builder_is_its_own_and_not_that_of_its_server(tmp_path: Path) -> None:
    """The node's budget has a line for it."""
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    _, request = planned(live)
    large = b"x" * (300 << 20)
    result = BuilderProcess(live.files, request).wait()
    assert 10 << 20 < result.memory_bytes_peak < 200 << 20
    assert len(large) == 300 << 20


def test_a_process_with_thousands_of_open_files_waits_for_its_builder(tmp_path: Path) -> None:
    """A server has a descriptor for each client; ``select`` refuses those beyond 1,023."""
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, min(most, 4096)), most))
    opened = [os.open(os.devnull, os.O_RDONLY)]
    try:
        while opened[-1] <= 1023:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        live = live_shard(tmp_path)
        live.do([put(b"a", b"1")])
        _, request = planned(live)

        result = BuilderProcess(live.files, request).wait()
        assert result.memory_bytes_peak > 0
    finally:
        for each in opened:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def test_the_builder_hashes_alike_with_another_seed_for_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = live_shard(tmp_path)
    work = Work(2)
    for _ in range(100):
        live.do(work.group(live.log.last_index + 1))
    for seed in ("1", "77"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        capture, request = planned(live)
        result = BuilderProcess(live.files, request).wait()
        assert result.record.state_hash == capture.state_hash


def test_what_the_builder_could_not_do_is_said_by_its_reason(tmp_path: Path) -> None:
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    _, request = planned(live)
    builder = BuilderProcess(live.files, replace(request, target_index=5))
    with pytest.raises(BuilderFailed, match="MISSING_SEGMENT") as caught:
        builder.wait()
    assert caught.value.cause == "MISSING_SEGMENT"
    assert live.files.list(live.paths.snapshots) == []


def slow_request(tmp_path: Path, shard: int = 0) -> BuildRequest:
    shard_paths(tmp_path, shard).snapshots.mkdir(parents=True)
    return BuildRequest(str(tmp_path), shard, 7, 0, 1, ())


def started(tmp_path: Path, *, timeout_s: float = 60, shard: int = 0) -> BuilderProcess:
    """Start the stand-in and wait until it has begun its file."""
    builder = BuilderProcess(
        DiskFiles(), slow_request(tmp_path, shard), timeout_s=timeout_s, module=SLOW
    )
    select.select([builder._stdout], [], [], 30)
    return builder


def leftovers(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.glob("*/snaps/*"))


def test_a_killed_builder_is_reported_and_its_file_removed(tmp_path: Path) -> None:
    builder = started(tmp_path)
    assert builder.poll() is None
    assert builder.progress == (Phase.WRITE, 15, 0)
    assert leftovers(tmp_path) == ["0000000007-1.fsnap.tmp"]
    os.kill(builder._process.pid, signal.SIGKILL)
    with pytest.raises(BuilderFailed, match=r"DIED.*code -9"):
        builder.wait()
    assert leftovers(tmp_path) == []


def test_a_cancelled_builder_is_gone_with_its_file(tmp_path: Path) -> None:
    builder = started(tmp_path)
    builder.cancel()
    assert leftovers(tmp_path) == []
    with pytest.raises(ProcessLookupError):
        os.kill(builder._process.pid, 0)
    builder.cancel()
    with pytest.raises(BuilderCancelled):
        builder.poll()


def test_a_builder_that_takes_too_long_is_gone_with_its_file(tmp_path: Path) -> None:
    builder = BuilderProcess(DiskFiles(), slow_request(tmp_path), timeout_s=0.5, module=SLOW)
    with pytest.raises(BuilderTimeout, match=r"more than 0\.5 s"):
        builder.wait()
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("shard", "cause"), [(JUNK_SHARD, "NOT_UNDERSTOOD"), (SILENT_SHARD, "DIED")]
)
def test_a_builder_that_makes_no_sense_is_reported(tmp_path: Path, shard: int, cause: str) -> None:
    builder = started(tmp_path, shard=shard)
    with pytest.raises(BuilderFailed) as caught:
        builder.wait()
    assert caught.value.cause == cause
    with pytest.raises(BuilderFailed):
        builder.poll()
    assert leftovers(tmp_path) == []


def test_cancelling_after_the_result_does_not_take_the_file(tmp_path: Path) -> None:
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    capture, request = planned(live)
    builder = BuilderProcess(live.files, request)
    record = builder.wait().record
    accept(live.log, live.store, record, capture.state_hash)
    builder.cancel()
    assert builder.poll() is not None
    assert live.files.list(live.paths.snapshots) == [record.file]


def run_builder(request: BuildRequest) -> subprocess.CompletedProcess[str]:
    """Run the builder with an end of stdin right behind the request."""
    return subprocess.run(
        [sys.executable, "-m", "onelog.snapshot.build"],
        input=request.encode() + "\n",
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
    )


def test_a_builder_whose_server_is_gone_stops(tmp_path: Path) -> None:
    """An orphan would write into a directory that another server has opened since."""
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    _, request = planned(live)
    ended = run_builder(request)
    last = json.loads(ended.stdout.splitlines()[-1])
    assert last["error"]["reason"] == BuilderCancelled.reason
    assert live.files.list(live.paths.snapshots) == []


def test_a_builder_is_at_low_priority_from_its_start(tmp_path: Path) -> None:
    """What it imports takes it most of a second, which is the server's until then."""
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    _, request = planned(live)
    builder = BuilderProcess(live.files, request)
    assert os.getpriority(os.PRIO_PROCESS, builder._process.pid) == min(19, os.nice(0) + NICENESS)
    builder.wait()


def test_a_damaged_base_is_told_with_the_result(tmp_path: Path) -> None:
    live = live_shard(tmp_path)
    live.do([put(b"a", b"1")])
    live.snapshot()
    live.do([put(b"b", b"1")])
    newest = live.store.newest
    assert newest is not None
    live.store.path(newest).write_bytes(b"nothing")
    capture, request = planned(live)
    result = BuilderProcess(live.files, request).wait()
    assert "nothing" not in result.rejected[0]
    assert newest.file in result.rejected[0]
    assert result.record.state_hash == capture.state_hash
    assert isinstance(result.record, SnapshotRecord)
    assert asdict(result.record)["index"] == capture.index
