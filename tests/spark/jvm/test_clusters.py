"""Executors that have only the zip: the same rows as on this machine, or a reason before the job.

The Python of these clusters has the libraries that the project depends on and not the project.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onelog import Client
from onelog.errors import FailedPrecondition
from onelog.spark import register, workers
from onelog.spark.workers import write_zip
from tests.onelog.client.serving import serving
from tests.spark.jvm.jobs import make_home
from tests.spark.shard_dirs import Shard
from tests.system.nodes import until
from tests.system.ports import free_addresses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 300
KEYS = 200  # that the server has
JOB = Path(__file__).with_name("cluster_job.py")
# Nothing here runs for long enough to be worth compiling well.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Machine:
    """A directory with Spark, a Python without the project, and the zip."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = make_home(root / "spark")
        self.python = make_python(root / "python", with_libraries=True)
        self.zip = root / "onelog-spark.zip"
        write_zip(self.zip)

    def environment(self, workers: Path | None = None) -> dict[str, str]:
        """Return the variables of processes here; ``workers`` is the Python of tasks."""
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return {
            **kept,
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(workers or self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def submit(
        self, master: str, asked: object, workers: Path | None = None, job: Path = JOB,
        settings: tuple[str, ...] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Run a job; return what it printed."""
        script = shutil.copy(job, self.root)  # beside nothing of the project
        done = subprocess.run(
            [
                str(self.home / "bin" / "spark-submit"), "--master", master,
                "--driver-memory", "512m", "--py-files", str(self.zip),
                "--conf", "spark.ui.enabled=false",
                "--conf", "spark.sql.session.timeZone=UTC",
                "--conf", "spark.sql.shuffle.partitions=2",
                "--conf", f"spark.driver.extraJavaOptions={JAVA}",
                "--conf", f"spark.executor.extraJavaOptions={JAVA}",
                *(part for each in settings for part in ("--conf", each)),
                script, json.dumps(asked),
            ],
            cwd=self.root, env=self.environment(workers), timeout=WAIT_S,
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout  # where the job's own errors are
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found


def make_python(path: Path, *, with_libraries: bool) -> Path:
    """Make an environment that has what ours has, but for the project, or nothing at all."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(path)], check=True)
    if with_libraries:
        (packages,) = path.glob("lib/python*/site-packages")
        # Links in a folder that is named so are not followed: an editable install stays behind.
        folders = [folder for folder in sys.path if Path(folder).name == "site-packages"]
        (packages / "libraries.pth").write_text("\n".join(folders))
    python = path / "bin" / "python"
    tried = subprocess.run(
        [str(python), "-E", "-c", "import onelog"], cwd=path, capture_output=True, check=False
    )
    assert tried.returncode != 0, "this Python has the project"
    return python


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine(tmp_path_factory.mktemp("cluster"))


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, str]]]:
    """Tables of a data directory and of a server: entries, state, and entries by the network."""
    root = tmp_path_factory.mktemp("tables")
    shard = Shard(root / "files", seed=7)
    shard.write(40)
    shard.seal()
    shard.write(20)
    shard.live.snapshot()
    with serving(root / "server", "--shards", "2") as endpoint:
        with Client(endpoint) as client:
            client.kv.put_many({f"key-{number}": b"value" for number in range(KEYS)})
        yield [
            {"view": "log", "path": str(shard.path)},
            {"view": "kv", "path": str(shard.path)},
            {"view": "kv_operations", "endpoint": endpoint},
        ]


def read_here(spark: "SparkSession", tables: list[dict[str, str]]) -> list[list[str]]:
    """Return the rows of tables as JSON, from the session of the tests."""
    register(spark)
    found = []
    for options in tables:
        frame = spark.read.format("onelog").options(**options).load()
        found.append([row[0] for row in frame.selectExpr("to_json(struct(*))").collect()])
    return found


def assert_same_rows(spark: "SparkSession", machine: Machine, master: str, tables: Any) -> None:
    found = machine.submit(master, tables)
    assert "error" not in found, found["error"]
    assert all(place.endswith(".zip/onelog/__init__.py") for place in found["places"])
    expected = read_here(spark, tables)
    assert [sorted(rows) for rows in found["tables"]] == [sorted(rows) for rows in expected]
    assert all(expected)
    assert len(expected[-1]) == KEYS  # what both could lose


def test_executors_with_only_the_zip_read_the_same_rows(
    spark: "SparkSession", machine: Machine, tables: list[dict[str, str]]
) -> None:
    assert_same_rows(spark, machine, "local-cluster[2,1,1024]", tables)


