"""``onelog/client/log.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable, Iterator

from onelog.client.blocking import Facade
from onelog.v1 import log_pb2


class Log(Facade):
    """Descriptions of the log, its entries as they are stored, snapshots."""

    def describe(self, shard: int) -> log_pb2.DescribeLogResponse:
        """Describe a shard's log, with a cut: all that was acknowledged before is at or below."""
        found: log_pb2.DescribeLogResponse = self._thread.run(self._core.describe(shard))
        return found

    def frames(
        self,
        shard: int,
        first_index: int,
        last_index: int,
        *,
        owners: Iterable[log_pb2.Owner] = (),
        bytes_per_second_max: int = 0,
        endpoint: str | None = None,
    ) -> Iterator[log_pb2.LogFrame]:
        """Yield the entries of a range as they are stored, in order and without a hole.

        Replicas take turns: where one fails, lags, or does not keep the range, another one
        continues behind the last frame. It fails if none has sent anything for the timeout.
        ``endpoint`` asks only that one.
        """
        return self._thread.iterate(
            self._core.frames(
                shard,
                first_index,
                last_index,
                owners=owners,
                bytes_per_second_max=bytes_per_second_max,
                endpoint=endpoint,
            ),
            1,
        )

    def snapshot(
        self, shard: int, index: int = 0, *, endpoint: str | None = None
    ) -> Iterator[bytes]:
        """Yield the file of a snapshot that a node keeps, piece by piece; 0: its newest.

        From the shard's leader, unless ``endpoint`` says otherwise: each node has its own. One
        that breaks off in the middle has to begin again (SNAPSHOT_INTERRUPTED).
        """
        return self._thread.iterate(self._core.snapshot(shard, index, endpoint=endpoint), 1)
