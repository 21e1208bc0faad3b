"""The offline commands of docs/operations.md, pasted; its cluster is in test_cluster_commands."""

import re
import shutil
from pathlib import Path

from tests.documents import blocks_of, paste
from tests.onelog.cli.forking import forking
from tests.onelog.cli.log.models import Models

ELSEWHERE = "A cluster on this machine"


def test_the_offline_commands_of_the_document_work_when_pasted(
    models: Models, tmp_path: Path
) -> None:
    blocks = blocks_of("docs/operations.md", "sh")
    offline = [each.text for each in blocks if each.section != ELSEWHERE]
    assert len(offline) == 2
    assert len(blocks) == 3
    directory = tmp_path / "work"
    shutil.copytree(models.data_dir, directory / "DIR")
    script = "".join(offline).replace("INDEX", str(models.at["batch"]))
    with forking(tmp_path) as programs:
        shown = paste(script, directory, programs, {})
    assert "clean" in shown
    # Replayed, as a snapshot and proved the end has one hash, and so has the index that is asked.
    hashes = re.findall(r"state hash (\w{16}) at index (\d+)", shown)
    assert len(hashes) == 3 + 5
    assert len(set(hashes)) == len({index for _, index in hashes}) == 2
