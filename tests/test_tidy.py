"""Rules of the house that no linter knows, checked over every file that git would commit.

Without git, as in an unpacked source distribution, over every file but caches and build products.
"""

import ast
import importlib
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import LINKED

ROOT = Path(__file__).parent.parent
FUNCTION_LINES_MAX = 70
DOCUMENT_COLUMNS_MAX = 200
NOT_SOURCE = frozenset(("__pycache__", "build", "dist", "venv"))


def tracked(root: Path, *suffixes: str) -> list[Path]:
    paths = listed_by_git(root) if (root / ".git").exists() else listed_by_walking(root)
    return [path for path in paths if path.suffix in suffixes and path.exists()]


def listed_by_git(root: Path) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [root / name for name in listed.split("\0") if name]


def listed_by_walking(root: Path) -> list[Path]:
    paths: list[Path] = []
    for directory, children, names in os.walk(root):
        # Changed in place: the walk goes on into what is left. All caches but one are hidden.
        children[:] = sorted(
            name
            for name in children
            if not name.startswith(".")
            and not name.endswith(".egg-info")
            and name not in NOT_SOURCE
        )
        paths += [Path(directory) / name for name in sorted(names)]
    return paths


SOURCES = [path for path in tracked(ROOT, ".py") if "onelog/v1" not in path.as_posix()]
DOCUMENTS = tracked(ROOT, ".md")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_tree_without_git_is_walked_past_what_nobody_wrote(tmp_path: Path) -> None:
    kept = ["README.md", "pyproject.toml", "ual/log.py", "tests/ual/test_log.py"]
    left = [".venv/lib/x.py", "build/lib/ual/log.py", "ual/__pycache__/log.py", "a.egg-info/b.md"]
    for name in kept + left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = {path.relative_to(tmp_path).as_posix() for path in tracked(tmp_path, ".py", ".md")}
    assert found == {name for name in kept if not name.endswith(".toml")}


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_source_file_is_one_idea_with_a_docstring(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "no module docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


def test_a_docstring_begins_with_what_is_done() -> None:
    """``Let a task stop`` says neither who stops it nor when; the plain verb does."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [
        f"{name_of(path)}: {node.name}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and (ast.get_docstring(node) or "").startswith("Let ")
    ]
    assert found == []


def test_no_file_has_a_name_that_says_nothing() -> None:
    empty = {"utils.py", "util.py", "common.py", "helpers.py", "misc.py", "manager.py"}
    assert [name_of(path) for path in SOURCES if path.name in empty] == []


def test_nobody_imports_a_folder_of_onelog_by_its_bare_name() -> None:
    """A module would exist twice: as ``ual.x`` and as ``onelog.ual.x``."""
    links = {path.name for path in (ROOT / "onelog").iterdir() if path.is_symlink()}
    assert links in (LINKED, set())  # none where a source distribution was unpacked
    # Those that tell what is found, and that a user may have such folders.
    exempt = ("tests/test_tidy.py", "tests/test_packaging.py")
    others = [path for path in SOURCES if name_of(path) not in exempt]
    assert [name_of(path) for path in others if bare_imports(path.read_text())] == []


def bare_imports(text: str) -> set[str]:
    """Return the bare names that a program imports, also in programs that it starts."""
    tree = ast.parse(text)
    names = "|".join(LINKED)
    found: set[str] = set(re.findall(rf"-m[\"', ]+({names})\.", text))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {(node.module or "").partition(".")[0]} & LINKED
        elif isinstance(node, ast.Import):
            found |= {each.name.partition(".")[0] for each in node.names} & LINKED
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            inner = rf"(?:^|[;\n])\s*(?:from ({names})\b[\w.]* import|import ({names})\b)"
            found |= {one or other for one, other in re.findall(inner, node.value)}
    return found


@pytest.mark.parametrize(
    "text",
    [
        "import node.main",
        "from ual import log",
        "def f():\n    from spark.table import x",
        "run('import sys; from ual.entry import decode')",
        "run('-m', 'snapshot.builder')",
    ],
)
def test_a_bare_import_is_seen(text: str) -> None:
    assert bare_imports(text)


def test_a_bare_name_that_is_put_together_is_refused() -> None:
    with pytest.raises(ImportError, match=r"import onelog\.ual, not ual"):
        importlib.import_module("".join(("u", "al")))


def test_other_imports_are_no_bare_ones() -> None:
    text = "import onelog.node, nodes\nfrom onelog.ual import log\nx = 'taken from node 3'"
    assert bare_imports(text) == set()


SMALL_LINES = 60
# Modules that stay by themselves though they are small and one other imports them, and why.
SMALL_AND_ALONE = {"onelog/cli/completion.py": "a group of commands, loaded by its name"}


def test_a_small_module_has_more_than_one_importer() -> None:
    """A small file that one other needs is a part of it, and its reader has to open two."""
    trees = {path: ast.parse(path.read_text()) for path in SOURCES if is_product(path)}
    users: dict[str, set[Path]] = {module_of(path): set() for path in trees}
    for path, tree in trees.items():
        for name in imported(tree) & set(users):
            users[name].add(path)
    small = {
        name_of(path)
        for path in trees
        if len(path.read_text().splitlines()) < SMALL_LINES
        and path.name not in ("__init__.py", "__main__.py")
        and len(users[module_of(path)]) == 1
    }
    assert small == set(SMALL_AND_ALONE)


def is_product(path: Path) -> bool:
    first = path.relative_to(ROOT).parts[0]
    return first in {*LINKED, "onelog"} and "onelog/client/sync/" not in path.as_posix()


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "onelog" else ("onelog", *parts))
    return name.removesuffix(".__init__")


def imported(tree: ast.Module) -> set[str]:
    """Return the modules that a file imports, and with them names that may be modules."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found


def test_there_is_no_package_file_under_tests() -> None:
    """pytest imports them by path; an __init__.py in some folders would change the names."""
    assert [name_of(p) for p in SOURCES if p.name == "__init__.py" and "tests" in p.parts] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_document_has_one_title(path: Path) -> None:
    outside_code = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = [line for line in outside_code.splitlines() if line.startswith("# ")]
    assert len(titles) == 1, titles


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_a_document_has_no_line_over_200_characters(path: Path) -> None:
    """A longer row of a table cannot be read in an editor or a diff: make it a list."""
    lines = path.read_text().splitlines()
    assert [at for at, line in enumerate(lines, 1) if len(line) > DOCUMENT_COLUMNS_MAX] == []


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_link_to_a_file_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (path.parent / target).exists(), target


def test_every_module_that_a_text_names_is_there() -> None:
    """A name that leads nowhere costs its reader more than none. The changelog tells the past."""
    folders = "|".join((*LINKED, "bench", "onelog", "scripts", "tests"))
    named = re.compile(rf"(?<![\w/.])((?:{folders})/[\w/]+\.py)\b")
    exempt = ("CHANGELOG.md", "tests/test_tidy.py")
    places = (ROOT, ROOT / "tests", ROOT / "onelog")  # an sdist has the folders inside of onelog
    missing = {
        f"{name_of(path)}: {name}"
        for path in SOURCES + DOCUMENTS
        if name_of(path) not in exempt
        for name in named.findall(path.read_text())
        if not any((place / name).exists() for place in places)
    }
    assert missing == set()
