"""State hashes between processes: rows to protobuf and back, with everything checked on the way."""

from collections.abc import Iterable
from uuid import UUID

from onelog.cluster.raft.membership import LEARNERS_MAX, VOTERS_MAX
from onelog.cluster.raft.messages import StateRow
from onelog.v1 import peer_pb2

ROWS_MAX = VOTERS_MAX + LEARNERS_MAX
OWNERS_MAX = 256
_ID_SIZE = 16


def encode_rows(rows: Iterable[StateRow]) -> list[peer_pb2.PeerStateRow]:
    """Return the generated form of rows."""
    return [
        peer_pb2.PeerStateRow(
            node_id=row.node_id.bytes,
            hashes=[peer_pb2.PeerStateHash(owner=owner, hash=each) for owner, each in row.hashes],
        )
        for row in rows
    ]


def decode_rows(encoded: Iterable[peer_pb2.PeerStateRow], count: int) -> tuple[StateRow, ...]:
    """Return the rows that a peer sent; ``ValueError`` if they cannot be."""
    if not 1 <= count <= ROWS_MAX:
        raise ValueError(f"{count} rows of state hashes, limit {ROWS_MAX}")
    rows = []
    for row in encoded:
        if len(row.node_id) != _ID_SIZE:
            raise ValueError(f"a node id of {len(row.node_id)} bytes")
        if len(row.hashes) > OWNERS_MAX:
            raise ValueError(f"{len(row.hashes)} state hashes, limit {OWNERS_MAX}")
        hashes = tuple((each.owner, each.hash) for each in row.hashes)
        owners = [owner for owner, _ in hashes]
        if owners != sorted(set(owners)) or any(owner >= OWNERS_MAX for owner in owners):
            raise ValueError("owners of state hashes are out of order or range")
        rows.append(StateRow(UUID(bytes=row.node_id), hashes))
    if len({row.node_id for row in rows}) != count:
        raise ValueError("two rows of state hashes of one node")
    return tuple(rows)
