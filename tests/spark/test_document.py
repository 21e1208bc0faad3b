"""docs/spark.md names every view, column, option and reason that there is, and no other."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from onelog.spark import options
from onelog.spark.changes import CHANGE_VIEWS
from onelog.spark.columns.view import ENTRY_FIELDS
from onelog.spark.columns.views import VIEWS
from onelog.spark.state import AS_OF_OPTIONS, STATE_VIEWS
from onelog.spark.streaming import STREAM_OPTIONS
from tests.documents import ROOT

TEXT = (ROOT / "docs" / "spark.md").read_text()
ALL_VIEWS = {**VIEWS, **STATE_VIEWS, **CHANGE_VIEWS}
# Of options and reads; those of writers and exports have documents of their own.
MODULES = (
    "changes", "directory", "endpoint", "faults", "offsets", "options", "past", "series_points",
    "session", "source", "state", "streaming", "table", "workers",
)  # fmt: skip
# Raised by the writer, which source.py shows to Spark (docs/import.md).
OF_WRITERS = {"OVERWRITE_UNSUPPORTED", "WRITE_BATCH_UNKNOWN"}


def section(title: str) -> str:
    """Return what stands under a heading, up to the next one."""
    found = re.search(rf"^##+ {re.escape(title)}\n((?s:.*?))(?=^##|\Z)", TEXT, re.MULTILINE)
    assert found is not None, title
    return found[1]


def columns_of(title: str) -> dict[str, str]:
    """Return the columns of the table under a heading, and their types."""
    found: dict[str, str] = {}
    for names, types in re.findall(r"^\| (`.+?`) \| (.+?) \|", section(title), re.MULTILINE):
        named = re.findall(r"`(\w+)`", names)
        typed = re.split(r", (?![^<]*>)", types)
        assert len(named) == len(typed), names
        assert not found.keys() & set(named), names
        found |= dict(zip(named, typed, strict=True))
    return found


def find_types(schema: pa.Schema) -> dict[str, str]:
    """Return the columns of a schema with the types that Spark shows."""
    found = from_arrow_schema(schema, prefer_timestamp_ntz=False)
    return {field.name: field.dataType.simpleString() for field in found.fields}


def test_every_view_is_in_the_document_and_no_other() -> None:
    assert set(re.findall(r"^### View `(\w+)`$", TEXT, re.MULTILINE)) == set(ALL_VIEWS)


@pytest.mark.parametrize("name", sorted(ALL_VIEWS))
def test_the_columns_of_each_view_are_those_of_the_document(name: str) -> None:
    schema = ALL_VIEWS[name].schema
    shared = ["shard"]
    if not ALL_VIEWS[name].shows_state:
        shared = [field.name for field in ENTRY_FIELDS]
        assert columns_of("Columns of all operations") == find_types(pa.schema(ENTRY_FIELDS))
    own = pa.schema([field for field in schema if field.name not in shared])
    assert columns_of(f"View `{name}`") == find_types(own)
    assert list(columns_of(f"View `{name}`")) == own.names


def test_the_options_are_those_of_the_document() -> None:
    found: list[str] = []
    for names in re.findall(r"^\| (`.+?`) \|", section("Options"), re.MULTILINE):
        found += re.findall(r"`(\w+)`", names)
    assert len(found) == len(set(found))
    known = {*options._KNOWN, *AS_OF_OPTIONS, *STREAM_OPTIONS}
    assert set(found) == known


def test_every_reason_of_a_read_is_in_the_document() -> None:
    raised: set[str] = set()
    for module in MODULES:
        code = Path(options.__file__).with_name(f"{module}.py").read_text()
        raised |= set(re.findall(r'(?:reason="|bad\(\s*")([A-Z_]+)"', code))
    listed = set(re.findall(r"`([A-Z_]+)`", section("Errors")))
    assert raised - OF_WRITERS <= listed
    of_files = {"COMPACTED", "NOT_A_DATA_DIRECTORY", "CORRUPT_FILE", "CORRUPT_PAYLOAD"}
    of_the_client = {"NOT_CONNECTED"}
    assert listed - raised == of_files | of_the_client
