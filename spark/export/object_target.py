"""Exports into an object store (``s3://bucket/path``), through the file systems of pyarrow.

An object appears when its upload is complete, so there is no temporary name and no rename. The
journal, which grows, is written as parts, each an object of its own.

A store has no lock that it releases by itself. Instead an object names the export that writes, and
is checked again before the receipt is written. It stays if the export is killed; the next export is
refused, and the error says how to remove it.
"""

import secrets
from collections.abc import Iterator
from tempfile import SpooledTemporaryFile
from typing import Any
from urllib.parse import urlsplit

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.export.target import (
    LOCK_NAME,
    OWN_DIRECTORY,
    READ_BYTES,
    AppendLog,
    Lock,
    Output,
    not_empty,
    owner_text,
)

SPOOL_BYTES_MAX = 64 << 20  # of a file kept in memory until it is sent; more goes to disk
_PART = ".part-"


def open_url(text: str) -> "ObjectTarget":
    """Return the target of a URL."""
    from pyarrow import ArrowException, fs

    parts = urlsplit(text)
    if not parts.netloc or not parts.path.strip("/"):
        raise InvalidArgument(
            f"{text} names no path in a bucket; give one: s3://bucket/exports/name",
            reason="TARGET",
        )
    try:
        filesystem, path = fs.FileSystem.from_uri(text)
    except (ArrowException, ValueError, OSError) as error:
        raise InvalidArgument(f"{text} cannot be used: {error}", reason="TARGET") from error
    # Credentials in a URL are for the store and must not appear in messages.
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    return ObjectTarget(shown, filesystem, path.rstrip("/"))


class ObjectTarget:
    """A prefix of an object store."""

    def __init__(self, name: str, filesystem: Any, path: str) -> None:
        self.name = name
        self.path = path
        self._filesystem = filesystem

    def lock(self) -> Lock:
        """See ``Target.lock``."""
        own = self.names(OWN_DIRECTORY)
        if not own and self.names():
            raise not_empty(self.name)
        held = self.read(LOCK_NAME)
        if held is not None:
            raise self._refusal(held)
        token = secrets.token_hex(16)
        self.write(LOCK_NAME, owner_text(token).encode())
        lock = _ObjectLock(self, token)
        lock.check()
        return lock

    def _refusal(self, held: bytes) -> FailedPrecondition:
        return FailedPrecondition(
            f"another export writes into {self.name}: {held[:500].decode(errors='replace')}; wait "
            f"for it, or remove {self.name.rstrip('/')}/{LOCK_NAME} if it does not run any more",
            reason="TARGET_IN_USE",
        )

    def create(self, name: str) -> Output:
        """See ``Target.create``."""
        return _ObjectOutput(self._filesystem, self._at(name))

    def write(self, name: str, data: bytes) -> None:
        """See ``Target.write``."""
        with self._filesystem.open_output_stream(self._at(name)) as stream:
            stream.write(data)

    def read(self, name: str) -> bytes | None:
        """See ``Target.read``."""
        if self.size(name) is None:
            return None
        with self._filesystem.open_input_stream(self._at(name)) as stream:
            data: bytes = stream.read()
        return data

    def chunks(self, name: str) -> Iterator[bytes]:
        """See ``Target.chunks``."""
        with self._filesystem.open_input_stream(self._at(name)) as stream:
            while data := stream.read(READ_BYTES):
                yield data

    def size(self, name: str) -> int | None:
        """See ``Target.size``."""
        found = self._filesystem.get_file_info(self._at(name))
        return found.size if found.is_file else None

    def remove(self, name: str) -> None:
        """See ``Target.remove``."""
        if self.size(name) is not None:
            self._filesystem.delete_file(self._at(name))

    def names(self, prefix: str = "") -> list[str]:
        """See ``Target.names``."""
        from pyarrow import fs

        selector = fs.FileSelector(
            self._at(prefix).rstrip("/"), recursive=True, allow_not_found=True
        )
        skipped = len(self.path) + 1
        return sorted(
            each.path[skipped:] for each in self._filesystem.get_file_info(selector) if each.is_file
        )

    def log(self, name: str) -> AppendLog:
        """See ``Target.log``."""
        return _PartLog(self, name)

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}"


class _ObjectLock:
    """An object that names its owner."""

    def __init__(self, target: ObjectTarget, token: str) -> None:
        self._target = target
        self._token = token

    def check(self) -> None:
        """See ``Lock.check``."""
        held = self._target.read(LOCK_NAME) or b""
        if self._token.encode() not in held:
            raise self._target._refusal(held)

    def release(self) -> None:
        """See ``Lock.release``; a lock that another export holds by now stays."""
        if self._token.encode() in (self._target.read(LOCK_NAME) or b""):
            self._target.remove(LOCK_NAME)


class _ObjectOutput(Output):
    """One upload, sent when the file is complete.

    pyarrow completes an upload that is abandoned halfway, so nothing is sent before the end.
    """

    def __init__(self, filesystem: Any, path: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path
        self._spool = SpooledTemporaryFile(max_size=SPOOL_BYTES_MAX)  # noqa: SIM115 - see discard

    def _append(self, data: memoryview) -> None:
        self._spool.write(data)

    def finish(self) -> None:
        """See ``Output.finish``."""
        self._spool.seek(0)
        with self._filesystem.open_output_stream(self._path) as stream:
            while data := self._spool.read(READ_BYTES):
                stream.write(data)
        self._spool.close()

    def discard(self) -> None:
        """See ``Output.discard``."""
        self._spool.close()


class _PartLog:
    """A log in which each append is an object."""

    def __init__(self, target: ObjectTarget, name: str) -> None:
        self._target = target
        self._name = name
        self._part_count: int | None = None

    def read(self) -> bytes:
        """See ``AppendLog.read``."""
        return b"".join(self._target.read(part) or b"" for part in self._parts())

    def keep(self, size: int) -> None:
        """See ``AppendLog.keep``: a part is complete or absent, so there is nothing to cut off."""

    def create(self, data: bytes) -> None:
        """See ``AppendLog.create``."""
        self.append(data)

    def append(self, data: bytes) -> None:
        """See ``AppendLog.append``."""
        if self._part_count is None:
            self._part_count = len(self._parts())
        self._target.write(f"{self._name}{_PART}{self._part_count:06d}", data)
        self._part_count += 1

    def remove(self) -> None:
        """See ``AppendLog.remove``; a part that a crash leaves is harmless: the receipt counts."""
        for part in self._parts():
            self._target.remove(part)

    def _parts(self) -> list[str]:
        folder = self._name.rpartition("/")[0]
        return [each for each in self._target.names(folder) if each.startswith(self._name + _PART)]
