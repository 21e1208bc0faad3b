"""What the database remembers of a job that writes: one key for each partition and shard.

The key is in the same shard as the rows and changes in one transaction with them. Its value says
how far the partition has come in that shard, and has the digest of all rows so far. A chunk is
written only if the key has the value that the chunk before it left. So each chunk is written once,
by the attempt that comes first, and an attempt with different rows is recognised by the digest.

::

    _load{load.N}/j:JOB/PARTITION       batch, chunk, rows, digest, index of its beginning, last
    _load{load.0}/j:JOB                 batch, number of partitions: all of them are written

``load.N`` is the first routing tag of ``load.0``, ``load.1``, … that leads to the shard. For a
streaming query, ``j:JOB`` is ``q:`` and the query's id. The keys expire.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from onelog.errors import DataLoss, InvalidArgument
from onelog.spark.load.columns import DIGEST_SIZE

PREFIX = b"_load{"
JOB_NAME_SIZE_MAX = 256
TAGS_TRIED_MAX = 1_000_000

# version, is_last, batch, chunk, rows, opened_index, digest
_PROGRESS = struct.Struct(f"<BBqQQQ{DIGEST_SIZE}s")
_DONE = struct.Struct("<BqQ")  # version, batch, number of partitions
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Job:
    """A job that writes, or one batch of a streaming query; its rows are written once."""

    name: str
    batch: int = 0
    is_query: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(self.name.encode()) <= JOB_NAME_SIZE_MAX:
            raise InvalidArgument(
                f"a job's name has 1 to {JOB_NAME_SIZE_MAX} bytes", reason="JOB_NAME_INVALID"
            )

    @property
    def key(self) -> bytes:
        """The job's part of the progress keys."""
        return f"{'q' if self.is_query else 'j'}:{self.name}".encode()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a partition has come in one shard."""

    batch: int
    chunk: int  # the last one that is written; 0: none
    row_count: int
    opened_index: int  # of the entry that began it; 0 in chunk 0, which is that entry
    digest: bytes
    is_last: bool = False  # no chunk follows

    def encode(self) -> bytes:
        """Return the value of the key."""
        return _PROGRESS.pack(
            _VERSION, self.is_last, self.batch, self.chunk, self.row_count, self.opened_index,
            self.digest,
        )  # fmt: skip


def decode_progress(value: bytes) -> Progress:
    """Decode the value of a progress key."""
    if len(value) != _PROGRESS.size or value[0] != _VERSION:
        raise DataLoss("the progress key of a job cannot be read", reason="WRITE_PROGRESS_LOST")
    _, is_last, batch, chunk, row_count, opened_index, digest = _PROGRESS.unpack(value)
    return Progress(batch, chunk, row_count, opened_index, digest, bool(is_last))


def encode_done(batch: int, partition_count: int) -> bytes:
    """Return the value of a job's key when all of its partitions are written."""
    return _DONE.pack(_VERSION, batch, partition_count)


def decode_done(value: bytes) -> tuple[int, int]:
    """Return the batch and the number of partitions that are written."""
    if len(value) != _DONE.size or value[0] != _VERSION:
        raise DataLoss("the key of a job cannot be read", reason="WRITE_PROGRESS_LOST")
    _, batch, partition_count = _DONE.unpack(value)
    return batch, partition_count


def find_tags(shard_count: int, find_shard: Callable[[bytes], int]) -> list[bytes]:
    """Return a routing tag for each shard: the first ``load.N`` that leads there."""
    tags: dict[int, bytes] = {}
    for number in range(TAGS_TRIED_MAX):
        tag = b"load.%d" % number
        tags.setdefault(find_shard(tag), tag)
        if len(tags) == shard_count:
            return [tags[shard] for shard in range(shard_count)]
    raise AssertionError(f"no tag for some of {shard_count} shards")


def progress_key(tag: bytes, job: Job, partition: str) -> bytes:
    """Return the key of a partition in the shard of a tag."""
    return b"%b%b}/%b/%b" % (PREFIX, tag, job.key, partition.encode())


def done_key(tag: bytes, job: Job) -> bytes:
    """Return the key of the whole job."""
    return b"%b%b}/%b" % (PREFIX, tag, job.key)
