"""Rules of the house that no linter knows, checked over every file that git would commit."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
PACKAGES = ("cluster", "node", "onelog", "projections", "snapshot", "spark", "ual")


def tracked(*suffixes: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    paths = [ROOT / name for name in listed]
    return [path for path in paths if path.suffix in suffixes and path.exists()]


SOURCES = [path for path in tracked(".py") if "onelog/v1" not in path.as_posix()]
DOCUMENTS = tracked(".md")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_one_idea_with_a_docstring(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    assert len(text.splitlines()) <= FILE_LINES_MAX, "split the file by concept"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py", "manager.py"}
    assert [name_of(path) for path in SOURCES if path.name in empty] == []


def test_there_is_no_package_file_under_tests() -> None:
    """pytest imports them by path; an __init__.py in some folders would change the names."""
    assert [name_of(p) for p in SOURCES if p.name == "__init__.py" and "tests" in p.parts] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_document_has_one_title(path: Path) -> None:
    outside_code = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [line for line in outside_code.splitlines() if line.startswith("# ")]
    assert len(titles) == 1, titles


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


def test_the_wheel_holds_the_packages_and_nothing_else(tmp_path: Path) -> None:
    """What an application's environment gets must not surprise it."""
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel],
        check=True,
        capture_output=True,
    )
    names = {path.name for path in target.iterdir() if path.name != "bin"}
    distribution = {name for name in names if name.endswith(".dist-info")}
    assert names - distribution == set(PACKAGES)
    assert (target / "ual" / "py.typed").exists()
    assert (target / "bin" / "onelog").exists()
