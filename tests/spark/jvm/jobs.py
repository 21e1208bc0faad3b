"""Queries in processes of their own, and writers that never stop, for tests of kills."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import pyspark

from onelog import Client
from onelog.errors import OnelogError
from tests.documents import ROOT
from tests.system.nodes import until

SCRIPT = Path(__file__).with_name("query_job.py")
# A session starts in 10 s, in some times that on a busy machine.
WAIT_S = 240.0
# Between two rounds of a writer: as fast as they can, they would leave nothing for the others.
PAUSE_S = 0.1
MASTER = "local[2,8]"  # a task may fail seven times before its query does
EXECUTORS = "local-cluster[2,1,1024]"
# In the command of an executor's Java.
EXECUTOR = "CoarseGrainedExecutorBackend"
Kind = Literal["follow", "available", "batch"]


def make_home(folder: Path) -> Path:
    """Make a home of Spark, which writes beside its own files: into links, and not into ours."""
    folder.mkdir()
    package = Path(pyspark.__file__).parent
    for name in ("bin", "jars", "python", "sbin"):
        (folder / name).symlink_to(package / name)
    return folder


class Job:
    """A query into ``folder/table``, by ``query_job.py``; a stream resumes when started again."""

    def __init__(self, folder: Path, options: dict[str, str], master: str = MASTER) -> None:
        self.folder = folder
        self.options = options
        self.master = master
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        folder.mkdir(parents=True, exist_ok=True)
        self.home = make_home(folder / "spark")

    @property
    def table(self) -> str:
        """Where the rows are."""
        return str(self.folder / "table")

    @property
    def output(self) -> str:
        """What the driver of now has said."""
        return (self.folder / f"output-{self.starts}").read_text(errors="replace")

    @property
    def batches(self) -> int:
        """How many batches are complete."""
        return len(list((self.folder / "checkpoint" / "commits").glob("[0-9]*")))

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def is_writing(self) -> bool:
        """Whether tasks of a batch read have begun to write."""
        return any((self.folder / "table" / "_temporary").rglob("*.parquet"))

    @property
    def is_written(self) -> bool:
        """Whether a batch read is complete."""
        return (self.folder / "table" / "_SUCCESS").exists()

    def start(self, kind: Kind = "follow") -> None:
        """Start the driver."""
        assert not self.is_running
        self.starts += 1
        asked = {
            "master": self.master, "options": self.options, "folder": str(self.folder), "kind": kind
        }  # fmt: skip
        with (self.folder / f"output-{self.starts}").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPT), json.dumps(asked)],
                env=os.environ | {
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_HOME": str(self.home),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip

    def finish(self) -> None:
        """Read what is there, and end."""
        self.start("available")
        self.until_finished()

    def until_finished(self) -> None:
        """Wait until the driver ends by itself, and well."""
        assert self.process is not None
        code = self.process.wait(WAIT_S)
        assert code == 0, self.output[-6000:]

    def until_writing(self) -> None:
        """Wait until tasks of a batch read are under way."""

        def look() -> bool:
            assert self.is_running, self.output[-6000:]
            return self.is_writing

        until(look, WAIT_S)
        assert not self.is_written

    def until_batches(self, more: int, *, restarts: bool = False) -> None:
        """Wait for complete batches; with ``restarts``, start a driver again that ended."""
        wanted = self.batches + more

        def look() -> bool:
            if not self.is_running:
                assert restarts, self.output[-6000:]
                self.start()
            return self.batches >= wanted

        until(look, WAIT_S)

    def until_ended(self) -> str:
        """Wait until the driver ends by itself; return what it said."""
        assert self.process is not None
        self.process.wait(WAIT_S)
        return self.output

    def kill(self) -> None:
        """Kill the driver with all that it started."""
        if self.process is not None:
            kill_session(self.process.pid)
            self.process.kill()
            self.process.wait()
            self.process = None

    def kill_workers(self, part: str = "pyspark.daemon", count_max: int | None = None) -> int:
        """Kill the processes of tasks, or those with another word; return how many were killed."""
        assert self.process is not None
        there = processes_of(self.process.pid)
        found = [pid for pid in there if part in command_of(pid)][:count_max]
        for pid in found:
            with_kill(pid)
        return len(found)


def processes_of(session: int) -> list[int]:
    """Return the processes of a driver's session: workers make groups of their own."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getsid(int(path.name)) == session:
                found.append(int(path.name))
        except ProcessLookupError:
            continue
    return found


def kill_session(session: int) -> None:
    """Kill Java, Python and all workers of a driver at once."""
    for pid in processes_of(session):
        with_kill(pid)


def with_kill(pid: int) -> None:
    """Kill a process that may be gone."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def command_of(pid: int) -> str:
    """Return the command line of a process, empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


class Writers:
    """Threads that put keys, each once, and know which were acknowledged."""

    def __init__(self, endpoints: Sequence[str], count: int, value: bytes) -> None:
        self.acknowledged: list[set[str]] = [set() for _ in range(count)]
        self.uncertain: set[str] = set()
        self._endpoints = list(endpoints)
        self._value = value
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(number,), daemon=True)
            for number in range(count)
        ]

    @property
    def done(self) -> int:
        """How many keys were acknowledged."""
        return sum(map(len, self.acknowledged))

    @property
    def keys(self) -> set[str]:
        """The keys that were acknowledged."""
        return set[str]().union(*self.acknowledged)

    def until_done(self, more: int) -> None:
        """Wait until more keys are acknowledged than now."""
        wanted = self.done + more

        def look() -> bool:
            assert not self._failures, self._failures
            return self.done >= wanted

        until(look, WAIT_S)

    def start(self) -> None:
        for each in self._threads:
            each.start()

    def stop(self) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join(WAIT_S)
        assert not self._failures, self._failures

    def _run(self, number: int) -> None:
        try:
            with Client(self._endpoints, timeout_s=20) as client:
                at = 0
                while not self._stopping.wait(PAUSE_S):
                    keys = [f"w{number}-{at + each}" for each in range(4)]
                    pair = [f"{{w{number}}}{name}-{at}" for name in ("a", "b")]
                    at += 4
                    try:
                        for key in keys:
                            client.kv.put(key, self._value)
                            self.acknowledged[number].add(key)
                        with client.transact() as batch:
                            for key in pair:
                                batch.put(key, self._value)
                        self.acknowledged[number].update(pair)
                    except OnelogError:
                        self.uncertain.update((*keys, *pair))
        except BaseException as error:  # noqa: BLE001 - said by the test's own thread
            self._failures.append(error)


@contextmanager
def writing(
    endpoints: Sequence[str], count: int = 2, value: bytes = b"value" * 20
) -> Iterator[Writers]:
    """Write all the time."""
    writers = Writers(endpoints, count, value)
    writers.start()
    try:
        yield writers
    finally:
        writers.stop()


@contextmanager
def job(folder: Path, master: str = MASTER, **options: str) -> Iterator[Job]:
    """Make a job; whatever happens, none of its processes is left running."""
    made = Job(folder, options, master)
    try:
        yield made
    finally:
        made.kill()
