"""The zip that takes our code to Spark's executors: ``--py-files`` of a cluster.

It holds the modules that a task imports, and no library: executors need numpy, pyarrow, zstandard
and crc32c, for views with state also what the projections need, and for a live cluster hpack and
protobuf.
The same sources give the same bytes, so a zip that is made again is not shipped again.
"""

import zipfile
from collections.abc import Iterator
from pathlib import Path

import onelog

_LEFT_OUT = ("onelog/cli/", "onelog/cluster/", "onelog/node/")  # no task runs a command or a server
_SUFFIXES = (".py", ".pyi", ".typed")
# The earliest moment that a zip can say: sources change, and the time of a checkout means nothing.
_TIME = (1980, 1, 1, 0, 0, 0)
_READABLE_BY_ALL = 0o644 << 16


def write_zip(path: Path) -> int:
    """Write the zip, replacing the file; return how many modules it holds."""
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
    # By hand and not by a pattern: onelog/ual is a link, which patterns do not follow.
    for path in folder.iterdir():
        name = f"{prefix}/{path.name}"
        if path.is_dir() and path.name != "__pycache__" and f"{name}/" not in _LEFT_OUT:
            yield from _below(name, path)
        elif path.suffix in _SUFFIXES:
            yield name, path
