"""The example of docs/api.md, pasted, with what it says is printed.

grpcurl is a program of its own that tests cannot expect to be there; ``reflecting.py`` stands for
it, and knows nothing of onelog either.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from onelog import Client
from onelog.v1 import (
    admin_pb2,
    kv_pb2,
    log_pb2,
    pipeline_pb2,
    queue_pb2,
    stream_pb2,
    timeseries_pb2,
)
from tests.documents import blocks_of, paste
from tests.onelog.client.serving import serving

DEFAULT_ENDPOINT = "127.0.0.1:7400"
BLOCKS = blocks_of("docs/api.md")
END_OF_BLOCK = "-- end of block --"


def outline(document: Any) -> Any:
    """Return a document with all numbers of the log as one: they depend on what was before."""
    if isinstance(document, dict):
        return {name: outline(each) for name, each in document.items()}
    if isinstance(document, list):
        return [outline(each) for each in document]
    return "a number" if re.fullmatch(r"\d+", str(document)) else document


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What each block of the shell prints."""
    directory = tmp_path_factory.mktemp("api")
    program = directory / "grpcurl"
    program.write_text(
        f'#!/bin/sh\nexec {sys.executable} {Path(__file__).with_name("reflecting.py")} "$@"\n'
    )
    program.chmod(0o755)
    script = f"echo '{END_OF_BLOCK}'\n".join(each.text for each in BLOCKS if each.language == "sh")
    with serving(directory / "data") as endpoint:
        with Client(endpoint, timeout_s=60) as client:
            client.kv.put("ready", "")
        pasted = paste(script.replace(DEFAULT_ENDPOINT, endpoint), directory, directory, {})
    return pasted.split(f"{END_OF_BLOCK}\n")


def test_every_answer_of_the_example_is_what_the_page_says(shown: list[str]) -> None:
    answers = 0
    printed = iter(shown)
    for block in BLOCKS:
        if block.language == "sh":
            answer = next(printed)
            continue
        assert block.language == "json"
        assert outline(json.loads(answer)) == outline(json.loads(block.text)), answer
        answers += 1
    assert answers >= 4


def test_what_is_listed_described_and_refused_is_as_the_page_says(shown: list[str]) -> None:
    modules = (
        admin_pb2, kv_pb2, log_pb2, pipeline_pb2, queue_pb2, stream_pb2, timeseries_pb2,
    )  # fmt: skip
    for module in modules:
        for service in module.DESCRIPTOR.services_by_name.values():
            assert f"{service.full_name}\n" in shown[0]
    assert "bytes key = 2;" in shown[0]
    assert shown[-1] == "exit code 74\n"
