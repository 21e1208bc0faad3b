"""The installed program with Spark of its own: the document, interrupts, and drivers that die."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from onelog import Client
from onelog.spark.export.target import LOCK_NAME
from onelog.spark.export.verify import verify_export
from tests.documents import ROOT, blocks_of, paste
from tests.onelog.client.serving import serving
from tests.spark.exports import directory, object_store, open_store, store_url, three_days
from tests.spark.jvm.jobs import EXECUTORS, command_of, kill_session, make_home, processes_of
from tests.system.nodes import until

pytestmark = pytest.mark.spark_long
TIMEOUT_S = 300


def test_the_lines_of_the_document_work_when_pasted(tmp_path: Path) -> None:
    with serving(tmp_path / "served") as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            client.kv.put("ready", "")
        (block,) = blocks_of("docs/export.md", "sh")
        shown = paste(
            block.text, tmp_path, Path(sys.executable).parent, {"ONELOG_ENDPOINTS": endpoint}
        )
    assert "good: 3 rows" in shown
    assert '"rows": 1' in shown


def start(*arguments: str, master: str = "local[1]", **variables: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "onelog.spark.export", *arguments, "--master", master],
        env=os.environ | {"PYTHONPATH": str(ROOT), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_following_ends_cleanly_at_an_interrupt(tmp_path: Path) -> None:
    shard = three_days(tmp_path / "data", groups=6)
    following = start("log", str(tmp_path / "out"), "--data", str(shard.path), "--follow", "--json")
    assert following.stdout is not None
    line = following.stdout.readline()  # the first export is done
    # As a terminal does: Ctrl-C reaches Java and the workers, too.
    os.killpg(following.pid, signal.SIGINT)
    _, err = following.communicate(timeout=TIMEOUT_S)
    assert following.returncode == 0, err
    assert json.loads(line)["rows"] == len(shard.expected(shard.sealed_index))
    assert verify_export(directory(tmp_path / "out")).is_good


@pytest.mark.parametrize("is_running", [False, True], ids=["starting", "running"])
def test_an_interrupt_leaves_no_process_and_no_traceback(
    tmp_path: Path, *, is_running: bool
) -> None:
    """Also while Java starts: one that is left would keep this program's output open for ever."""
    out = tmp_path / "out"
    with serving(tmp_path / "served") as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            for number in range(200):
                client.kv.put(f"key-{number}", os.urandom(10_000))
        slow = ("--bytes-per-second-max", "50000")  # it would take 40 s
        interrupted = start("log", str(out), "--endpoint", endpoint, *slow)

        def look() -> bool:
            assert interrupted.poll() is None
            if is_running:
                return any((out / "log").rglob("*"))
            return any("SparkSubmit" in command_of(pid) for pid in processes_of(interrupted.pid))

        try:
            until(look, TIMEOUT_S)
            os.killpg(interrupted.pid, signal.SIGINT)
            said = interrupted.communicate(timeout=TIMEOUT_S)
            until(lambda: not processes_of(interrupted.pid), TIMEOUT_S)
        finally:
            kill_session(interrupted.pid)
    assert (interrupted.returncode, said) == (130, ("", ""))


def test_a_driver_that_is_killed_is_followed_by_one_that_finishes(tmp_path: Path) -> None:
    shard = three_days(tmp_path / "data", groups=200)
    arguments = ("log", str(tmp_path / "out"), "--data", str(shard.path), "--format", "json")
    killed = start(*arguments)
    journal = tmp_path / "out" / "_export" / "journal-000001"
    # The plan is written, and Spark starts: whatever it has done by now, the next one finishes.
    while killed.poll() is None and not journal.exists():
        with suppress(subprocess.TimeoutExpired):
            killed.wait(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=TIMEOUT_S)
    again = start(*arguments, "--json")
    out, err = again.communicate(timeout=TIMEOUT_S)
    assert again.returncode == 0, err
    assert json.loads(out)["rows"] == len(shard.expected(shard.sealed_index))
    assert verify_export(directory(tmp_path / "out")).is_good


def test_executors_write_into_an_object_store_and_finish_what_a_killed_driver_began(
    tmp_path: Path,
) -> None:
    """The lock of the one that was killed stays in the store: the refusal says how to remove it."""
    pytest.importorskip("moto.server", reason="moto is not installed")
    shard = three_days(tmp_path / "data", groups=200)
    home = {"SPARK_HOME": str(make_home(tmp_path / "spark")), "SPARK_LOCAL_IP": "127.0.0.1"}
    with object_store() as store:
        target = open_store(store, "out")
        url = store_url(store, "out")
        arguments = ("log", url, "--data", str(shard.path), "--format", "json", "--json")

        def run() -> "subprocess.Popen[str]":
            return start(*arguments, master=EXECUTORS, **home)

        killed = run()
        until(lambda: any("journal-" in name for name in target.names("_export")), TIMEOUT_S)
        kill_session(killed.pid)
        killed.communicate(timeout=TIMEOUT_S)
        refused = run()
        _, err = refused.communicate(timeout=TIMEOUT_S)
        assert refused.returncode != 0
        assert "TARGET_IN_USE" in err
        assert "s3://exports/out/_export/LOCK" in err
        assert "secret" not in err
        target.remove(LOCK_NAME)
        again = run()
        out, err = again.communicate(timeout=TIMEOUT_S)
        assert again.returncode == 0, err
        assert json.loads(out)["rows"] == len(shard.expected(shard.sealed_index))
        assert verify_export(target).is_good
        assert LOCK_NAME not in target.names()
