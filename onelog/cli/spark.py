"""``onelog spark``: what a Spark cluster needs."""

from pathlib import Path
from typing import Annotated

import typer

from onelog.cli.command import group
from onelog.cli.output import Output, counted

app = group(
    "What a Spark cluster needs to read and write this database.",
    "onelog spark zip",
    "spark-submit --py-files onelog-spark.zip job.py",
)


@app.command("zip")
def make_zip(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write it.")] = Path(
        "onelog-spark.zip"
    ),
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Write a zip of the source for Spark executors, to pass with --py-files.

    The executors' Python needs numpy, pyarrow, zstandard, crc32c, xxhash, sortedcontainers and
    pcodec; hpack, protobuf and googleapis-common-protos as well where jobs read a live cluster.

    \b
    Examples:
      onelog spark zip
      onelog spark zip build/onelog.zip --json
      spark-submit --py-files onelog-spark.zip job.py
    """
    from onelog.spark.workers import write_zip

    count = write_zip(path)
    size = path.stat().st_size
    shown = {"path": str(path), "modules": count, "bytes": size}
    text = f"{path}: {counted(count, 'module')}, {counted(size, 'byte')}"
    Output(as_json=as_json).result(shown, text)
