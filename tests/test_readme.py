"""The README's tour, pasted into a shell as a new user would."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_every_command_of_the_tour_works_when_pasted(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    assert len(blocks) >= 4
    script = "set -e\n" + "\n".join(blocks)
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stdout + done.stderr
    for expected in ("b'hello 42' from entry 42 of 1000", "hello 43", "clean", "exit code 1"):
        assert expected in done.stdout
    assert "Traceback" not in done.stderr
