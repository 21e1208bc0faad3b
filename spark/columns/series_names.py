"""Parses the canonical names of series into measurement and tags.

A name is ``measurement{tag=value,tag=value}``; a backslash escapes each of ``\\ , = { }`` inside a
part (docs/timeseries.md). Names repeat, so each distinct name is parsed once, and rows refer to it
by its number.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from onelog.spark.columns import arrays
from onelog.spark.columns.fields import Spans
from onelog.ual.errors import CorruptPayload

TAGS_TYPE = pa.map_(pa.string(), pa.string())
# Parsed names that a process caches: the names of a block usually recur in the next one.
PARSED_NAMES_MAX = 100_000

_TOKEN = r"(?:[^\\,={}]|\\[\\,={}])+"  # noqa: S105 - a part of a name, no secret
_PAIR = re.compile(rf"({_TOKEN})=({_TOKEN})")
_NAME = re.compile(rf"({_TOKEN})\{{((?:{_TOKEN}={_TOKEN},)*{_TOKEN}={_TOKEN})?\}}")
_ESCAPED = re.compile(r"\\(.)")

Tags = tuple[tuple[str, str], ...]


class SeriesName(NamedTuple):
    """A parsed name, without escapes."""

    measurement: str
    tags: Tags


@lru_cache(PARSED_NAMES_MAX)
def parse_series_name(raw: bytes) -> SeriesName:
    """Parse a canonical name; raise ``CorruptPayload`` if it is not one."""
    try:
        found = _NAME.fullmatch(raw.decode())
    except UnicodeDecodeError as error:
        raise CorruptPayload("the name of a series is not UTF-8") from error
    if found is None:
        raise CorruptPayload("the name of a series is not canonical")
    measurement, pairs = found.groups()
    tags = tuple(_PAIR.findall(pairs)) if pairs else ()
    if b"\\" in raw:
        measurement = _ESCAPED.sub(r"\1", measurement)
        tags = tuple((_ESCAPED.sub(r"\1", tag), _ESCAPED.sub(r"\1", value)) for tag, value in tags)
    if any(tag >= following for (tag, _), (following, _) in pairwise(tags)):
        raise CorruptPayload("the tags of a series are not in order")
    return SeriesName(measurement, tags)


class Distinct:
    """Spans of bytes as numbers of the distinct values among them."""

    __slots__ = ("codes", "values")

    def __init__(self, data: NDArray[np.uint8], spans: Spans) -> None:
        # ``binary`` needs ascending spans; these come from several layouts, each in order.
        order = np.argsort(spans.start, kind="stable")
        found = arrays.binary(data, spans.take(order)).dictionary_encode()
        self.values: pa.Array = found.dictionary
        self.codes = np.empty(len(order), np.int64)
        self.codes[order] = found.indices.to_numpy()


def tags_column(names: Sequence[SeriesName]) -> pa.Array:
    """Return the tags of names as a column of maps."""
    ends = np.cumsum([0, *(len(name.tags) for name in names)])
    pairs = [pair for name in names for pair in name.tags]
    return pa.MapArray.from_arrays(
        pa.array(ends, pa.int32()),
        pa.array([tag for tag, _ in pairs], pa.string()),
        pa.array([value for _, value in pairs], pa.string()),
    )
