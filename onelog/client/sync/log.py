"""``onelog/client/log.py`` for programs without an event loop.

Written by ``python -m scripts.generate_sync_client``: change it there.
"""

from collections.abc import Iterable

from onelog.client.blocking import Facade, Items
from onelog.v1 import log_pb2


class Log(Facade):
    """The log of a shard: its description, its entries as they are stored, its snapshots."""

    def describe(self, shard: int) -> log_pb2.DescribeLogResponse:
        """Describe a shard's log; ``cut_index`` covers all writes acknowledged before."""
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
    ) -> Items[log_pb2.LogFrame]:
        """Yield the entries of a range as they are stored, in order and without gaps.

        If a replica fails, lags, or does not keep the range, another one continues after the last
        frame. The call fails if none has sent anything for the timeout. With ``endpoint`` only that
        node is asked.
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

    def snapshot(self, shard: int, index: int = 0, *, endpoint: str | None = None) -> Items[bytes]:
        """Yield the file of a snapshot in chunks; ``index`` 0 is the newest one.

        It is read from the shard's leader, or from ``endpoint``: each node keeps its own snapshots.
        A read that is interrupted has to start over (SNAPSHOT_INTERRUPTED).
        """
        return self._thread.iterate(self._core.snapshot(shard, index, endpoint=endpoint), 1)
