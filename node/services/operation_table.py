"""Which operations a message can hold, and what is done about each."""

from typing import Any

from onelog.node.edge.operation import Read, Write
from onelog.node.services import kv_operations as kv
from onelog.node.services import queue_operations as queue
from onelog.node.services import stream_operations as stream
from onelog.node.services import timeseries_operations as series
from onelog.node.services.transact import TRANSACT

# By the name of the operation in the proto. A new model adds its lines here; the answer has the
# same name unless ANSWERS says another.
OPERATIONS: dict[str, Write[Any, Any] | Read[Any, Any]] = {
    "get": kv.GET,
    "put": kv.PUT,
    "delete": kv.DELETE,
    "touch": kv.TOUCH,
    "count": kv.COUNT,
    "append": kv.APPEND,
    "set_json": kv.SET_JSON,
    "txn": kv.TXN,
    "batch_put": kv.BATCH_PUT,
    "transact": TRANSACT,
    **queue.OPERATIONS,
    "append_records": stream.APPEND_RECORDS,
    "ack_records": stream.ACK_RECORDS,
    "commit_offsets": stream.COMMIT_OFFSETS,
    "write_points": series.WRITE_POINTS,
    "query": series.QUERY,
}
ANSWERS = queue.ANSWERS
