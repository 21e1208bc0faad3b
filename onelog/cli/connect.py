"""How commands reach a database: endpoints, namespace, timeout, credentials.

Each setting comes from the first of these that has it; only this module knows the order.

1. the flag (``--endpoint``)
2. the variable (``ONELOG_ENDPOINTS``; all others begin with ``ONELOG_CLIENT_``)
3. the file: ``--config``, else ``ONELOG_CLIENT_CONFIG``, else ``~/.config/onelog/client.toml``
   (below ``XDG_CONFIG_HOME`` if that is set), which need not exist
4. the default

A wrong setting is refused, with its origin, before any server is called. If no endpoint answers, a
command fails within CONNECT_S, if all refuse a connection within REFUSED_S, however long its calls
may take.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from onelog.cli.failure import CommandFailed
from onelog.cli.values import duration_s, parse_endpoint

if TYPE_CHECKING:
    from onelog import Client, ClientOptions
    from onelog.client.options import Durability

DEFAULT_ENDPOINT = "127.0.0.1:7400"
DEFAULT_TIMEOUT = "10s"
CONNECT_S = 5.0  # without any answer: a busy machine may take a while
REFUSED_S = 1.0

# Each setting and its variable.
VARIABLES = {
    "endpoints": "ONELOG_ENDPOINTS",
    "namespace": "ONELOG_CLIENT_NAMESPACE",
    "timeout": "ONELOG_CLIENT_TIMEOUT",
    "durability": "ONELOG_CLIENT_DURABILITY",
    "tls": "ONELOG_CLIENT_TLS",
    "tls_ca": "ONELOG_CLIENT_TLS_CA",
    "tls_cert": "ONELOG_CLIENT_TLS_CERT",
    "tls_key": "ONELOG_CLIENT_TLS_KEY",
    "tls_name": "ONELOG_CLIENT_TLS_NAME",
}
FILE_VARIABLE = "ONELOG_CLIENT_CONFIG"
_DEFAULTS = {"endpoints": DEFAULT_ENDPOINT, "timeout": DEFAULT_TIMEOUT, "durability": "sync"}
_YES = frozenset(("1", "true", "yes", "on"))
_NO = frozenset(("", "0", "false", "no", "off"))
FLAG_ORIGIN, DEFAULT_ORIGIN = "the command line", "default"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its text, and where it comes from."""

    name: str
    text: str
    origin: str

    @property
    def is_yes(self) -> bool:
        """Whether a switch is on."""
        if self.text.lower() not in _YES | _NO:
            raise self.wrong("is neither yes nor no")
        return self.text.lower() in _YES

    def wrong(self, why: str) -> CommandFailed:
        """Return the error for a setting that cannot be used."""
        return CommandFailed("USAGE", f"{self.name} '{self.text}' of {self.origin} {why}")


def find_settings(
    flags: Mapping[str, str], config: Path | None, environment: Mapping[str, str]
) -> dict[str, Setting]:
    """Return every setting, from the first source that has it."""
    path, from_file = _file_settings(config, environment)
    found = {}
    for name, variable in VARIABLES.items():
        if flags.get(name):
            found[name] = Setting(name, flags[name], FLAG_ORIGIN)
        elif environment.get(variable):
            found[name] = Setting(name, environment[variable], variable)
        elif name in from_file:
            found[name] = Setting(name, from_file[name], str(path))
        else:
            found[name] = Setting(name, _DEFAULTS.get(name, ""), DEFAULT_ORIGIN)
    return found


def _file_settings(
    config: Path | None, environment: Mapping[str, str]
) -> tuple[Path, dict[str, str]]:
    """Return the path of the file, and its settings."""
    named = config or environment.get(FILE_VARIABLE)
    home = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "/")) / ".config"
    path = Path(named) if named else Path(home) / "onelog" / "client.toml"
    try:
        document = tomllib.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        if named:
            raise
        return path, {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandFailed("CONFIG_INVALID", f"{path} is not TOML: {error}") from None
    unknown = sorted(set(document) - set(VARIABLES))
    if unknown:
        raise CommandFailed(
            "CONFIG_INVALID",
            f"{path} has '{unknown[0]}'; settings are {', '.join(VARIABLES)}",
        )
    return path, {name: _text(path, name, value) for name, value in document.items()}


def _text(path: Path, name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "endpoints" and isinstance(value, list):
        return ",".join(map(str, value))
    if not isinstance(value, str):
        raise CommandFailed("CONFIG_INVALID", f"{name} of {path} is no text")
    return value


def connect(settings: Mapping[str, Setting]) -> "Client":
    """Return a client that has reached a server; the caller closes it."""
    from onelog import Client

    options, durability = to_options(settings), parse_durability(settings["durability"])
    client = Client(parse_endpoints(settings["endpoints"]), options=options)
    try:
        first = client.scoped(timeout_s=min(CONNECT_S, options.timeout_s))
        first.connect(refused_s=REFUSED_S)
    except BaseException:
        client.close()
        raise
    view = client.scoped(durability=durability)
    namespace = settings["namespace"].text
    return view.namespace(namespace) if namespace else view


def to_options(settings: Mapping[str, Setting]) -> "ClientOptions":
    """Return the options of a client with these settings."""
    from onelog import ClientOptions

    tls = _tls(settings)
    return ClientOptions(timeout_s=parse_timeout(settings["timeout"]), tls=tls)


def parse_durability(setting: Setting) -> "Durability":
    """Parse the durability of writes."""
    if setting.text not in ("sync", "async"):
        raise setting.wrong("is neither sync nor async")
    # Of commands, which change many things: those that cannot be async are sync.
    return "prefer-async" if setting.text == "async" else "sync"


def parse_endpoints(setting: Setting) -> Sequence[str]:
    """Parse a list of ``host:port``, separated by commas."""
    given = [each.strip() for each in setting.text.split(",") if each.strip()]
    try:
        endpoints = [parse_endpoint(each) for each in given]
    except typer.BadParameter as error:
        raise setting.wrong(f"cannot be used: {error.message}") from None
    if not endpoints:
        raise setting.wrong("has no endpoint")
    return endpoints


def parse_timeout(setting: Setting) -> float:
    """Parse how long a call may take, in seconds."""
    try:
        timeout_s = duration_s(setting.text)
    except typer.BadParameter:
        raise setting.wrong("is no duration like 5s or 500ms") from None
    if not timeout_s:
        raise setting.wrong("must be above 0")
    return timeout_s


def _tls(settings: Mapping[str, Setting]) -> Any:
    from onelog import Tls

    parts = {name: settings[name].text for name in ("tls_ca", "tls_cert", "tls_key", "tls_name")}
    if not any(parts.values()) and not settings["tls"].is_yes:
        return None
    if bool(parts["tls_cert"]) != bool(parts["tls_key"]):
        raise CommandFailed("USAGE", "tls_cert and tls_key belong together")
    ca, certificate, key = (
        Path(os.path.expanduser(parts[name])).read_bytes() if parts[name] else None
        for name in ("tls_ca", "tls_cert", "tls_key")
    )
    return Tls(ca=ca, certificate=certificate, key=key, server_name=parts["tls_name"] or None)
