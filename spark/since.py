"""``since=RECEIPT``: a read of what follows behind the last entries of an export."""

from pathlib import Path

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.export.receipt import RECEIPT_SIZE_MAX, decode_receipt
from onelog.spark.origin import Cut


def find_first_indexes(path: str, view: str, cut: Cut) -> dict[int, int]:
    """Return where each shard of a cut goes on behind a receipt, which must be of the same table.

    A shard that had nothing new begins behind its end.
    """
    receipt = decode_receipt(path, _read(path))
    contents = receipt.contents
    if contents.cluster_id != cut.cluster_id:
        raise FailedPrecondition(
            f"the receipt {path} is of cluster {contents.cluster_id}, and the table is of "
            f"cluster {cut.cluster_id}",
            reason="RECEIPT_OF_ANOTHER_CLUSTER",
        )
    if contents.view != view:
        raise FailedPrecondition(
            f"the receipt {path} is of the view {contents.view}, and not of {view}",
            reason="RECEIPT_OF_ANOTHER_VIEW",
        )
    before = {each.shard: each.last_index for each in receipt.ranges}
    for part in cut.shards:
        if part.shard not in before:
            raise FailedPrecondition(
                f"the receipt {path} has nothing of shard {part.shard}; read the same shards",
                reason="RECEIPT_OF_OTHER_SHARDS",
            )
        if before[part.shard] > part.last_index:
            raise FailedPrecondition(
                f"the receipt {path} ends shard {part.shard} at {before[part.shard]}, and the log "
                f"ends at {part.last_index}: it is behind, or was restored",
                reason="RECEIPT_AHEAD_OF_LOG",
            )
    return {part.shard: before[part.shard] + 1 for part in cut.shards}


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(RECEIPT_SIZE_MAX + 1)
    except OSError as error:
        raise InvalidArgument(
            f"option since is {path!r}, which cannot be read: {error.strerror}; allowed: the path "
            "of an export's receipt",
            reason="OPTION_INVALID",
            metadata={"option": "since"},
        ) from error
