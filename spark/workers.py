"""Whether the Python of Spark's workers can run our tasks, asked before a job does.

Tasks run in processes that Spark starts, on each executor and also where the driver plans. Their
Python is ``PYSPARK_PYTHON``, or else on this machine the driver's own, and on a cluster whatever
``python3`` is there: it may be of another version than the driver's, lack a library, or not exist.
A small job of one task a core imports what every task needs and says what is missing, once for each
application.
"""

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from onelog.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What every task imports. Views with state need more, and so does a live cluster: these say it
# themselves when they are read.
MODULES = ("onelog.spark.columns", "crc32c", "numpy", "pyarrow", "zstandard")
# More tasks would find nothing new: a cluster has one Python, or few.
TASKS_MAX = 64

_checked: set[str] = set()

# Of a worker: its host, its Python, and each module that it cannot import, with the reason.
_Answer = tuple[str, str, list[tuple[str, str]]]


def check_workers(spark: "SparkSession") -> None:
    """Refuse workers that cannot run our tasks, and say what to do."""
    from pyspark.errors import PySparkAttributeError

    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        return  # a session of Spark Connect cannot run such a job
    application = context.applicationId
    if application in _checked:
        return
    # On this machine one worker is like another.
    is_here = str(context.master).partition("[")[0] == "local"
    if is_here and "PYSPARK_PYTHON" not in os.environ:
        # Else it would be the first python3 of the path, which need not be of this environment.
        context.pythonExec = sys.executable
    count = 1 if is_here else min(context.defaultParallelism, TASKS_MAX)
    try:
        answers = context.parallelize(range(count), count).map(_probe(MODULES)).collect()
    except Exception as error:
        refusal = explain(str(error))
        if refusal is None:
            raise
        raise refusal from error
    for host, python, missing in answers:
        if missing:
            raise _missing(host, python, missing)
    _checked.add(application)


def explain(text: str) -> FailedPrecondition | None:
    """Return what an error of Spark says about the Python of workers; None: something else."""
    if "PYTHON_VERSION_MISMATCH" in text:
        return FailedPrecondition(
            "the workers' Python is of another version than the driver's; set PYSPARK_PYTHON to a "
            "Python of the driver's version, which every executor has under that path",
            reason="PYTHON_MISMATCH",
        )
    if "Cannot run program" in text:
        return FailedPrecondition(
            "an executor has no Python under the path that PYSPARK_PYTHON names; set it to one "
            "which every executor has",
            reason="PYTHON_MISSING",
        )
    return None


def _missing(host: str, python: str, missing: list[tuple[str, str]]) -> FailedPrecondition:
    listed = "; ".join(f"{name} ({why})" for name, why in missing)
    advice = "install them there, or set PYSPARK_PYTHON to a Python that has them"
    if any(name.startswith("onelog") for name, _ in missing):
        advice = "make onelog-spark.zip with: onelog spark zip, and pass it with --py-files"
    return FailedPrecondition(
        f"{python} on {host} cannot import {listed}; {advice}", reason="MODULE_MISSING"
    )


def _probe(names: tuple[str, ...]) -> Callable[[int], _Answer]:
    # A function inside of a function travels as code. One of a module would travel as its name,
    # and a worker without our package could not even say that it has none.
    def probe(_number: int) -> _Answer:
        import importlib
        import socket
        import sys

        missing = []
        for name in names:
            try:
                importlib.import_module(name)
            except ImportError as error:
                missing.append((name, str(error)))
        return socket.gethostname(), sys.executable, missing

    return probe