@contextmanager
def standalone(machine: Machine, *hosts: str) -> Iterator[str]:
    """Run a master, and a worker on each address of loopback; return the master's URL."""
    (address,) = free_addresses(1)
    port = address.rpartition(":")[2]
    url = f"spark://127.0.0.1:{port}"
    parts = [
        ("master.Master", "New state: ALIVE", "--host", "127.0.0.1", "--port", port),
        *(
            (
                "worker.Worker", "registered with master", "--host", host, "--cores", "2",
                "--memory", "1g", "--work-dir", str(machine.root / "work" / host), url,
            )
            for host in hosts or ("127.0.0.1",)
        ),
    ]  # fmt: skip
    started = []
    try:
        for number, (kind, ready, *arguments) in enumerate(parts):
            log = machine.root / f"standalone-{number}.log"
            with log.open("w") as target:
                process = subprocess.Popen(
                    [
                        str(machine.home / "bin" / "spark-class"),
                        f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *arguments,
                    ],
                    env=machine.environment(), cwd=machine.root,
                    stdout=target, stderr=subprocess.STDOUT,
                )  # fmt: skip
            started.append(process)
            wait_for(log, ready)
        yield url
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(WAIT_S)


def wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while text not in log.read_text():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


@pytest.mark.spark_long
def test_a_standalone_cluster_reads_the_same_rows(
    spark: "SparkSession", machine: Machine, tables: list[dict[str, str]]
) -> None:
    with standalone(machine) as master:
        assert_same_rows(spark, machine, master, tables)
        empty = make_python(machine.root / "empty", with_libraries=False)
        found = machine.submit(master, tables, workers=empty)
        assert f"MODULE_MISSING: {empty} on " in found["error"]
        assert "pyarrow (No module named 'pyarrow')" in found["error"]


SPECULATION_JOB = Path(__file__).with_name("speculation_job.py")
# Spark makes copies as soon as it can. Batches are small, so that rows are written before all came.
SPECULATION = (
    "spark.speculation=true",
    "spark.speculation.interval=100ms",
    "spark.speculation.multiplier=1.1",
    "spark.speculation.quantile=0.5",
    "spark.speculation.minTaskRuntime=100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch=500",
)


@pytest.mark.spark_long
def test_a_task_that_spark_runs_twice_at_a_time_writes_once(
    machine: Machine, tmp_path: Path
) -> None:
    """Spark runs a copy only on another host, so there are two; both attempts write together."""
    rows = 12_000
    with (
        serving(tmp_path / "server") as endpoint,
        Client(endpoint, timeout_s=60) as client,
        standalone(machine, "127.0.0.1", "127.0.0.2") as master,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = client.stream("twice")
        stream.create()
        asked = {"endpoint": endpoint, "stream": "twice", "folder": str(tmp_path), "rows": rows}
        job = pool.submit(machine.submit, master, asked, job=SPECULATION_JOB, settings=SPECULATION)
        until(lambda: job.done() or next(iter(stream.read()), None), WAIT_S)
        (tmp_path / "seen").touch()
        job.result()
        found = sorted(int(record.value) for record in stream.read())
    attempts = sorted(path.name for path in tmp_path.glob("attempt-*"))
    assert attempts == ["attempt-0-0", "attempt-0-1", "attempt-1-0"]
    assert found == list(range(2 * rows))


def test_a_worker_that_cannot_run_tasks_is_named_before_a_job(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = spark.sparkContext
    python, version = context.pythonExec, context.pythonVer
    empty = str(make_python(tmp_path / "empty", with_libraries=False))
    for found_python, found_version, reason, said in (
        (empty, version, "MODULE_MISSING", f"{empty} on .* cannot import .*No module named"),
        (str(tmp_path / "none"), version, "PYTHON_MISSING", "no Python under the path"),
        (python, "3.1", "PYTHON_MISMATCH", "of another version than the driver's"),
    ):
        monkeypatch.setattr(workers, "_checked", set())
        monkeypatch.setattr(context, "pythonExec", found_python)
        monkeypatch.setattr(context, "pythonVer", found_version)
        with pytest.raises(FailedPrecondition, match=said) as refused:
            register(spark)
        assert refused.value.reason == reason
    monkeypatch.undo()
    register(spark)


def test_a_session_without_register_says_that_there_is_no_such_source(
    spark: "SparkSession",
) -> None:
    register(spark)
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        spark.newSession().read.format("onelog").option("view", "log").load("/tmp")


@pytest.mark.spark_long
def test_workers_on_this_machine_use_the_drivers_python(tmp_path: Path) -> None:
    """The first ``python3`` of the path need not be of the environment that the script runs in."""
    bare = make_python(tmp_path / "bare", with_libraries=False)
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "python3").symlink_to(bare)
    shard = Shard(tmp_path / "data")
    shard.write(60)
    shard.seal()
    script = f"""
from pyspark.sql import SparkSession
from onelog.spark import register
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
table = spark.read.format("onelog").option("view", "log").load({str(shard.path)!r})
print("rows", table.count())
"""
    left_out = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = f"{tmp_path / 'path'}{os.pathsep}{os.environ['PATH']}"
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**kept, "PATH": path, "PYTHONPATH": root, "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    assert f"rows {len(shard.expected(shard.sealed_index))}\n" in done.stdout, done.stderr
