"""The lives in docs/architecture.md name files and functions that exist: a reader follows them."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from onelog.projections.reasons import Reason
from tests.documents import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
SECTIONS = [part for part in PAGE.split("\n## ") if part.startswith(("Life of", "Where to begin"))]
FILE = re.compile(r"[a-z0-9_/]+\.(py|proto)")
LISTED = re.compile(r"`([a-z0-9_/]+\.py)` \(([^)]*)\)")  # a file and, in parentheses, names in it
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[a-z_][a-z0-9_]*)?")


@cache
def names_in(path: Path) -> frozenset[str]:
    """Return functions, classes, constants and ``Class.method`` of a module."""
    tree = ast.parse(path.read_text())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {each.id for each in targets if isinstance(each, ast.Name)}
        if isinstance(node, ast.ClassDef):
            methods = (ast.FunctionDef, ast.AsyncFunctionDef)
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, methods)}
    return frozenset(found)


def missing_of(section: str) -> list[str]:
    """Return what a section names and the code does not have.

    A name belongs to the file named last; one with a dot may also belong to an earlier file of the
    section.
    """
    missing, files = [], list[Path]()
    for quoted in re.findall(r"`([^`]+)`", section):
        if FILE.fullmatch(quoted):
            if (ROOT / quoted).is_file():
                files.append(ROOT / quoted)
            else:
                missing.append(quoted)
        elif NAME.fullmatch(quoted) and ("." in quoted or quoted[0].isupper() or "_" in quoted):
            python = [each for each in files if each.suffix == ".py"]
            is_status = quoted.isupper() and ("_" not in quoted or quoted in Reason.__members__)
            if is_status or not python:
                continue
            candidates = python if "." in quoted or quoted.isupper() else python[-1:]
            if not any(quoted in names_in(each) for each in candidates):
                missing.append(quoted)
    for file, listed in LISTED.findall(section):
        names = names_in(ROOT / file) if (ROOT / file).is_file() else frozenset()
        quoted_names = re.findall(r"`([^`]+)`", listed)
        missing += [each for each in quoted_names if NAME.fullmatch(each) and each not in names]
    return missing


@pytest.mark.parametrize("section", SECTIONS, ids=lambda each: each.splitlines()[0])
def test_every_file_and_name_of_a_life_exists(section: str) -> None:
    assert FILE.search(section)
    assert missing_of(section) == []


def test_a_wrong_name_would_be_found() -> None:
    absent = "ual/{}.py".format("no_such")
    text = f"`ual/log.py` `Log.append_group`, `Log.no_such` and `{absent}`"
    assert missing_of(text) == ["Log.no_such", absent]


def test_the_lives_are_there() -> None:
    titles = [each.splitlines()[0] for each in SECTIONS]
    for life in ("a write", "a read", "a lease and its ack", "a snapshot"):
        assert f"Life of {life}" in titles
