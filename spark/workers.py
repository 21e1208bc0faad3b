"""Makes sure that Spark's workers can run our tasks: checks their Python, and packs our code.

Tasks run in Python processes that Spark starts, on each executor and also where the driver plans.
Their Python is ``PYSPARK_PYTHON``. If that is not set, it is the driver's own in a local session,
and whatever ``python3`` is on each machine of a cluster: it may have another version than the
driver's, lack a library, or not exist. ``check_workers`` runs a small job, one task for each core
and once for each application, that imports what every task needs and reports what is missing.

``write_zip`` packs our code for ``--py-files`` of a cluster. The zip has the modules that a task
imports and no libraries: executors need numpy, pyarrow, zstandard and crc32c; for views of the
state also what the projections need; for a running cluster hpack and protobuf. The same sources
give the same bytes, so a zip that is made again is not shipped again.
"""

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onelog
from onelog.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What every task imports. Views of the state and running clusters need more, and report it
# themselves when they are read.
MODULES = ("onelog.spark.columns", "crc32c", "numpy", "pyarrow", "zstandard")
# More tasks would find nothing new: a cluster has one Python, or few.
TASKS_MAX = 64

_checked: set[str] = set()

# A worker's host, its Python, and each module that it cannot import, with the reason.
_Answer = tuple[str, str, list[tuple[str, str]]]


def check_workers(spark: "SparkSession") -> None:
    """Raise if workers cannot run our tasks; the error says what to do."""
    from pyspark.errors import PySparkAttributeError

    try:
        context = spark.sparkContext
    except PySparkAttributeError:
        return  # Spark Connect cannot run such a job
    application = context.applicationId
    if application in _checked:
        return
    # In a local session all workers are alike.
    is_here = str(context.master).partition("[")[0] == "local"
    if is_here and "PYSPARK_PYTHON" not in os.environ:
        # Otherwise it would be the first python3 on the path, perhaps of another environment.
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
    """Return the advice for an error of Spark about its workers' Python; None for other errors."""
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
    # A nested function is pickled as code. A function of a module is pickled as its name, so a
    # worker without our package could not even report that it lacks it.
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


_LEFT_OUT = ("onelog/cli/", "onelog/cluster/", "onelog/node/")  # no task runs a command or a server
_SUFFIXES = (".py", ".pyi", ".typed")
# The earliest time that a zip can hold: file times differ between checkouts of the same sources.
_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE_BY_ALL = 0o644 << 16


def write_zip(path: Path) -> int:
    """Write the zip, replacing an existing file; return the number of modules in it."""
    members = sorted(_members())
    temporary = path.with_name(path.name + ".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as target:
        for name, source in members:
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = _READABLE_BY_ALL
            target.writestr(entry, source.read_bytes())
    temporary.replace(path)
    return len(members)


def _members() -> Iterator[tuple[str, Path]]:
    """Yield the name of each module in the zip, and its file."""
    yield from _below("onelog", Path(onelog.__file__).parent)


def _below(prefix: str, folder: Path) -> Iterator[tuple[str, Path]]:
    # Not by glob(): onelog/ual is a link, which it does not follow.
    for path in folder.iterdir():
        name = f"{prefix}/{path.name}"
        if path.is_dir() and path.name != "__pycache__" and f"{name}/" not in _LEFT_OUT:
            yield from _below(name, path)
        elif path.suffix in _SUFFIXES:
            yield name, path
