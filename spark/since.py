"""``since=RECEIPT``: reads what follows the last entries of an export.

A receipt has the checksum of the last entry of each shard. If the log has a different entry there,
it was restored to an earlier state and has grown since, so it does not continue that export.
"""

from collections.abc import Collection
from pathlib import Path

from onelog.errors import FailedPrecondition, InvalidArgument
from onelog.spark.export.receipt import RECEIPT_SIZE_MAX, Receipt, decode_receipt
from onelog.spark.origin import Checksums, Cut, Origin


def find_first_indexes(path: str, view: str, origin: Origin, cut: Cut) -> dict[int, int]:
    """Return the index at which each shard of a cut continues a receipt of the same table.

    A shard without new entries begins behind its end.
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
    expected = last_checksums(receipt, {part.shard for part in cut.shards})
    refuse_other_entries(origin, expected, f"the receipt {path}", "RECEIPT_DIFFERS")
    return {part.shard: before[part.shard] + 1 for part in cut.shards}


def last_checksums(receipt: Receipt, shards: Collection[int]) -> Checksums:
    """Return the checksums that a receipt has of the last entries of some shards."""
    return {
        (each.shard, each.last_index): each.last_crc32c
        for each in receipt.ranges
        if each.shard in shards and each.last_crc32c is not None
    }


def refuse_other_entries(origin: Origin, expected: Checksums, what: str, reason: str) -> None:
    """Refuse a log in which one of these entries differs; all are at or below its end."""
    found = origin.checksums(sorted(expected))
    for (shard, index), crc in expected.items():
        if found.get((shard, index), crc) != crc:
            raise FailedPrecondition(
                f"{what} has another entry {index} of shard {shard} than {origin.name}: the log "
                "was restored to an earlier state and has grown since; begin again with another "
                "target",
                reason=reason,
            )


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
