"""The API as somebody sees it who has the protos and nothing else of onelog."""

import json
import os
import subprocess
import sys
from pathlib import Path

from onelog.ual.directory import read_node
from onelog.ual.files import DiskFiles
from tests.node.membership.test_formation import newcomer
from tests.system.nodes import nodes
from tests.system.processes import ROOT

PROTOS = sorted((ROOT / "proto").rglob("*.proto"))


def test_a_client_made_of_the_protos_alone_uses_every_call_that_reflection_lists(
    tmp_path: Path,
) -> None:
    """G7: the published protos are enough, and reflection lists no call that is not tried here."""
    stubs = tmp_path / "stubs"
    for package in (stubs, stubs / "onelog", stubs / "onelog" / "v1"):
        package.mkdir()
        (package / "__init__.py").touch()
    flags = [f"--{kind}_out={stubs}" for kind in ("python", "grpc_python")]
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", *flags]
    subprocess.run([*protoc, *map(str, PROTOS)], check=True)
    with nodes(tmp_path, "n1", shards="2") as made:
        server = made["n1"].start()
        server.until_ready()
        made["n2"] = joiner = newcomer(tmp_path, "n2", server).start()
        joiner.until_report(stage="electing")
        joiner_id = str(read_node(DiskFiles(), joiner.directory / "data").node_id)
        script = Path(__file__).with_name("foreign_client.py")
        done = subprocess.run(
            [
                *(sys.executable, "-P", str(script), server.flags["listen"]),
                *(joiner_id, joiner.flags["peer-listen"]),
            ],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(stubs)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found = json.loads(done.stdout)
        assert found["called"] == found["listed"]
        assert len(found["listed"]) > 90
