"""The file of spans under faults, and with processes of its own: see also services/test_traces."""

import resource
from pathlib import Path

import pytest

from onelog import Client, traced
from onelog.node.tracing import SpanFile
from tests.node.services.otlp import PARENT, TRACE, spans_of
from tests.system.nodes import nodes
from tests.system.ports import free_ports


def test_half_a_line_that_found_no_room_is_taken_back(tmp_path: Path) -> None:
    """What follows it would otherwise be spoilt, too."""
    file = SpanFile(tmp_path / "spans.jsonl")
    file.write(b"first\n")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            file.write(b"too much\n")
        assert file.path.read_bytes() == b"first\n"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    file.write(b"last\n")
    file.close()
    assert file.path.read_bytes() == b"first\nlast\n"


def test_a_file_that_somebody_took_away_is_made_again_when_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.node.tracing.FILE_BYTES_MAX", 6)
    file = SpanFile(tmp_path / "spans.jsonl")
    file.write(b"first\n")
    file.path.unlink()
    with pytest.raises(FileNotFoundError):
        file.write(b"second\n")
    file.write(b"third\n")
    file.close()
    assert file.path.read_bytes() == b"third\n"


def test_each_worker_of_a_node_writes_a_file_of_its_own(tmp_path: Path) -> None:
    with nodes(tmp_path, "n1", shards="2", partitions="16") as made:
        node = made["n1"]
        base = free_ports(6)
        node.flags |= {
            "workers": "2",
            "listen": f"127.0.0.1:{base}",
            "peer-listen": f"127.0.0.1:{base + 2}",
            "http-listen": f"127.0.0.1:{base + 4}",
            "trace-file": str(tmp_path / "spans.jsonl"),
            "trace-ratio": "0",
        }
        node.start()
        for worker in range(2):
            node.until_ready(worker)
        with Client(node.flags["listen"]) as client, traced(PARENT):
            for number in range(20):
                client.kv.put(f"key-{number}", "v")
        assert node.terminate() == 0
    assert not (tmp_path / "spans.jsonl").exists()
    for worker in range(2):
        found = spans_of(tmp_path / f"spans-{worker}.jsonl")
        assert {span.trace_id for span in found} == {TRACE}
        commits = [span for span in found if span.name == "onelog.commit"]
        assert {span.attributes["onelog.shard"] for span in commits} == {worker}
        assert all(str(s.resource["service.instance.id"]).endswith(f"/{worker}") for s in found)
