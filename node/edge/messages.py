"""Values of the projections as messages of the API: what answers and events have in common."""

from onelog.projections.kv.reads import KeyValue
from onelog.v1 import kv_pb2


def put_item(target: kv_pb2.KeyValue, item: KeyValue, *, with_value: bool = True) -> None:
    """Show a key."""
    target.key = item.key
    if with_value:
        target.value = item.value
    target.version = item.version
    if item.expires_ns is not None:
        target.expires_ns = item.expires_ns
    if item.lease is not None:
        target.lease_id = item.lease
