"""The README's tour, pasted into a shell as a new user would, beside a server."""

import re
from pathlib import Path

from onelog import Client
from tests.documents import blocks_of, paste
from tests.onelog.cli.forking import forking
from tests.onelog.client.serving import serving

DEFAULT_ENDPOINT = "127.0.0.1:7400"
SHOWN = (
    "9.50", "8.75", "to ann", "grep ended with 1", "1 message moved back", "to bob, now sent",
    "3 records appended", "60 values of 60 points", "█", "host=a", "done at index",
    "exit code 4: it was done already", "order{7}  two apples", "sales{7}", "at index", "clean",
    "workload",
)  # fmt: skip


def test_every_command_of_the_tour_works_when_pasted(tmp_path: Path) -> None:
    blocks = blocks_of("README.md", "sh")
    assert len(blocks) >= 8
    script = "\n".join(each.text for each in blocks)
    # Any port will do for a test; what is typed is otherwise as it stands.
    assert script.count(DEFAULT_ENDPOINT) == 1
    directory = tmp_path / "clone"
    directory.mkdir()
    with serving(directory / "onelog-data") as endpoint, forking(tmp_path) as programs:
        with Client(endpoint, timeout_s=60) as client:
            client.kv.put("ready", "")
        shown = paste(
            script.replace(DEFAULT_ENDPOINT, endpoint), directory, programs,
            {"ONELOG_ENDPOINTS": endpoint, "ONELOG_CLIENT_TIMEOUT": "60s"},
        )  # fmt: skip
    for expected in SHOWN:
        assert expected in shown, expected
    # The snapshot's hash is the one that the proof came to.
    snapshot, *proved = re.findall(r"state hash (\w{16})", shown)
    assert snapshot in proved
