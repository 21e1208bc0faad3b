"""The segment files of a shard as one chain: do they touch, and do they hold what was promised?

Each file was judged by itself before. Where one could not be read, what it held is not known, and
the questions that depend on it are not asked: one damaged file is one finding, not five.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from onelog.ual.offline.findings import ADVICE_PEER, Finding, Level
from onelog.ual.recovery import Known
from onelog.ual.segments.check import Part

_RANGE_ADVICE = "restore the missing files from a backup, or rebuild this replica from a peer"
_ORDER_ADVICE = "find out who added or renamed the file; keep the right one and move the other away"


@dataclass(frozen=True, slots=True)
class Link:
    """A segment file in the chain; ``part`` is None where it cannot be told what it holds."""

    first_index: int
    path: Path
    is_sealed: bool
    part: Part | None


def check_chain(directory: Path, links: Sequence[Link], known: Known) -> Iterator[Finding]:
    """Yield what is wrong between the files, which are in order of their first index."""
    expected = known.first_index
    if links:
        lowest = links[0].first_index
        # Lower than recorded is fine: a drop was recorded and is not carried out yet.
        expected = lowest if expected is None else min(lowest, expected)
    for link in links:
        if expected is not None and link.first_index > expected:
            yield _missing(directory, "MISSING_RANGE", expected, link.first_index - 1)
        elif expected is not None and link.first_index < expected:
            rule = f"starts at {link.first_index}, but the file before ends at {expected - 1}"
            yield Finding(Level.ERROR, link.path, None, "OVERLAP", rule, _ORDER_ADVICE)
        expected = None if link.part is None else link.part.last_index + 1
    if not links:
        expected = known.first_index or 1
    if expected is not None and expected <= known.durable_index:
        yield _missing(directory, "MISSING_END", expected, known.durable_index)
    for before, after in pairwise(links):
        if after.is_sealed and not before.is_sealed:
            rule = "a sealed file behind an unsealed one: files are sealed in order"
            yield Finding(Level.ERROR, after.path, None, "OVERLAP", rule, _ORDER_ADVICE)
        if before.part is not None and after.part is not None:
            yield from _compare(before.part, after.part)
    first = links[0].part if links else None
    if first is None or first.first_index != known.first_index:
        return
    if first.first_proposal != known.first_proposal:
        rule = f"first proposal {first.first_proposal}, MANIFEST says {known.first_proposal}"
        yield Finding(Level.ERROR, first.path, 0, "WRONG_PROPOSAL", rule, ADVICE_PEER)


def _missing(directory: Path, reason: str, first_index: int, last_index: int) -> Finding:
    message = f"no file holds entries {first_index} to {last_index}"
    return Finding(Level.ERROR, directory, None, reason, message, _RANGE_ADVICE)


def _compare(before: Part, after: Part) -> Iterator[Finding]:
    """Compare two neighbours that touch."""
    if before.last_index + 1 != after.first_index:
        return
    if before.proposal_count is not None:
        proposal = before.first_proposal + before.proposal_count
        if after.first_proposal != proposal:
            rule = f"first proposal {after.first_proposal} where {proposal} belongs"
            yield Finding(Level.ERROR, after.path, 0, "WRONG_PROPOSAL", rule, ADVICE_PEER)
    for name, earlier, later in (
        ("term", before.terms, after.terms),
        ("timestamp", before.timestamps_ns, after.timestamps_ns),
    ):
        if earlier is not None and later is not None and later[0] < earlier[1]:
            rule = f"starts with {name} {later[0]}, the file before ends with {earlier[1]}"
            yield Finding(Level.ERROR, after.path, None, "WRONG_ORDER", rule, ADVICE_PEER)
