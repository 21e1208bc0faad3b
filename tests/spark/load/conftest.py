"""A server in a process of its own, with several shards, for all tests here."""

from collections.abc import Iterator

import pytest

from onelog import Client
from tests.onelog.client.serving import serving

READY_S = 60


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("loaded"), "--shards", "3") as endpoint:
        with Client(endpoint, timeout_s=READY_S) as client:
            client.kv.put("ready", "")
        yield endpoint


@pytest.fixture(scope="session")
def client(endpoint: str) -> Iterator[Client]:
    with Client(endpoint, timeout_s=READY_S) as client:
        yield client
