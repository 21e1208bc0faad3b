"""docs/cli.md, pasted into a shell."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

from onelog.cli.connect import VARIABLES
from tests.onelog.cli.forking import forking
from tests.onelog.client.serving import ROOT

TEXT = (ROOT / "docs" / "cli.md").read_text()
TIMEOUT_S = 240


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", TEXT, flags=re.DOTALL | re.MULTILINE)


def test_every_block_of_the_document_works_when_pasted(endpoint: str, tmp_path: Path) -> None:
    with forking(tmp_path) as programs:
        environment = os.environ | {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "ONELOG_ENDPOINTS": endpoint,
            "ONELOG_CLIENT_TIMEOUT": "60s",
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", "\n".join(blocks("sh"))],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("hello\n", "exit code 3", "working with token", "working on 5", "█"):
        assert expected in done.stdout
    assert "Traceback" not in done.stderr


def test_the_file_of_the_document_has_settings_that_exist() -> None:
    (text,) = blocks("toml")
    assert set(tomllib.loads(text)) <= set(VARIABLES)
