"""How large rows are, whatever the batches that they came in: no loop over rows."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def row_sizes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the plain bytes of each row; a row has the same size in any batch."""
    sizes = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        sizes += _sizes(column)
    return sizes


def _sizes(values: pa.Array) -> NDArray[np.int64]:
    """Return the plain bytes of each value; a null that has no fixed width has none."""
    kind = values.type
    if pa.types.is_map(kind):
        return _sizes(values.cast(pa.list_(pa.struct([
            pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type),
        ]))))  # fmt: skip
    if pa.types.is_list(kind):
        counts = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        ends = np.cumsum(counts, dtype=np.int64)
        before = np.append(0, np.cumsum(_sizes(values.flatten())))
        found: NDArray[np.int64] = before[ends] - before[ends - counts]
        return found
    if pa.types.is_struct(kind):
        found = np.zeros(len(values), np.int64)
        for number in range(kind.num_fields):
            found += _sizes(pc.struct_field(values, [number]))
        return found
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        lengths = pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False)
        return np.asarray(lengths, np.int64)
    return np.full(len(values), (kind.bit_width + 7) // 8, np.int64)
