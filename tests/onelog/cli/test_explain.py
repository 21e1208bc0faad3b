"""``onelog explain``: the list of reasons, in a terminal."""

import json

from onelog.projections.reasons import Reason
from onelog.reasons import ALARMS, CALLS
from tests.onelog.cli.commands import Cli


def test_a_reason_is_explained_with_its_class_and_exit_code(cli: Cli) -> None:
    (found,) = map(json.loads, cli("explain", "transfer_failed", "--json").out.splitlines())
    assert (found["error"], found["exit_code"]) == ("FailedPrecondition", 4)
    shown = cli("explain", "DISK_FULL").out
    assert "alarms" in shown
    assert "ResourceExhausted" in shown


def test_without_a_reason_all_are_listed(cli: Cli) -> None:
    found = [json.loads(line)["reason"] for line in cli("explain", "--json").out.splitlines()]
    assert set(found) >= {*CALLS, *ALARMS, *Reason.__members__}


def test_what_is_no_reason_is_not_found(cli: Cli) -> None:
    assert "there is no reason NOBODY" in cli("explain", "nobody", code=3).err
