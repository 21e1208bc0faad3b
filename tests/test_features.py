"""The page of features names tests; they must exist."""

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "docs" / "features.md"


def test_every_feature_names_tests_that_exist() -> None:
    rows = re.findall(r"^\* \*\*([A-G]\d+)\*\*: ([^*#]+)", PAGE.read_text(), re.MULTILINE)
    assert len(rows) > 60
    assert len({row for row, _ in rows}) == len(rows)
    missing = []
    for row, shown in rows:
        named = re.findall(r"`([^`]+)`", shown)
        assert named, row
        for each in named:
            path, _, name = each.partition("::")
            file = TESTS / path
            if not file.is_file():
                missing.append(each)
                continue
            functions = {
                node.name
                for node in ast.parse(file.read_text()).body
                if isinstance(node, ast.FunctionDef)
            }
            if not any(every.startswith("test_") for every in functions) or (
                name and name not in functions
            ):
                missing.append(each)
    assert not missing, missing
