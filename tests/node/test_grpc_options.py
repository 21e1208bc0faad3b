"""Options of gRPC that we set exist: one that it does not know is ignored without a word."""

import re
from pathlib import Path

import pytest
from grpc._cython import cygrpc  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
USERS = [
    "node/forwarding.py",
    "node/api_port.py",
    "onelog/client/channels.py",
    "onelog/spread.py",
]
LIBRARY = Path(cygrpc.__file__).read_bytes()


@pytest.mark.parametrize("user", USERS)
def test_grpc_knows_the_options_that_are_set(user: str) -> None:
    """A misspelt limit on pings once sent idle clients away."""
    names = re.findall(r'"(grpc\.[a-z0-9_.]+)"', (ROOT / user).read_text())
    assert names
    # With the end of the string: the beginning of another name is no name.
    assert [name for name in names if name.encode() + b"\0" not in LIBRARY] == []
