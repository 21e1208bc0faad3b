"""The log of a running cluster: frames of stored bytes, from any replica.

The cut is taken after a read barrier of each shard, so it has everything that was acknowledged
before. Tasks read frames; if a node fails, lags or has dropped the range, another one continues at
the next index. Bytes from the network are trusted as little as those of a disk: the checksum, index
and size of each entry are verified before a row of its frame is returned.

Each task opens its own client, since connections do not pickle. Executors need hpack and protobuf.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from onelog.errors import (
    DataLoss,
    FailedPrecondition,
    OutOfRange,
    PermissionDenied,
)
from onelog.spark.columns.block import Block, Transactions
from onelog.spark.columns.selection import Selection
from onelog.spark.directory import (
    BATCH_ENTRIES_MAX,
    cut_pieces,
    find_group_end,
    learn_transactions,
)
from onelog.spark.faults import REASON_DROPPED, reported
from onelog.spark.options import parse_tls
from onelog.spark.origin import (
    SPLIT_BYTES,
    Checksums,
    Cut,
    QueueNames,
    Range,
    ShardCut,
    Split,
    join_splits,
)
from onelog.spark.pieces import Piece, check_piece
from onelog.ual.entry import HEADER_SIZE, OWNER_COUNT_MAX
from onelog.ual.segments.tables import Indexes

if TYPE_CHECKING:
    from onelog.client.sync.client import Client
    from onelog.v1 import log_pb2

TIMEOUT_S = 60.0
# For the first answer of a node: enough for two attempts. Later outages may last TIMEOUT_S.
CONNECT_S = 5.0
_DEFAULT_NAMESPACE = "default"
_EVERYTHING = Selection()


class EndpointOrigin:
    """Entries of a cluster; see ``onelog.spark.origin``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        security: Mapping[str, str] | None = None,
        bytes_per_second_max: int = 0,
        cluster_id: str = "",
    ) -> None:
        """Name nodes of a cluster; ``security`` holds the options ``tls`` and ``tls_*``.

        ``cluster_id``: refuse any other cluster at these endpoints.
        """
        self.name = ",".join(endpoints)
        self._endpoints = tuple(endpoints)
        # Certificates are read here, on the driver: executors do not need the files.
        self._tls = parse_tls(security or {})
        self._bytes_per_second_max = bytes_per_second_max
        self._cluster_id = cluster_id

    # The port

    def cut(self, shards: Sequence[int] | None = None) -> Cut:
        """See ``Origin.cut``."""
        with reported(), self.connect() as client:
            first = self._describe(client, shards[0] if shards else 0)
            self._cluster_id = first.cluster_id
            wanted = range(first.shard_count) if shards is None else sorted(set(shards))
            described = [
                first if shard == first.shard else self._describe(client, shard) for shard in wanted
            ]
        found = tuple(
            ShardCut(
                each.shard,
                each.first_index,
                max(each.cut_index, each.first_index - 1),
                each.cut_timestamp_ns,
                each.spans[0].first_timestamp_ns if each.spans else 0,
            )
            for each in described
        )
        return Cut(first.cluster_id, first.shard_count, found)

    def splits(
        self, ranges: Sequence[Range], selection: Selection, size_bytes: int = SPLIT_BYTES
    ) -> list[Split]:
        """See ``Origin.splits``."""
        found: list[Split] = []
        with reported(), self.connect() as client:
            for each in ranges:
                if each.last_index >= each.first_index:
                    found += _split(self._describe(client, each.shard), each, selection, size_bytes)
        return found

    def blocks(self, split: Split, selection: Selection) -> Iterator[Block]:
        """See ``Origin.blocks``."""
        with reported(), self.connect() as client:
            pieces = self._pieces(client, split, selection)
            look_back = partial(self._look_back, client, split)
            yield from cut_pieces(split.shard, pieces, selection, look_back)

    def group_end(self, shard: int, index: int, last_index: int) -> int:
        """See ``Origin.group_end``."""
        with reported(), self.connect() as client:
            for last in (index, last_index):
                for piece, _ in self._pieces(client, Split(shard, index, last, 0)):
                    return min(find_group_end(piece), last_index)
        return last_index

    def checksums(self, places: Sequence[tuple[int, int]]) -> Checksums:
        """See ``Origin.checksums``."""
        found: Checksums = {}
        if not places:
            return found
        with reported(), self.connect() as client:
            for shard, index in places:
                try:
                    for piece, _ in self._pieces(client, Split(shard, index, index, 0)):
                        found[shard, index] = int(piece.headers["crc"][0])
                except OutOfRange as error:
                    if error.reason != REASON_DROPPED:
                        raise
        return found

    def queue_names(
        self,
        cut: Cut,
        wanted: Sequence[str] | None,  # noqa: ARG002 - the port's
        namespaces: Sequence[str] | None = None,
    ) -> QueueNames:
        """See ``Origin.queue_names``: the queues that exist now."""
        from onelog.routing import find_shard

        found: QueueNames = {}
        with self.connect() as client:
            partitions = client.admin.topology().partition_count
            for namespace in namespaces if namespaces is not None else _namespaces(client):
                for queue in client.namespace(namespace).queues():
                    shard = find_shard(queue.queue.encode(), partitions, cut.shard_count)
                    found.setdefault(shard, {})[queue.queue_id] = queue.queue
        return found

    def pieces(self, split: Split) -> Iterator[Piece]:
        """Yield all entries of a range, verified, refused ones included."""
        with reported(), self.connect() as client:
            for piece, _ in self._pieces(client, split):
                yield piece

    @contextmanager
    def connect(self) -> "Iterator[Client]":
        """Open a client of the cluster; each task opens its own.

        The cluster's id is compared each time: entries are identified by index alone, so those of
        another cluster at the same endpoints would look right.
        """
        try:
            from onelog.client.options import ClientOptions
            from onelog.client.sync.client import Client
        except ImportError as error:
            raise FailedPrecondition(
                f"{error.name} is missing here, and reading from an endpoint needs it: install "
                "hpack, protobuf and googleapis-common-protos for the Python of the executors, or "
                "read a directory",
                reason="CLIENT_MISSING",
            ) from error
        options = ClientOptions(timeout_s=TIMEOUT_S, sessions=False)
        connect_s = TIMEOUT_S if self._cluster_id else CONNECT_S
        with closing(Client(self._endpoints, tls=self._tls, options=options)) as client:
            client.scoped(timeout_s=connect_s).connect(refused_s=connect_s)
            if self._cluster_id:
                self._refuse_other(client.admin.topology().cluster_id)
            yield client

    # Inside

    def _describe(self, client: "Client", shard: int) -> "log_pb2.DescribeLogResponse":
        answer = client.log.describe(shard)
        self._refuse_other(answer.cluster_id)
        return answer

    def _refuse_other(self, cluster_id: str) -> None:
        if self._cluster_id and cluster_id != self._cluster_id:
            raise FailedPrecondition(
                f"{self.name} is of cluster {cluster_id}, and the table was loaded from cluster "
                f"{self._cluster_id}",
                reason="OTHER_CLUSTER",
            )

    def _pieces(
        self, client: "Client", split: Split, selection: Selection = _EVERYTHING
    ) -> Iterator[tuple[Piece, Indexes]]:
        """Yield the frames of a split, verified."""
        frames = client.log.frames(
            split.shard,
            split.first_index,
            split.last_index,
            owners=_owners(selection),
            bytes_per_second_max=self._bytes_per_second_max,
        )
        where = f"a frame of shard {split.shard} from {self.name}"
        for frame in frames:
            piece, voids = _check_frame(where, frame)
            if len(piece.headers):
                yield piece, voids

    def _look_back(
        self, client: "Client", split: Split, index: int, transactions: Transactions
    ) -> None:
        """Find the transaction that is open before an index; dropped entries belong to none."""
        described = self._describe(client, split.shard)
        first = max(described.first_index, index - BATCH_ENTRIES_MAX)
        if first < index:
            before = Split(split.shard, first, index - 1, 0)
            for piece, voids in self._pieces(client, before):
                learn_transactions(split.shard, piece, voids, transactions)


