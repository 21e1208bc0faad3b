"""``onelog serve`` behind the command line: from arguments to a running node.

All settings are checked before anything is opened. The process ends normally after a shutdown that
was asked for; anything else that ends it is raised as an error.

The node logs to stderr: lines for people, or one JSON object per line for machines. Both include
the fields that a caller attached with ``extra={"fields": {...}}``. Line breaks and control
characters in a message are escaped, so a peer or a client cannot forge a line.
"""

import gc
import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from onelog.cluster.errors import ClusterError
from onelog.node.config.sources import SETTINGS, Flag, Loaded, flags, help_text, load
from onelog.node.credentials import Credentials
from onelog.node.errors import ConfigError, NodeError, OutOfMemory
from onelog.node.replica.driver import run_until_complete
from onelog.node.server.descriptors import raise_limit
from onelog.node.server.server import Server, new_node
from onelog.node.server.workers import Supervisor, watch_parent
from onelog.node.services import SERVICES
from onelog.ual.directory import Node
from onelog.ual.errors import UalError, is_out_of_memory

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def set_up_logging(level: str, style: str, always: Mapping[str, Any]) -> None:
    """Log to stderr in this style; ``always`` holds fields of every JSON line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines(always) if style == "json" else _PlainLines(always))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)  # of libraries: only what matters
    logging.getLogger("onelog").setLevel(_LEVELS[level])


def _time_text(seconds: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1000):03d}Z"


class _PlainLines(logging.Formatter):
    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        worker = always.get("worker")
        self._mark = "" if worker is None else f" [{worker}]"

    def format(self, record: logging.LogRecord) -> str:
        fields = getattr(record, "fields", {})
        shown = "".join(f" {name}={value}" for name, value in fields.items())
        level = "" if record.levelno == logging.INFO else f" {record.levelname}"
        text = (
            f"{_time_text(record.created)}{self._mark}{level} {record.name}: "
            f"{record.getMessage()}{shown}"
        )
        line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
        if record.exc_info:
            line = f"{line}\n{self.formatException(record.exc_info)}"
        return line


class _JsonLines(logging.Formatter):
    def __init__(self, always: Mapping[str, Any]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **self._always,
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


# Main

# How a supervisor passes a worker its number and the node's id. Internal: not in the help.
WORKER_FLAG = "--worker-of"
_WORKER = re.compile(r"([0-9]{1,3}):([0-9a-f-]{36})")

# A group makes thousands of objects that live for milliseconds, hardly one of them in a cycle.
# A collection after every 700 took a twentieth to a tenth of an append's or enqueue's CPU time.
GARBAGE_OBJECTS = 20_000
# How long a thread that has synced waits for a busy one: by default 5 ms, which is more than a
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
        Credentials(config.security)  # each worker would end because of a bad one
        command = [sys.executable, "-m", "onelog.cli.main", "serve", *arguments]
        run_until_complete(Supervisor(config, command).run())
    else:
        _tune_interpreter()
        raise_limit()
        run_until_complete(_serve(loaded, place))


def _tune_interpreter() -> None:
    gc.collect()
    gc.freeze()  # modules and classes stay
    gc.set_threshold(GARBAGE_OBJECTS)
    sys.setswitchinterval(THREAD_SWITCH_S)


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
    try:
        await server.run()
    except BaseException as error:
        if is_out_of_memory(error):
            raise OutOfMemory(server.describe_held()) from error
        if isinstance(error, BaseExceptionGroup):
            raise find_cause(error) from error
        raise


_KNOWN = (NodeError, ClusterError, UalError)


def find_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error that ended a group of tasks: the first one that onelog raises on purpose.

    Without one, the first of all. A group as such says nothing to operators.
    """
    leaves = [*_leaves(group)]
    return next((each for each in leaves if isinstance(each, _KNOWN)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


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
            loaded.find_origin(key),
            each.help,
        )
        for key, each in SETTINGS.items()
    ]
