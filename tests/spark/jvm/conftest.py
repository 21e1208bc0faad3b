"""One local Spark session for all tests here; without Java they are left out, and it is said."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from onelog.spark.session import find_problem, start_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session that all tests share: its start takes longer than most of them."""
    root = Path(__file__).parents[3]
    # Workers are processes of their own, which know nothing of pytest's path.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        part for part in (str(root), os.environ.get("PYTHONPATH", "")) if part
    )
    os.environ["PYSPARK_PYTHON"] = sys.executable
    scratch = tmp_path_factory.mktemp("spark")
    session = start_session(
        master="local[2]",
        app_name="onelog tests",
        settings={
            "spark.driver.memory": "1g",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        },
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    problem = find_problem()
    if problem is not None:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=str(problem)))
