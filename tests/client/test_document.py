"""Every block of docs/client.md does what it says, as it stands."""

import re
from collections.abc import Iterator

import pytest

from onelog import Client
from onelog.errors import InvalidArgument, Unimplemented
from tests.client.serving import ROOT, serving

TEXT = (ROOT / "docs" / "client.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)
# Parts of the server that come after the client; when they are there their blocks run.
SERVICES = {"client.queue(": "Queue", "client.ts.": "TimeSeries"}


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("data")) as endpoint:
        with Client(endpoint, timeout_s=30) as client:
            client.kv.put("ready", "")
        yield endpoint


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_document_runs(
    number: int, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[number]
    assert "127.0.0.1:7400" in block
    code = compile(block.replace("127.0.0.1:7400", endpoint), f"docs/client.md[{number}]", "exec")
    try:
        exec(code, {"__name__": "__main__"})
    except (Unimplemented, InvalidArgument) as error:
        missing = [name for call, name in SERVICES.items() if call in block]
        if not missing or error.reason not in ("UNIMPLEMENTED", "OPERATION_MISSING"):
            raise
        pytest.skip(f"this server has no {missing[0]} service yet")
    assert "print(" not in block or capsys.readouterr().out
