"""The rows of bench/peers.py: a case of ours, the closest case of another system, and a goal.

Goals are ratios, since rates mean nothing on a machine with other work: our rate divided by the
peer's, or, for the time of one call, the peer's divided by ours. So more is better in every row,
and a row reaches its goal if the median of its turns' ratios does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Row:
    """One comparison."""

    peer: str
    theirs: str
    ours: str
    goal: float
    callers: int
    # If another number is faster.
    callers_theirs: int | None = None
    # What is compared: operations per second, or the milliseconds of a call.
    of: str = "per_s"

    @property
    def name(self) -> str:
        """What it is called in the output and by ``--only``."""
        count = self.callers_theirs or self.callers
        callers = "1 caller" if count == 1 else f"{count} callers"
        return f"{self.peer} {self.theirs}, {callers}; our {self.ours}, {self.callers}"


ROWS = (
    Row("echo", "echo of 128", "put_many of 128", 0.2, callers=16),
    Row("echo", "echo of 128", "put_many of 128", 0.2, callers=64),
    Row("etcd", "put", "put", 0.5, callers=1, of="p50_ms"),
    Row("etcd", "put", "put", 3, callers=64),
    Row("etcd", "put", "put", 5, callers=256),
    Row("etcd", "transaction of 128", "put_many of 128", 1, callers=16),
    Row("etcd", "transaction of 128", "transact of 128", 1, callers=16),
    Row("etcd", "get", "get", 2, callers=64),
    Row("nats", "put", "put", 1, callers=64),
    Row("nats", "put", "put", 1, callers=256),
    Row("nats", "publish", "append", 1, callers=1024),
    Row("nats", "pull and ack", "lease 256 and ack", 1, callers=8, callers_theirs=4),
    Row("rabbitmq", "publish", "enqueue", 1, callers=1024),
    Row("rabbitmq", "consume and ack", "consume and ack", 1, callers=4, callers_theirs=1),
)


def verdict(
    row: Row, ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Return what the turns of a row say: each pair was measured one right after the other."""
    our, their = ([each[row.of] for each in side] for side in (ours, theirs))
    pairs = zip(our, their, strict=True)
    if row.of == "per_s":
        ratios = [mine / other for mine, other in pairs]
    else:
        ratios = [other / mine for mine, other in pairs]
    ratio = median(ratios)
    return {
        "row": row.name,
        "of": row.of,
        "ours": our,
        "theirs": their,
        "ratio": round(ratio, 2),
        "ratios": [round(each, 2) for each in ratios],
        "goal": row.goal,
        "reached": ratio >= row.goal,
    }
