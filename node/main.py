"""``onelog serve`` behind the command line: from arguments to a running node.

Everything that can be wrong with the settings is said before anything is opened. The process ends
normally after a shutdown that was asked for; whatever else ends it comes out as an error.
"""

import gc
import logging
import re
import resource
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from onelog.node.config.sources import SETTINGS, Flag, Loaded, flags, help_text, load
from onelog.node.errors import ConfigError
from onelog.node.logs import set_up_logging
from onelog.node.replica.driver_driver import run_until_complete
from onelog.node.server.server import Server, new_node
from onelog.node.server.workers import Supervisor, watch_parent
from onelog.node.services import SERVICES
from onelog.ual.directory import Node

# How a supervisor tells a worker its number and the node's id; not for people.
WORKER_FLAG = "--worker-of"
_WORKER = re.compile(r"([0-9]{1,3}):([0-9a-f-]{36})")

# A group makes thousands of objects that live for milliseconds, hardly one of them in a cycle: to
# look at them after every 700 took a twentieth to a tenth of an append's or enqueue's CPU time.
GARBAGE_OBJECTS = 20_000
# A thread that has synced waits so long for one that is busy: by default 5 ms, which is more than a
# sync takes.
THREAD_SWITCH_S = 0.0005

_log = logging.getLogger("onelog.node")


def serve_help(about: str) -> str:
    """Return the help of ``onelog serve``: what it does and examples, then every flag."""
    return help_text("onelog serve", about)


def serve_flags() -> list[Flag]:
    """Return the flags of ``onelog serve``."""
    return flags()


def serve(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a node, or one worker of a node, until it is asked to stop."""
    arguments, place = _take_worker(arguments)
    loaded = load(arguments, environment)
    config = loaded.config
    always = {"node": config.node.name} | ({} if place is None else {"worker": place[0]})
    set_up_logging(config.logging.level, config.logging.format, always)
    if place is None and config.node.workers > 1:
        command = [sys.executable, "-m", "onelog.cli.main", "serve", *arguments]
        run_until_complete(Supervisor(config, command).run())
    else:
        _tune_interpreter()
        _allow_open_files()
        run_until_complete(_serve(loaded, place))


def _tune_interpreter() -> None:
    gc.collect()
    gc.freeze()  # modules and classes stay
    gc.set_threshold(GARBAGE_OBJECTS)
    sys.setswitchinterval(THREAD_SWITCH_S)


def _allow_open_files() -> None:
    """Raise the limit of open files as far as this process may: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # where the most is without a limit, it may not be set
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(loaded: Loaded, place: tuple[int, UUID] | None) -> None:
    config = loaded.config
    node: Node | None = None
    worker = 0
    if place is not None:
        worker, node_id = place
        made = new_node(config)
        node = Node(node_id, made.name, made.created_at)
    server = Server(config, SERVICES, worker=worker, node=node)
    server.stop_on_signals()
    if place is not None:
        watch_parent(server.stop)
    if config.security.insecure_bind:
        _log.warning("listening beyond this machine without TLS, as security.insecure_bind says")
    elif config.security.api_cert is None:
        _log.info("no TLS is set up: listening on this machine only")
    await server.run()


def _take_worker(arguments: Sequence[str]) -> tuple[list[str], tuple[int, UUID] | None]:
    left = list(arguments)
    if WORKER_FLAG not in left:
        return left, None
    at = left.index(WORKER_FLAG)
    found = _WORKER.fullmatch(left[at + 1]) if at + 1 < len(left) else None
    if found is None:
        raise ConfigError(f"{WORKER_FLAG} is for workers of a node only")
    del left[at : at + 2]
    return left, (int(found[1]), UUID(found[2]))


def effective(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> list[tuple[str, str, str, str]]:
    """Return key, value, origin and help of every setting."""
    loaded = load(arguments, environment)
    return [
        (
            key,
            each.show(getattr(getattr(loaded.config, each.section), each.field)),
            loaded.origin_of(key),
            each.help,
        )
        for key, each in SETTINGS.items()
    ]
