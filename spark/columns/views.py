"""All views of entries, by name."""

from typing import Final

from onelog.spark.columns import kv, log, queue, stream, stream_operations, timeseries
from onelog.spark.columns.view import View

VIEWS: Final[dict[str, View]] = {
    view.name: view
    for view in (
        log.VIEW,
        kv.VIEW,
        queue.VIEW,
        stream.VIEW,
        stream_operations.VIEW,
        timeseries.VIEW,
    )
}
