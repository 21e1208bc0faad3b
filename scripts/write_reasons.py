"""Writes docs/reasons.md: every reason and alarm, from the list in the code.

``python -m scripts.write_reasons``; a test fails if the document is not what this writes.
"""

from pathlib import Path

from onelog.projections.reasons import Reason
from onelog.reasons import list_sections

DOCUMENT = Path(__file__).parent.parent / "docs" / "reasons.md"

HEAD = """\
# Reasons and alarms

Every error has a reason: a stable word for programs, whose meaning never changes. Its message is
for people: it names the thing, its value and what is allowed. [api.md](api.md#errors) says what to
do about each class of errors, and `onelog explain REASON` prints a line of this page.

This page is written by `python -m scripts.write_reasons` from `onelog/reasons.py` and
`projections/reasons.py`; to add a reason or an alarm, add a line there.
"""


def document() -> str:
    """Return the text of the page."""
    lines = [HEAD]
    for section in list_sections({each.name: each.meaning for each in Reason}):
        lines += [f"## {section.title}", "", section.about, ""]
        if any(each.kinds for each in section.meanings):
            lines += ["| reason | class | meaning |", "|---|---|---|"]
        else:
            lines += ["| reason | meaning |", "|---|---|"]
        for each in section.meanings:
            kinds = " or ".join(f"`{kind.__name__}`" for kind in each.kinds)
            cells = (f"`{each.reason}`", *([kinds] if kinds else []), each.text)
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    DOCUMENT.write_text(document())
