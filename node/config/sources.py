"""Where settings come from: flags before the environment before a file before the defaults.

The file is TOML: named by ``--config`` or ONELOG_CONFIG, otherwise there is none; a file that just
lies in the current directory is not looked for. Whatever is not known is refused with the nearest
name that is: a misspelt setting that was silently ignored would be found out by an accident. Each
value remembers its origin, for ``onelog config show`` and for messages.

ONELOG_ENDPOINTS and variables that begin with ONELOG_CLIENT_ or ONELOG_TEST_ are not settings of a
server.
"""

import argparse
import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from onelog.node.config.schema import Config, check_config, with_shards
from onelog.node.config.settings import BadValue, Kind, Setting, built, list_settings
from onelog.node.errors import ConfigError

SETTINGS = {each.key: each for each in list_settings(Config)}
FILE_FLAG, FILE_VARIABLE = "--config", "ONELOG_CONFIG"
FILE_SIZE_MAX = 1 << 20
DEFAULT = "default"
_PREFIX = "ONELOG_"
_NOT_OURS = ("ONELOG_CLIENT_", "ONELOG_ENDPOINTS", "ONELOG_TEST_")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration, and by key where each value that was set came from."""

    config: Config
    origins: Mapping[str, str]

    def find_origin(self, key: str) -> str:
        """Return where the value of a key came from."""
        return self.origins.get(key, DEFAULT)


class UnknownFlag(ConfigError):
    """The command line has something that is no setting."""

    reason = "USAGE"


def load(arguments: Sequence[str], environment: Mapping[str, str]) -> Loaded:
    """Return the effective configuration, or raise ``ConfigError``."""
    flags = _read_flags(arguments)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(each: Setting, given: object, origin: str) -> None:
        try:
            values[each.key] = each.read(given)
        except BadValue as error:
            raise ConfigError(f"{each.key} ({origin}) {error}") from error
        origins[each.key] = origin

    path = flags.pop(FILE_FLAG, None) or environment.get(FILE_VARIABLE)
    if path:
        for key, given in _read_file(Path(path)).items():
            take(SETTINGS[key], given, path)
    variables = {each.variable: each for each in SETTINGS.values()}
    for name, given in sorted(environment.items()):
        if not name.startswith(_PREFIX) or name.startswith(_NOT_OURS) or name == FILE_VARIABLE:
            continue
        if name not in variables:
            raise ConfigError(f"the variable {name} is no setting{_nearest(name, variables)}")
        take(variables[name], given, name)
    for key, given in flags.items():
        take(SETTINGS[key], given, SETTINGS[key].flag)
    for key, value in values.items():
        if value is None and SETTINGS[key].default is not None:
            raise ConfigError(f"{key} ({origins[key]}) is empty")
    config = with_shards(replace(built(Config, values), given=frozenset(values)))
    loaded = Loaded(config, origins)
    check_config(config, loaded.find_origin)
    return loaded


def help_text(program: str, about: str) -> str:
    """Return the help of a command that takes every setting as a flag."""
    return _parser(program, about).format_help()


@dataclass(frozen=True, slots=True)
class Flag:
    """What shell completion needs to know of a flag."""

    names: tuple[str, ...]
    help: str
    choices: tuple[str, ...]
    takes_value: bool  # always; a boolean may also stand alone


def flags() -> list[Flag]:
    """Return all flags that ``load`` reads."""
    return [
        Flag(
            tuple(action.option_strings),
            (action.help or "").replace("%%", "%"),
            SETTINGS[action.dest].choices if action.dest in SETTINGS else (),
            takes_value=action.nargs is None,
        )
        for action in _parser("onelog serve")._actions
    ]


def _read_flags(arguments: Sequence[str]) -> dict[str, str]:
    """Return the text of each flag by key; the file's by ``FILE_FLAG``."""
    found = vars(_parser("onelog serve").parse_args(list(arguments)))
    return {key: text for key, text in found.items() if text is not None}


class _Parser(argparse.ArgumentParser):
    """Raises an error where ``ArgumentParser`` would end the process."""

    def error(self, message: str) -> NoReturn:
        """See ``ArgumentParser``."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            flag = unknown.split()[0].partition("=")[0]
            flags = [option for action in self._actions for option in action.option_strings]
            raise UnknownFlag(f"{flag} is no setting{_nearest(flag, flags)}; try --help")
        raise UnknownFlag(f"{message}; try --help")


def _parser(program: str, about: str = "") -> _Parser:
    parser = _Parser(
        prog=program,
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
        allow_abbrev=False,
        usage="%(prog)s [FLAGS]",
    )
    general = parser.add_argument_group("general")
    general.add_argument(
        FILE_FLAG,
        dest=FILE_FLAG,
        metavar="FILE",
        help=f"A TOML file with settings ({FILE_VARIABLE}).",
    )
    general.add_argument("--help", "-h", action="store_true", default=None, help="Show this.")
    sections: dict[str, argparse._ArgumentGroup] = {}
    for each in SETTINGS.values():
        group = sections.setdefault(each.section, parser.add_argument_group(each.section))
        default = each.show(each.default)
        shown = f" (default {default})" if default else ""
        # A percent sign would be taken for a placeholder.
        text = (each.help + shown).replace("%", "%%")
        group.add_argument(
            each.flag,
            dest=each.key,
            metavar="{" + ",".join(each.choices) + "}" if each.choices else _metavar(each),
            nargs="?" if each.kind is Kind.BOOLEAN else None,
            const="true" if each.kind is Kind.BOOLEAN else None,
            help=text,
        )
    return parser


def _metavar(each: Setting) -> str:
    return {
        Kind.INTEGER: "N",
        Kind.NUMBER: "X",
        Kind.BOOLEAN: "BOOL",
        Kind.TEXT: "TEXT",
        Kind.NAME: "NAME",
        Kind.PATH: "PATH",
        Kind.SIZE: "SIZE",
        Kind.ADDRESS: "HOST:PORT",
        Kind.ADDRESSES: "HOST:PORT,…",
        Kind.MEMBERS: "NAME=HOST:PORT,…",
    }[each.kind]


def _read_file(path: Path) -> dict[str, object]:
    """Return what a TOML file says by key."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    if len(data) > FILE_SIZE_MAX:
        raise ConfigError(f"{path} has more than {FILE_SIZE_MAX} bytes")
    try:
        tables = tomllib.loads(data.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    found: dict[str, object] = {}
    sections = {each.section for each in SETTINGS.values()}
    for section, table in tables.items():
        if section not in sections:
            known = [*sections, *SETTINGS]
            raise ConfigError(f"{path}: {section} is no section{_nearest(section, known)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section} is not a section; write [{section}]")
        for name, given in table.items():
            key = f"{section}.{name}"
            if key not in SETTINGS:
                raise ConfigError(f"{path}: {key} is no setting{_nearest(key, SETTINGS)}")
            found[key] = given
    return found


def _nearest(name: str, known: object) -> str:
    assert isinstance(known, Sequence | Mapping)
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""
