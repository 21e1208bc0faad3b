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
from onelog.spark.export.verify import verify_export
from tests.client.serving import serving
from tests.documents import ROOT, blocks_of, paste
from tests.spark.exports import directory, three_days

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


def start(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "onelog.spark.export", *arguments, "--master", "local[1]"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
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
