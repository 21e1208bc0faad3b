"""Every block of docs/client.md does what it says, as it stands."""

from collections.abc import Iterator

import pytest

from onelog import Client
from tests.documents import blocks_of
from tests.onelog.client.serving import serving

BLOCKS = [each.text for each in blocks_of("docs/client.md", "python")]


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
    exec(code, {"__name__": "__main__"})
    assert "print(" not in block or capsys.readouterr().out
