"""What is installed: one package, the libraries that its parts need, and nothing that surprises."""

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from onelog.cli.failure import EXTRAS
from tests.system.nodes import ServeProcess
from tests.system.ports import free_addresses
from tests.test_tidy import SOURCES, imported, is_product, module_of

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TIMEOUT_S = 120
# Of the generated stubs, which are for other programs.
NOT_IMPORTED = {"grpcio"}
# Run before a program: what it names cannot be imported.
REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Refuse())
"""


def build(into: Path, source: Path, kind: str) -> Path:
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", into, source],
        check=True,
        capture_output=True,
    )
    (built,) = into.iterdir()
    return built


def modules_here() -> set[str]:
    """Return the modules of this checkout, as files of the package."""
    found = set()
    for folder, _, names in os.walk(ROOT / "onelog", followlinks=True):
        inside = Path(folder).relative_to(ROOT).as_posix()
        found |= {f"{inside}/{name}" for name in names if name.endswith(".py")}
    return found


def top_level(names: list[str]) -> set[str]:
    return {name.partition("/")[0] for name in names}


def test_a_wheel_holds_one_package_with_every_module(tmp_path: Path) -> None:
    """What an application's environment gets must not surprise it."""
    names = zipfile.ZipFile(build(tmp_path, ROOT, "wheel")).namelist()
    (metadata,) = top_level(names) - {"onelog"}
    assert metadata == f"onelogdb-{PROJECT['version']}.dist-info"
    assert {name for name in names if name.endswith(".py")} == modules_here()
    assert "onelog/py.typed" in names
    assert f"{metadata}/entry_points.txt" in names


def test_a_wheel_that_is_built_from_the_sdist_is_the_same(tmp_path: Path) -> None:
    source = build(tmp_path / "sdist", ROOT, "sdist")
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    packages = {path.parent.name for path in unpacked.glob("*/__init__.py")}
    assert packages == {"onelog"}
    again = zipfile.ZipFile(build(tmp_path / "again", unpacked, "wheel"))
    first = zipfile.ZipFile(build(tmp_path / "first", ROOT, "wheel"))
    assert sorted(again.namelist()) == sorted(first.namelist())
    assert all(again.read(name) == first.read(name) for name in modules_here())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of a user who has folders with names like ours."""
    for name in ("cluster", "node", "projections", "snapshot", "spark", "ual"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'user of {name}'\n")
    return tmp_path


def test_folders_of_the_user_are_imported_beside_ours(directory: Path) -> None:
    program = (
        "import node, spark, ual; import onelog.node.main, onelog.spark, onelog.ual.log; "
        "print(node.OWNER, spark.OWNER, ual.OWNER, onelog.ual.__name__, sep=', ')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=directory, env=environment(), text=True,
        capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert done.stdout == "user of node, user of spark, user of ual, onelog.ual\n", done.stderr


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT)}


def test_a_server_runs_beside_folders_of_the_user(directory: Path) -> None:
    api, peers, http = free_addresses(3)
    flags = {"listen": api, "peer-listen": peers, "http-listen": http}
    server = ServeProcess(directory, "n1", flags).start()
    try:
        server.until_ready()
        for words in (["kv", "put", "a", "b", "-e", api], ["admin", "snapshot", "0", "-e", api]):
            command = [sys.executable, "-m", "onelog.cli.main", *words]
            subprocess.run(command, cwd=directory, env=environment(), check=True, timeout=TIMEOUT_S)
        assert server.terminate() == 0
    finally:
        server.kill()


def names_of(requirements: list[str]) -> set[str]:
    found = (re.match(r"[\w.-]+", each) for each in requirements)
    return {each[0].lower().replace("_", "-") for each in found if each}


def test_the_table_of_extras_has_every_library_of_theirs() -> None:
    """A command that lacks one of them says what to install."""
    extras = PROJECT["optional-dependencies"]
    brought = names_of(extras["server"]) | names_of(extras["spark"])
    modules = {
        module: {each.lower().replace("_", "-") for each in distributions}
        for module, distributions in importlib.metadata.packages_distributions().items()
    }
    found = {name for module in EXTRAS for name in modules[module]}
    assert found & brought == brought
    for module, extra in EXTRAS.items():
        assert modules[module] & names_of(extras[extra]), module


def test_every_library_is_imported_by_code_that_runs() -> None:
    """Until it has a caller, everybody would install it for nothing."""
    trees = {module_of(path): ast.parse(path.read_text()) for path in SOURCES if is_product(path)}
    named = {module: imported(tree) for module, tree in trees.items()}
    everything = {"onelog.cli.main"}.union(*named.values())
    used = {name.partition(".")[0] for each in everything & set(trees) for name in named[each]}
    missing = names_of(PROJECT["dependencies"] + PROJECT["optional-dependencies"]["server"])
    for module, distributions in importlib.metadata.packages_distributions().items():
        if module in used:
            missing -= {each.lower().replace("_", "-") for each in distributions}
    assert missing == NOT_IMPORTED


def run_without(
    names: set[str], directory: Path, *words: str
) -> "subprocess.CompletedProcess[str]":
    command = f"from onelog.cli.main import run; sys.exit(run({words!r}))"
    return subprocess.run(
        [sys.executable, "-c", REFUSE.format(names=names) + command], cwd=directory,
        env=environment(), text=True, capture_output=True, timeout=TIMEOUT_S,
    )  # fmt: skip


def test_a_client_does_without_the_extras(tmp_path: Path) -> None:
    api, peers, http = free_addresses(3)
    flags = {"listen": api, "peer-listen": peers, "http-listen": http}
    server = ServeProcess(tmp_path, "n1", flags).start()
    try:
        server.until_ready()
        for words in (
            ("kv", "put", "a", "b"),
            ("kv", "get", "a"),
            ("queue", "create", "q"),
            ("stream", "create", "s"),
            ("ts", "write", "m f=1"),
            ("ts", "query", "m", "f"),
            ("admin", "status"),
        ):
            done = run_without(set(EXTRAS), tmp_path, *words, "-e", api)
            assert done.returncode == 0, done.stderr
    finally:
        server.kill()


@pytest.mark.parametrize(
    ("missing", "words", "extra"),
    [
        ("pysyncobj", ("serve", "--listen", "nowhere"), "server"),
        ("prometheus_client", ("config", "show"), "server"),
        ("zstandard", ("log", "inspect", "."), "server"),
        ("uvloop", ("bench", "put", "--seconds", "1s", "-e", "127.0.0.1:1"), "server"),
        ("pyarrow", ("export", "verify", "."), "spark"),
    ],
)
def test_a_command_says_which_extra_it_needs(
    tmp_path: Path, missing: str, words: tuple[str, ...], extra: str
) -> None:
    done = run_without({missing}, tmp_path, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{missing} is missing; install it with: pip install 'onelogdb[{extra}]'" in done.stderr