def _owners(selection: Selection) -> "list[log_pb2.Owner]":
    """Return the owners that can have wanted entries; an empty list for all.

    The system is always among them: its batch entries tell which transaction an entry belongs to.
    """
    owners = selection.owners
    if selection.types is not None:
        of_types = frozenset(number >> 8 for number in selection.types)
        owners = of_types if owners is None else owners & of_types
    if owners is None:
        return []
    return [cast("log_pb2.Owner", number) for number in sorted(owners | {0})]


def _check_frame(where: str, frame: "log_pb2.LogFrame") -> tuple[Piece, Indexes]:
    """Return the entries of a frame; ``CorruptFile`` if they are not what they should be."""
    starts = np.frombuffer(frame.offsets, "<u4").astype(np.int64)
    voids: Indexes = np.array(
        [(each.first_index, each.last_index) for each in frame.voids], np.uint64
    ).reshape(-1, 2)
    size = len(frame.data)
    ends = np.append(starts[1:], size)
    if len(starts) and (starts[0] != 0 or ((ends - starts) < HEADER_SIZE).any()):
        raise DataLoss(f"{where}: offsets outside of the data", reason="CORRUPT_FRAME")
    if not len(starts) and size:
        raise DataLoss(f"{where}: data without an entry", reason="CORRUPT_FRAME")
    piece = check_piece(where, 0, frame.data, starts, ends, None, has_checksum=False)
    indexes = piece.headers["index"]
    if len(indexes) and not (
        indexes[0] >= frame.first_index
        and indexes[-1] <= frame.last_index
        and (indexes[1:] > indexes[:-1]).all()
    ):
        raise DataLoss(f"{where}: indexes outside of the frame", reason="CORRUPT_FRAME")
    return piece, voids


