"""The commands that know the server, seen from those that must not."""

import subprocess
import sys

import pytest

TIMEOUT_S = 60


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["log", "--help"]])
def test_commands_of_a_client_load_no_server(arguments: list[str]) -> None:
    """They would have to wait for it."""
    script = (
        f"import sys; from onelog.cli.main import run; code = run({arguments!r}); "
        "loaded = {name.removeprefix('onelog.').partition('.')[0] for name in sys.modules}; "
        "assert not loaded & {'node', 'cluster', 'grpc', 'snapshot', 'projections'}, loaded; "
        "sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stderr
