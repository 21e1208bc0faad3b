"""``onelog serve`` on a machine that computes wrongly: it applies puts with another byte.

As bad memory would: the log has what the client sent, and only the state of this process differs.
"""

from collections.abc import Sequence
from typing import Any

from onelog.cli.main import main
from onelog.node.config.schema import Config
from onelog.node.server.workers import Supervisor
from onelog.projections.kv.commands import TYPE_PUT
from onelog.projections.router import ProjectionRouter
from onelog.ual.entry import Entry

_apply_group, _init = ProjectionRouter.apply_group, Supervisor.__init__


def _start_liars(supervisor: Supervisor, config: Config, command: Sequence[str]) -> None:
    own = ("tests.system.lying_node" if each == "onelog.cli.main" else each for each in command)
    _init(supervisor, config, tuple(own))


def _apply_wrongly(router: ProjectionRouter, entries: Sequence[Entry]) -> Any:
    return _apply_group(router, [_change(entry) for entry in entries])


def _change(entry: Entry) -> Entry:
    if entry.entry_type != TYPE_PUT:
        return entry
    return entry._replace(payload=entry.payload[:-1] + bytes([entry.payload[-1] ^ 1]))


if __name__ == "__main__":
    ProjectionRouter.apply_group = _apply_wrongly  # type: ignore[assignment,method-assign]
    Supervisor.__init__ = _start_liars  # type: ignore[assignment,method-assign]
    main()