def _split(
    described: "log_pb2.DescribeLogResponse", wanted: Range, selection: Selection, size_bytes: int
) -> list[Split]:
    """Return the files of a range that can hold wanted entries, small ones together."""
    if wanted.first_index < described.first_index:
        gone = min(wanted.last_index, described.first_index - 1)
        raise OutOfRange(
            f"entries {wanted.first_index} to {gone} of shard {wanted.shard} are not kept any "
            f"more: the log begins at {described.first_index}",
            reason=REASON_DROPPED,
            metadata={"first_index": str(described.first_index)},
        )
    if wanted.last_index > described.cut_index:
        raise OutOfRange(
            f"entries up to {wanted.last_index} of shard {wanted.shard} existed when the range "
            f"was planned, and the log ends at {described.cut_index}: it was restored to an "
            "earlier state; load the table again",
            reason="INDEX_IN_FUTURE",
            metadata={"last_index": str(described.cut_index)},
        )
    return join_splits(_parts(described, wanted, selection), size_bytes)


def _parts(
    described: "log_pb2.DescribeLogResponse", wanted: Range, selection: Selection
) -> Iterator[Split]:
    """Yield the wanted parts of files, in order."""
    for span in described.spans:
        first = max(span.first_index, wanted.first_index)
        last = min(span.last_index, wanted.last_index)
        # Only sealed files count entries by owner: an unsealed one may have any.
        owner_counts = span.owner_counts if span.sealed else (1,) * OWNER_COUNT_MAX
        times = span.first_timestamp_ns, span.last_timestamp_ns
        if first <= last and selection.can_be_within(*times, owner_counts):
            size = span.size * (last - first + 1) // (span.last_index - span.first_index + 1)
            yield Split(wanted.shard, first, last, size)


def _namespaces(client: "Client") -> list[str]:
    try:
        return list(client.admin.namespaces())
    except PermissionDenied:
        return [_DEFAULT_NAMESPACE]
