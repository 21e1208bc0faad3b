"""The zip for executors: whole, the same each time, and enough to decode with."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from onelog.spark.workers import write_zip


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    assert write_zip(first) == write_zip(second)
    assert first.read_bytes() == second.read_bytes()
    assert not list(tmp_path.glob("*.tmp"))


def test_the_columns_load_from_the_zip_with_four_packages(tmp_path: Path) -> None:
    """Tables without state, read from files, need numpy, pyarrow, zstandard and crc32c."""
    path = tmp_path / "onelog.zip"
    write_zip(path)
    blocked = [
        "grpc",
        "pyspark",
        "pysyncobj",
        "lmdb",
        "typer",
        "rich",
        "xxhash",
        "sortedcontainers",
        "pcodec",
        "google",
    ]
    script = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"not on an executor: {{name}}")
sys.meta_path.insert(0, Refuse())
import onelog.spark.columns.log as log
import onelog.spark.origin
assert log.__file__.startswith({str(path)!r}), log.__file__
print(log.VIEW.name)
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(path)},
        cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "log\n"), done.stderr


def test_no_command_no_server_and_no_bytecode_is_in_it(tmp_path: Path) -> None:
    path = tmp_path / "onelog.zip"
    write_zip(path)
    names = zipfile.ZipFile(path).namelist()
    assert "onelog/spark/columns/block.py" in names
    assert "onelog/ual/entry.py" in names
    assert {name.partition("/")[0] for name in names} == {"onelog"}
    left_out = ("onelog/cli/", "onelog/cluster/", "onelog/node/")
    assert not [name for name in names if name.startswith(left_out) or "__pycache__" in name]
