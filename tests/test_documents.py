"""Every block of code in the documents is run by a test, or says why not.

A reader can tell by the language: ``console`` is what nobody runs but people, everything else is
held against the program.
"""

from pathlib import Path

import pytest

from tests.documents import ROOT, Block, blocks_of
from tests.test_tidy import DOCUMENTS

# Who runs the blocks of a document, by language.
RUN_BY = {
    ("README.md", "sh"): "tests/test_readme.py",
    ("docs/api.md", "json"): "tests/system/test_api_document.py",
    ("docs/api.md", "sh"): "tests/system/test_api_document.py",
    ("docs/cli.md", "sh"): "tests/onelog/cli/test_cli_document.py",
    ("docs/cli.md", "toml"): "tests/onelog/cli/test_cli_document.py",
    ("docs/client.md", "python"): "tests/onelog/client/test_document.py",
    ("docs/export.md", "json"): "tests/spark/test_export_receipt.py",
    ("docs/export.md", "sh"): "tests/spark/jvm/test_export_long.py",
    ("docs/formats.md", "hex"): "tests/formats/test_document.py",
    ("docs/formats.md", "json"): "tests/formats/test_document.py",
    ("docs/import.md", "python"): "tests/spark/jvm/test_writer.py",
    ("docs/import.md", "sh"): "tests/onelog/cli/test_import_command.py",
    ("docs/operations.md", "sh"): "tests/onelog/cli/test_operations_document.py",
    ("docs/payloads.md", "hex"): "tests/projections/test_payloads.py",
    ("docs/queue.md", "hex"): "tests/projections/queue/test_queue_payloads.py",
    ("docs/security.md", "sh"): "tests/onelog/cli/cluster/test_certificates.py",
    ("docs/snapshots.md", "hex"): "tests/formats/test_fsnap.py",
    ("docs/spark.md", "python"): "tests/spark/jvm/test_recipes.py",
    ("docs/spark.md", "sh"): "tests/spark/jvm/test_recipes.py",
    ("docs/streams.md", "hex"): "tests/projections/stream/test_stream_payloads.py",
    ("docs/timeseries.md", "hex"): "tests/projections/timeseries/test_ts_payloads.py",
}
# Pictures and formulas.
DRAWN = "text"
# What no test types, by document and section, and why.
NOT_RUN = {
    ("README.md", "Two commands"): (
        "makes an environment; the tour of the same page runs beside a server without make"
    ),
    ("CONTRIBUTING.md", "The loop"): "would run this test",
    ("docs/guarantees.md", ""): "takes long; tests/simulation runs some seeds",
    ("docs/operations.md", "Containers"): (
        "needs an engine: make compose-test; tests/system/test_compose.py runs the file without"
    ),
    ("docs/security.md", "Certificates"): (
        "has addresses of other machines; tests/system/test_identity.py starts nodes so"
    ),
    ("docs/server.md", "One node"): "does not end; every test with a server runs it",
    ("docs/server.md", "Founding a cluster"): (
        "has addresses of other machines; tests/system/test_compose.py founds a cluster so"
    ),
    ("docs/server.md", "Joining a cluster"): (
        "has addresses of other machines; tests/system/test_api_members.py lets a node join so"
    ),
    ("docs/spark.md", "Clusters"): (
        "has addresses of other machines; tests/spark/jvm/test_clusters.py submits jobs so"
    ),
}

BLOCKS = [block for path in DOCUMENTS for block in blocks_of(path.relative_to(ROOT).as_posix())]


def test_every_block_is_run_or_says_why_not() -> None:
    assert len(BLOCKS) > 70
    forgotten: list[Block] = []
    for block in BLOCKS:
        kind = block.language.partition(" ")[0]
        if kind == "console":
            known = (block.document, block.section) in NOT_RUN
        else:
            known = kind == DRAWN or (block.document, kind) in RUN_BY
        if not known:
            forgotten.append(block)
    assert forgotten == []


def test_there_is_no_excuse_for_blocks_that_are_gone() -> None:
    typed = {(each.document, each.section) for each in BLOCKS if each.language == "console"}
    assert set(NOT_RUN) == typed
    kinds = {(each.document, each.language.partition(" ")[0]) for each in BLOCKS}
    assert set(RUN_BY) <= kinds


@pytest.mark.parametrize(
    ("document", "path"), sorted({(each, path) for (each, _), path in RUN_BY.items()})
)
def test_who_runs_a_document_reads_it(document: str, path: str) -> None:
    assert Path(document).name in (ROOT / path).read_text()
