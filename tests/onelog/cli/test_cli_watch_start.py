"""``onelog watch --from start`` on a log whose beginning is gone."""

import time
from collections.abc import Iterator

import pytest

from onelog import Client
from tests.onelog.cli.commands import Cli
from tests.onelog.client.serving import serving

TRIM_S_MAX = 60.0  # a server looks every ten seconds
POLL_S = 0.1


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with small files, so that there are some to drop."""
    directory = tmp_path_factory.mktemp("trimmed")
    with serving(directory, "--shards", "1", "--log-segment-entries-max", "16") as endpoint:
        yield endpoint


def test_a_watch_from_the_start_begins_with_the_oldest_entries_that_are_kept(
    endpoint: str, cli: Cli
) -> None:
    with Client(endpoint, timeout_s=60) as client:
        for age in ("oldest", "old", "new"):
            for number in range(50):
                client.kv.put(f"{age}:{number}", "x")
            if age != "new":
                client.admin.take_snapshot(0)
        deadline_s = time.monotonic() + TRIM_S_MAX
        while client.admin.status().shards[0].first_index == 1:
            assert time.monotonic() < deadline_s
            time.sleep(POLL_S)

    names = [each["name"] for each in cli.lines("watch", "kv", "--from", "start", "--limit", 100)]
    assert names == [f"{age}:{number}" for age in ("old", "new") for number in range(50)]
