"""Starts a Spark session; problems are reported before it starts.

No Java or an old one, a PySpark below ``SPARK_VERSION_MIN`` and a missing pyarrow are found here
and not in the middle of a job. For most of them, Spark itself would only say that a worker exited
unexpectedly.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from onelog.errors import FailedPrecondition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
SPARK_VERSION_MIN = (4, 2)
JAVA_ADVICE = f"install Java {JAVA_VERSION_MIN} (Debian: openjdk-17-jre-headless) or set JAVA_HOME"
_ADVICE = "install it with: pip install 'onelogdb[spark]'"
_JAVA_TIMEOUT_S = 60


def find_problem() -> FailedPrecondition | None:
    """Return the reason why Spark cannot run here, or None."""
    return _spark_problem() or _java_problem()


def start_session(
    *,
    master: str | None = "local[*]",
    app_name: str = "onelog",
    settings: dict[str, str] | None = None,
) -> "SparkSession":
    """Return a session with the source ``onelog`` registered: the running one, or a new one.

    ``master=None`` uses the master that ``spark-submit`` was given. Workers use the Python of this
    process, so that they can import what it can.
    """
    problem = find_problem()
    if problem is not None:
        raise problem
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    if master is not None:
        builder = builder.master(master)
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **(settings or {}),
    }.items():
        builder = builder.config(name, value)
    with _interrupt_waits():
        session = builder.getOrCreate()
    from onelog.spark.source import register

    register(session)
    return session


def quiet_settings(master: str) -> dict[str, str]:
    """Return settings that log errors only; a local session also listens on loopback only."""
    config = Path(__file__).with_name("log4j2.properties")
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={config.as_uri()}",
    }
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return settings


@contextmanager
def _interrupt_waits() -> Iterator[None]:
    """Delay an interrupt until Java has started.

    If it is interrupted earlier, PySpark removes the file for Java's port. Java then fails to write
    it and stays for ever, with the standard output of this process open.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)

    is_ours = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if is_ours:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # Spark sets a handler of its own, which cancels its jobs first.
        if is_ours and signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt


def find_missing_package() -> FailedPrecondition | None:
    """Return an error if pyarrow or PySpark is missing, or None."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        return FailedPrecondition(f"{error.name} is missing; {_ADVICE}", reason="SPARK_MISSING")
    return None


def _spark_problem() -> FailedPrecondition | None:
    missing = find_missing_package()
    if missing is not None:
        return missing
    import pyspark

    version = tuple(int(part) for part in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < SPARK_VERSION_MIN:
        least = ".".join(map(str, SPARK_VERSION_MIN))
        message = f"PySpark {pyspark.__version__} is too old, {least} is needed; {_ADVICE}"
        return FailedPrecondition(message, reason="SPARK_TOO_OLD")
    return None


def _java_problem() -> FailedPrecondition | None:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.path.exists(java):
        where = f"at JAVA_HOME, {home}" if home else "on the path"
        return FailedPrecondition(f"there is no Java {where}; {JAVA_ADVICE}", reason="JAVA_MISSING")
    try:
        answered = subprocess.run(  # noqa: S603 - the program that JAVA_HOME or the path names
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return FailedPrecondition(f"{java} does not run: {error}", reason="JAVA_MISSING")
    said = answered.stderr + answered.stdout
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said)
    if found is None:
        return FailedPrecondition(f"{java} has no version; {JAVA_ADVICE}", reason="JAVA_MISSING")
    major = int(found[1]) if found[1] != "1" else int(found[2] or 0)  # Java 8 calls itself 1.8
    if major < JAVA_VERSION_MIN:
        message = f"{java} is Java {major}; {JAVA_ADVICE}"
        return FailedPrecondition(message, reason="JAVA_TOO_OLD")
    return None
