"""Which settings do not fit together.

Each rule names the settings, and where their values came from, since the one that is wrong may
stand in a file that the reader of the message has not seen.
"""

import ipaddress
from collections.abc import Callable
from pathlib import Path

from onelog.cluster.raft.membership import VOTERS_MAX
from onelog.node.config.schema import Config
from onelog.node.errors import ConfigError
from onelog.ual.errors import DirectoryError

# Where the value of a key came from, for messages: "--name" or "onelog.toml".
OriginOf = Callable[[str], str]


def check_config(config: Config, origin_of: OriginOf) -> None:
    """Refuse values that cannot work together."""

    def refuse(key: str, rule: str) -> None:
        raise ConfigError(f"{key} ({origin_of(key)}) {rule}")

    for section, make in (
        ("raft", config.raft_config),
        ("shard", config.shard_config),
        ("log", config.log_config),
        ("snapshot", config.trigger_config),
        ("as_of", config.as_of_config),
        ("transport", config.transport_config),
    ):
        try:
            make()
        except ValueError as error:
            given = sorted(key for key in config.given if key.startswith(f"{section}."))
            shown = ", ".join(f"{key} ({origin_of(key)})" for key in given)
            raise ConfigError(
                f"section {section}: {error}; set here: {shown or 'nothing'}"
            ) from error
    try:
        assert config.topology
    except DirectoryError as error:
        raise ConfigError(
            f"cluster.shards ({origin_of('cluster.shards')}), "
            f"cluster.partitions ({origin_of('cluster.partitions')}): {error}"
        ) from error
    if config.node.workers > config.cluster.shards:
        refuse(
            "node.workers",
            f"is {config.node.workers} for {config.cluster.shards} shards; "
            "some would have nothing to do",
        )
    if config.shard.group_bytes_max > config.shard.request_bytes_max:
        refuse("shard.group_bytes_max", "is above shard.request_bytes_max")
    _check_listening(config, refuse)
    _check_cluster(config, refuse)
    _check_certificates(config, refuse)


def _check_listening(config: Config, refuse: Callable[[str, str], None]) -> None:
    listen, workers = config.listen, config.node.workers
    is_secure = {
        "api": config.security.api_cert is not None,
        "peers": config.security.peer_cert is not None,
        "http": False,
    }
    ranges: dict[str, range] = {}
    for name, address in (("api", listen.api), ("peers", listen.peers), ("http", listen.http)):
        key = f"listen.{name}"
        if (
            not is_secure[name]
            and not _is_loopback(address.host)
            and not config.security.insecure_bind
        ):
            refuse(
                key,
                f"is {address}, which others can reach, without TLS; give certificates, listen on "
                "127.0.0.1, or say --insecure-bind",
            )
        if address.port == 0 and workers > 1:
            refuse(key, "is port 0, which works for one worker only; give a port")
        if address.port + workers - 1 > 65_535:
            refuse(key, f"is {address}; there is no room for the ports of {workers} workers")
        ports = range(address.port, address.port + workers)
        for other, taken in ranges.items():
            if address.port and max(ports[0], taken[0]) <= min(ports[-1], taken[-1]):
                refuse(
                    key,
                    f"and {other} overlap: {workers} workers take ports {ports[0]} to {ports[-1]} "
                    f"and {taken[0]} to {taken[-1]}",
                )
        ranges[key] = ports
    for name, address in (("api", listen.api), ("peers", listen.peers)):
        given = getattr(config.advertise, name)
        if given is None and _is_wildcard(address.host):
            refuse(
                f"listen.{name}",
                f"is {address}, which others cannot call; set advertise.{name} to what they can",
            )
        if given is not None and (given.port == 0 or _is_wildcard(given.host)):
            refuse(f"advertise.{name}", f"is {given}, which nobody can call")


def _is_loopback(host: str) -> bool:
    """Tell whether nobody but this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_wildcard(host: str) -> bool:
    """Tell whether an address means all of this machine's."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _check_cluster(config: Config, refuse: Callable[[str, str], None]) -> None:
    initial, name = dict(config.cluster.initial), config.node.name
    if initial and config.cluster.join:
        refuse(
            "cluster.join", "and cluster.initial exclude each other: found a cluster, or join one"
        )
    if initial and name not in initial:
        refuse(
            "node.name",
            f"is {name}, which is not in cluster.initial ({', '.join(initial)}); "
            "a founder is named there",
        )
    if len(initial) > VOTERS_MAX:
        refuse(
            "cluster.initial", f"names {len(initial)} nodes; at most {VOTERS_MAX} found a cluster"
        )
    for each in initial.values():
        if each.port == 0:
            refuse("cluster.initial", f"has {each}; others need a port to call")
    if (initial or config.cluster.join) and config.listen.peers.port == 0:
        refuse("listen.peers", "is port 0; a node of a cluster needs a port that others know")


def _check_certificates(config: Config, refuse: Callable[[str, str], None]) -> None:
    security = config.security
    for one, other in (
        ("api_cert", "api_key"),
        ("api_key", "api_cert"),
        ("api_client_ca", "api_cert"),
        ("peer_cert", "peer_key"),
        ("peer_key", "peer_cert"),
        ("peer_cert", "peer_ca"),  # nodes always prove who they are to each other
        ("peer_ca", "peer_cert"),
    ):
        if getattr(security, one) is not None and getattr(security, other) is None:
            refuse(f"security.{one}", f"is of no use without security.{other}")
    for name in ("api_cert", "api_key", "api_client_ca", "peer_cert", "peer_key", "peer_ca"):
        path: Path | None = getattr(security, name)
        if path is not None and not path.is_file():
            refuse(f"security.{name}", f"is {path}, where there is no file")
