"""Blocks of code in the documents, and shells that run them as a reader would."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SHELL_S_MAX = 240


class Block(NamedTuple):
    """A block, the language that it says it is, and its heading."""

    document: str
    language: str
    text: str
    section: str


def blocks_of(document: str, language: str | None = None) -> list[Block]:
    """Return the blocks of a document in order, of one language if that is given."""
    text = (ROOT / document).read_text()
    found = []
    for match in re.finditer(r"^```(.*)\n((?s:.*?))^```$", text, flags=re.MULTILINE):
        sections = re.findall(r"^##+ (.*)$", text[: match.start()], flags=re.MULTILINE)
        found.append(Block(document, match[1], match[2], sections[-1] if sections else ""))
    return [each for each in found if language in (None, each.language)]


def paste(script: str, directory: Path, programs: Path, variables: dict[str, str]) -> str:
    """Paste lines into a shell in a directory; return what they printed."""
    kept = {name: text for name, text in os.environ.items() if not name.startswith("ONELOG_")}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", script],
        cwd=directory,
        env=kept
        | {
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CONFIG_HOME": str(directory),
        }
        | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SHELL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    shown: str = done.stdout
    return shown
