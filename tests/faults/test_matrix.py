"""The fault matrix and its page: every test that it names exists, and the page is made of it."""

import ast
from pathlib import Path

import pytest

from tests.faults.campaign import (
    FAILED,
    NOT_RUN,
    PAGE,
    PASSED,
    fill,
    load_results,
    run_row,
    write_page,
)
from tests.faults.matrix import MATRIX, PROCESSES, Fault

TESTS = Path(__file__).parent.parent


def test_every_test_of_the_matrix_exists() -> None:
    for fault in MATRIX:
        assert fault.tests, fault.name
        for each in fault.tests:
            path, _, name = each.partition("::")
            tree = ast.parse((TESTS / path).read_text())
            functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            assert name in functions, each


def test_the_page_has_the_rows_of_the_matrix_with_their_last_results() -> None:
    """If it differs: ``python -m tests.faults.campaign --page``, or ``make faults``."""
    results = load_results()
    names = [fault.name for fault in MATRIX]
    assert len(set(names)) == len(names)
    assert list(results) == names
    assert PAGE.read_text() == write_page(results)
    assert not [name for name, each in results.items() if each.outcome == FAILED]


@pytest.mark.parametrize(
    ("body", "outcome", "tests"),
    [
        ("def test_a(record_property):\n    record_property('figures', '7 writes')\n", PASSED, 1),
        ("def test_a():\n    assert False\n", FAILED, 1),
        (
            "import pytest\n@pytest.mark.skipif(True, reason='needs root')\ndef test_a(): pass\n",
            f"{NOT_RUN}: needs root",
            0,
        ),
    ],
)
def test_a_row_says_how_its_tests_went(body: str, outcome: str, tests: int, tmp_path: Path) -> None:
    """Real runs of pytest: passed with figures, failed, and not run with the reason."""
    (tmp_path / "test_one.py").write_text(f'"""One."""\n{body}')
    result, printed = run_row(Fault("k", "n", "p", PROCESSES, (f"{tmp_path}/test_one.py",)))
    assert (result.outcome, result.tests) == (outcome, tests), printed
    assert result.figures == (("7 writes",) if outcome == PASSED else ())
    assert outcome in result.describe()


def test_lines_are_broken_at_spaces_and_a_long_name_stays_whole() -> None:
    lines = fill("word " * 60 + "x" * 150 + " end", "* ", "  ").splitlines()
    assert all(len(line) <= 110 for line in lines if "x" not in line)
    assert lines[0].startswith("* word")
    assert all(line.startswith("  ") for line in lines[1:])
    assert " ".join(lines).split()[1:] == ("word " * 60 + "x" * 150 + " end").split()
