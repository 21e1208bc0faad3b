"""Every setting of a node: the one place that knows what can be set, and to what.

Each field describes itself (``node/config/settings.py``), and each section converts itself into the
configuration object of its component, whose defaults it takes over.

``check_config`` refuses values that are valid one by one but do not work together. It runs before
anything is opened. Its messages name the settings and where their values came from, since the wrong
one may be in a file that the reader of the message has not seen.

Without TLS a node listens on loopback only, unless ``security.insecure_bind`` is set: anyone who
can reach the peer port can write to the log.

Not a setting: the limit of unsynced bytes (``LogConfig.unsynced_bytes_max``). It belongs to the
directory: with a lower value, recovery would take a torn tail for corruption.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from onelog.cluster.config import RaftConfig, ShippingConfig
from onelog.cluster.raft.membership import VOTERS_MAX
from onelog.cluster.transport.outbox import OutboxLimits
from onelog.cluster.transport.peers import TransportConfig
from onelog.cluster.transport.wire import MESSAGE_SIZE_MAX
from onelog.node.config.settings import Address, Kind, setting
from onelog.node.errors import ConfigError
from onelog.node.replica.requests import ShardConfig
from onelog.node.snapshots.past import AsOfConfig
from onelog.node.snapshots.taking import BuilderLimits
from onelog.snapshot.store import KEPT_MAX, KEPT_MIN, PAST_S_MAX, KeepConfig
from onelog.snapshot.trigger import TriggerConfig
from onelog.ual.directory import (
    PARTITIONS_DEFAULT,
    PARTITIONS_MAX,
    SHARDS_DEFAULT,
    SHARDS_MAX,
    Topology,
)
from onelog.ual.errors import DirectoryError
from onelog.ual.log_config import LogConfig

WORKERS_MAX = 256
API_PORT, PEER_PORT, HTTP_PORT = 7400, 7500, 7600
_LOOPBACK = "127.0.0.1"
_RAFT, _LOG, _SHARD, _SHIPPING = RaftConfig(), LogConfig(), ShardConfig(), ShippingConfig()
_TRANSPORT, _OUTBOX = TransportConfig(), OutboxLimits()
_TRIGGER, _BUILDER, _AS_OF = TriggerConfig(), BuilderLimits(), AsOfConfig()
_KEEP = KeepConfig()


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """This node."""

    name: str = setting(
        "n1", "The node's name, for people and for --initial-cluster.", name="name", kind=Kind.NAME
    )
    data_dir: Path = setting(
        Path("onelog-data"), "Data directory. Each node needs its own.", name="data-dir"
    )
    require_data: bool = setting(
        False,
        "Refuse to start if the data directory holds no database: found or join none.",
        name="require-data",
    )
    keep_after_removal: bool = setting(
        False,
        "Keep the process for inspection when the cluster has removed this node, rather than end.",
        name="keep-after-removal",
    )
    workers: int = setting(
        1,
        "Worker processes, which share the shards; worker w listens on port + w. The same on all "
        "nodes.",
        name="workers",
        minimum=1,
        maximum=WORKERS_MAX,
    )


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """Where this node listens."""

    api: Address = setting(
        Address(_LOOPBACK, API_PORT),
        "Address for clients (gRPC). Port 0: any free port.",
        name="listen",
    )
    peers: Address = setting(
        Address(_LOOPBACK, PEER_PORT), "Address for other nodes.", name="peer-listen"
    )
    http: Address = setting(
        Address(_LOOPBACK, HTTP_PORT),
        "Address of /metrics, /healthz and /ready (HTTP).",
        name="http-listen",
    )


@dataclass(frozen=True, slots=True)
class AdvertiseSettings:
    """Where others reach this node, if that is not where it listens."""

    api: Address | None = setting(None, "Address that clients should use.", name="advertise")
    peers: Address | None = setting(
        None, "Address that other nodes should use.", name="peer-advertise"
    )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster that this node is a part of."""

    name: str = setting(
        "onelog", "Name of the cluster; nodes of other clusters are refused.", name="cluster-name",
        kind=Kind.NAME,
    )  # fmt: skip
    initial: tuple[tuple[str, Address], ...] = setting(
        (),
        "The nodes that found a cluster, this one included, by name and peer address; the same "
        "list on all. Empty: a cluster of one.",
        name="initial-cluster",
        kind=Kind.MEMBERS,
    )
    join: tuple[Address, ...] = setting(
        (),
        "Peer addresses of an existing cluster: start as a new node and wait to be added.",
        name="join",
        kind=Kind.ADDRESSES,
    )
    shards: int = setting(
        1,
        "Shards (Raft groups); fixed when a database is founded. If it is not set, a node by "
        f"itself has one for each worker, and a cluster has {SHARDS_DEFAULT}.",
        name="shards",
        minimum=1,
        maximum=SHARDS_MAX,
    )
    partitions: int = setting(
        PARTITIONS_DEFAULT, "Partitions that keys hash to; fixed when a cluster is founded.",
        name="partitions", minimum=1, maximum=PARTITIONS_MAX,
    )  # fmt: skip
    balance_leaders: bool = setting(
        True, "Spread the leaderships evenly over the nodes.", name="balance-leaders"
    )
    balance_period_s: float = setting(
        1.0, "Seconds between two leadership transfers for balance.", minimum=0.1, maximum=3600
    )


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """Certificates, and what is allowed without."""

    api_cert: Path | None = setting(None, "Server certificate for clients (PEM).", name="tls-cert")
    api_key: Path | None = setting(None, "Its private key (PEM).", name="tls-key")
    api_client_ca: Path | None = setting(
        None, "CA certificates (PEM) for clients; if set, clients must present a certificate.",
        name="tls-client-ca",
    )  # fmt: skip
    peer_cert: Path | None = setting(
        None,
        "Certificate for connections between nodes (PEM), as server and client.",
        name="peer-tls-cert",
    )
    peer_key: Path | None = setting(None, "Its private key (PEM).", name="peer-tls-key")
    peer_ca: Path | None = setting(
        None, "CA certificates (PEM) for other nodes.", name="peer-tls-ca"
    )
    insecure_bind: bool = setting(
        False, "Allow to listen beyond loopback without TLS: all who connect have full access.",
        name="insecure-bind",
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What clients may ask for."""

    message_bytes_max: int = setting(
        16 << 20, "Largest message from or to a client.", kind=Kind.SIZE,
        minimum=64 << 10, maximum=1 << 30,
    )  # fmt: skip
    connections_max: int = setting(
        16_384, "Client connections; more are closed.", minimum=1, maximum=1 << 20
    )
    connections_per_address_max: int = setting(
        0, "Client connections of one address; more are closed. 0: half of all.",
        minimum=0, maximum=1 << 20,
    )  # fmt: skip
    streams_max: int = setting(
        1024, "Concurrent calls on one connection.", minimum=1, maximum=1 << 20
    )
    concurrent_rpcs_max: int = setting(
        16_384, "Concurrent calls of all clients; more are refused.", minimum=1, maximum=1 << 20
    )
    in_flight_bytes_max: int = setting(
        256 << 20, "Bytes of all requests in progress; more are refused.", kind=Kind.SIZE,
        minimum=1 << 20,
    )  # fmt: skip
    consumer_return_s_max: float = setting(
        15.0, "How long a new leader keeps messages that were pushed to a consumer for it; then "
        "they are released.", minimum=0.1, maximum=86_400,
    )  # fmt: skip
    log_streams_max: int = setting(
        16, "Concurrent ReadLogFrames and ReadSnapshot streams; more are refused.",
        minimum=1, maximum=4096,
    )  # fmt: skip
    log_bytes_per_s_beside_writes: int = setting(
        32 << 20, "Bytes a second of ReadLogFrames and ReadSnapshot in all while entries are "
        "written; 0 for no limit.", kind=Kind.SIZE, minimum=0,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """The HTTP port."""

    connections_max: int = setting(
        64,
        "Concurrent connections; for another, the one answered longest ago is closed.",
        minimum=1,
        maximum=65_536,
    )
    request_s_max: float = setting(
        10.0, "Time limit for receiving and answering a request.", minimum=0.1, maximum=600
    )
    header_bytes_max: int = setting(
        16 << 10, "Largest request head.", kind=Kind.SIZE, minimum=512, maximum=1 << 20
    )
    keep_alive_s_max: int = setting(
        75, "A connection without a request is closed after this long.", minimum=1, maximum=86_400
    )


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """What the node says on stderr."""

    level: str = setting(
        "info", "Lowest level that is logged.", choices=("debug", "info", "warning", "error")
    )
    format: str = setting(
        "plain", "Plain text, or one JSON object per line.", choices=("plain", "json")
    )


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Spans of requests (node/tracing.py)."""

    file: Path | None = setting(None, "File for spans, as OTLP JSON. Empty: no tracing.")
    ratio: float = setting(
        0.01, "Fraction of requests to trace, if the caller has not decided.",
        minimum=0, maximum=1,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """How a node ends."""

    drain_s: float = setting(5.0, "Time for calls in progress to finish.", minimum=0, maximum=3600)
    transfer_s: float = setting(3.0, "Time for leadership transfers.", minimum=0, maximum=600)


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times and limits of consensus; the same on all nodes, or elections get unfair."""

    heartbeat_s: float = setting(
        _RAFT.heartbeat_s, "Heartbeat interval of a leader.", minimum=0.005, maximum=60
    )
    election_s_min: float = setting(
        _RAFT.election_s_min, "Shortest election timeout.", minimum=0.015, maximum=600
    )
    election_s_max: float = setting(
        _RAFT.election_s_max, "Longest election timeout.", minimum=0.015, maximum=600
    )
    leader_silence_s_max: float = setting(
        _RAFT.leader_silence_s_max, "A leader steps down after this long without a majority.",
        minimum=0.015, maximum=600,
    )  # fmt: skip
    frame_bytes_max: int = setting(
        _RAFT.frame_bytes_max, "Largest append message to a peer.", kind=Kind.SIZE,
        minimum=4 << 10, maximum=1 << 20,
    )  # fmt: skip
    window_bytes_max: int = setting(
        _RAFT.window_bytes_max, "Bytes sent to a peer and not yet durable there.", kind=Kind.SIZE,
        minimum=64 << 10, maximum=1 << 30,
    )  # fmt: skip
    apply_s_max: float = setting(
        _RAFT.apply_s_max,
        "Longest time that applying may delay heartbeats.",
        minimum=0.0005,
        maximum=1,
    )
    proposals_waiting_max: int = setting(
        _RAFT.proposals_waiting_max, "Proposals waiting to be committed.", minimum=1,
        maximum=1 << 20,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Limits of one shard."""

    group_bytes_max: int = setting(
        _SHARD.group_bytes_max, "Bytes in one group commit.", kind=Kind.SIZE,
        minimum=4 << 10, maximum=8 << 20,
    )  # fmt: skip
    # Smaller groups than a shard allows: the next ones are synced while these are applied, and one
    # is applied between two heartbeats. At 512 the cost of a proposal is already spread thin.
    group_entries_max: int = setting(512, "Entries in one group commit.", minimum=1, maximum=65_536)
    request_bytes_max: int = setting(
        _SHARD.request_bytes_max, "Bytes of all entries of one request.", kind=Kind.SIZE,
        minimum=4 << 10, maximum=_SHARD.request_bytes_max,
    )  # fmt: skip
    pending_requests_max: int = setting(
        _SHARD.pending_requests_max, "Requests without an outcome; more are refused.", minimum=1,
        maximum=1 << 20,
    )  # fmt: skip
    deadline_check_s: float = setting(
        _SHARD.deadline_check_s, "How often deadlines are checked.", minimum=0.001, maximum=10
    )
    hash_index_step: int = setting(
        _SHARD.hash_index_step, "Replicas compare state hashes after this many entries.",
        minimum=1, maximum=1 << 40,
    )  # fmt: skip
    hash_time_step_ns: int = setting(
        _SHARD.hash_time_step_ns, "And after this many nanoseconds of log time.",
        minimum=1_000_000, maximum=1 << 60,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log of one shard."""

    ring_bytes: int = setting(
        _LOG.ring_bytes, "Memory for the newest entries.", kind=Kind.SIZE, minimum=64 << 10,
        maximum=1 << 40,
    )  # fmt: skip
    segment_bytes_max: int = setting(
        _LOG.segment_bytes_max, "A segment is closed at this size.", kind=Kind.SIZE,
        minimum=64 << 10, maximum=2 << 30,
    )  # fmt: skip
    segment_entries_max: int = setting(
        _LOG.segment_entries_max, "A segment is closed at this many entries.", minimum=16,
        maximum=1 << 30,
    )  # fmt: skip
    segment_age_s_max: float = setting(
        _LOG.segment_age_ns_max / 1e9,
        "A segment is closed at this age.",
        minimum=1,
        maximum=1 << 24,
    )
    free_bytes_min: int = setting(
        _LOG.free_bytes_min,
        "Writes are refused if less disk space is free.",
        kind=Kind.SIZE,
        minimum=0,
    )
    scrub_bytes_per_s: int = setting(
        _SHIPPING.scrub_bytes_per_s,
        "Rate at which sealed segments are read in the background, to find damage.",
        kind=Kind.SIZE,
        minimum=1 << 10,
        maximum=1 << 40,
    )
    scrub_pause_s: float = setting(
        _SHIPPING.scrub_pause_s, "Pause between two passes over all sealed segments.", minimum=0.05,
        maximum=1 << 24,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SnapshotSettings:
    """When snapshots are made, and what that may take."""

    log_bytes_min: int = setting(
        _TRIGGER.log_bytes_min, "Growth of a log after which one is made; if the last was larger, "
        "that.", kind=Kind.SIZE, minimum=1, maximum=1 << 50,
    )  # fmt: skip
    interval_s: float = setting(
        _TRIGGER.interval_s, "Longest time between snapshots if there are changes.", minimum=0.05,
        maximum=1 << 24,
    )  # fmt: skip
    retry_s: float = setting(
        _TRIGGER.retry_s, "Pause after a failed snapshot.", minimum=0.05, maximum=1 << 20
    )
    builder_s_max: float = setting(
        _BUILDER.seconds_max, "A builder that runs longer is killed.", minimum=0.05,
        maximum=1 << 20,
    )  # fmt: skip
    builder_bytes_max: int = setting(
        _BUILDER.memory_bytes_max, "Memory limit of a builder, which holds one state; 0: none.",
        kind=Kind.SIZE, minimum=0,
    )  # fmt: skip
    kept_min: int = setting(
        _KEEP.snapshots_min, "Snapshots that are kept, at least.",
        minimum=KEPT_MIN, maximum=KEPT_MAX,
    )  # fmt: skip
    past_s_min: float = setting(
        _KEEP.past_s_min, "How far back reads as of an index reach, in seconds of log time, "
        "however many snapshots are made; older ones and the log are kept for it.",
        minimum=0, maximum=PAST_S_MAX,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class AsOfSettings:
    """States of the past, for reads as of an index; for each process."""

    states_max: int = setting(_AS_OF.states_max, "States kept in memory.", minimum=1, maximum=1024)
    builds_max: int = setting(_AS_OF.builds_max, "Concurrent builds.", minimum=1, maximum=64)
    memory_bytes_max: int = setting(
        _AS_OF.memory_bytes_max, "Memory of all kept states together.", kind=Kind.SIZE, minimum=0
    )
    idle_s: float = setting(
        _AS_OF.idle_s,
        "A state is dropped after this long without a read.",
        minimum=0.05,
        maximum=1 << 20,
    )


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """The streams between nodes."""

    backoff_s_min: float = setting(
        _TRANSPORT.backoff_s_min, "First pause before reconnecting.", minimum=0.001,
        maximum=60,
    )  # fmt: skip
    backoff_s_max: float = setting(
        _TRANSPORT.backoff_s_max, "Longest pause before reconnecting.", minimum=0.001, maximum=600
    )
    refused_s: float = setting(
        _TRANSPORT.refused_s,
        "Pause after a peer refused the connection.",
        minimum=0.01,
        maximum=600,
    )
    handshake_s_max: float = setting(
        _TRANSPORT.handshake_s_max,
        "Time limit for connecting and the handshake.",
        minimum=0.05,
        maximum=60,
    )
    bulk_bytes_max: int = setting(
        _OUTBOX.bulk_bytes_max, "Bytes of appends waiting for one peer.", kind=Kind.SIZE,
        minimum=MESSAGE_SIZE_MAX, maximum=1 << 34,
    )  # fmt: skip
    bulk_messages_max: int = setting(
        _OUTBOX.bulk_messages_max,
        "Append messages waiting for one peer.",
        minimum=1,
        maximum=1 << 20,
    )
    control_messages_max: int = setting(
        _OUTBOX.control_messages_max, "Votes and acks waiting for one peer.", minimum=1,
        maximum=1 << 20,
    )  # fmt: skip
    chunks_max: int = setting(
        _OUTBOX.chunks_max, "Chunks of snapshots and segments waiting for one peer.",
        minimum=1, maximum=1 << 16,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Config:
    """The whole tree."""

    node: NodeSettings = field(default_factory=NodeSettings)
    listen: ListenSettings = field(default_factory=ListenSettings)
    advertise: AdvertiseSettings = field(default_factory=AdvertiseSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    trace: TraceSettings = field(default_factory=TraceSettings)
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    raft: RaftSettings = field(default_factory=RaftSettings)
    shard: ShardSettings = field(default_factory=ShardSettings)
    log: LogSettings = field(default_factory=LogSettings)
    snapshot: SnapshotSettings = field(default_factory=SnapshotSettings)
    as_of: AsOfSettings = field(default_factory=AsOfSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    # The keys that somebody has set; a newcomer takes what is left to defaults from its cluster.
    given: frozenset[str] = frozenset()

    @property
    def topology(self) -> Topology:
        """How keys are spread, as far as this node's settings say."""
        return Topology(self.cluster.shards, self.cluster.partitions)

    @property
    def api_advertised(self) -> Address:
        """Where clients reach worker 0."""
        return self.advertise.api or self.listen.api

    @property
    def peers_advertised(self) -> Address:
        """Where other nodes reach worker 0."""
        return self.advertise.peers or self.listen.peers

    def raft_config(self) -> RaftConfig:
        """Return the section for ``cluster``."""
        each = self.raft
        return RaftConfig(
            each.heartbeat_s,
            each.election_s_min,
            each.election_s_max,
            each.leader_silence_s_max,
            each.frame_bytes_max,
            each.window_bytes_max,
            each.apply_s_max,
            each.proposals_waiting_max,
        )

    def shard_config(self) -> ShardConfig:
        """Return the section for shards."""
        each = self.shard
        return ShardConfig(
            each.group_bytes_max,
            each.group_entries_max,
            each.request_bytes_max,
            each.pending_requests_max,
            each.deadline_check_s,
            each.hash_index_step,
            each.hash_time_step_ns,
        )

    def log_config(self) -> LogConfig:
        """Return the section for ``ual``."""
        each = self.log
        return LogConfig(
            each.ring_bytes,
            each.segment_bytes_max,
            each.segment_entries_max,
            int(each.segment_age_s_max * 1e9),
            free_bytes_min=each.free_bytes_min,
        )

    def shipping_config(self) -> ShippingConfig:
        """Return how files are exchanged and checked, which has few settings."""
        each = self.log
        return ShippingConfig(
            scrub_bytes_per_s=each.scrub_bytes_per_s, scrub_pause_s=each.scrub_pause_s
        )

    def trigger_config(self) -> TriggerConfig:
        """Return when snapshots are due."""
        each = self.snapshot
        return TriggerConfig(each.log_bytes_min, each.interval_s, each.retry_s)

    def keep_config(self) -> KeepConfig:
        """Return which snapshots are kept."""
        return KeepConfig(self.snapshot.kept_min, self.snapshot.past_s_min)

    def builder_limits(self) -> BuilderLimits:
        """Return what a builder of snapshots may take."""
        return BuilderLimits(self.snapshot.builder_s_max, self.snapshot.builder_bytes_max)

    def as_of_config(self) -> AsOfConfig:
        """Return the section for states of the past."""
        each = self.as_of
        return AsOfConfig(each.states_max, each.builds_max, each.memory_bytes_max, each.idle_s)

    def transport_config(self) -> TransportConfig:
        """Return the section for the streams."""
        each = self.transport
        return TransportConfig(
            each.backoff_s_min,
            each.backoff_s_max,
            each.refused_s,
            each.handshake_s_max,
            OutboxLimits(
                each.bulk_bytes_max,
                each.bulk_messages_max,
                each.control_messages_max,
                each.chunks_max,
            ),
        )


# Config check


def with_shards(config: Config) -> Config:
    """Return the configuration with the number of shards that follows from the rest of it.

    With one shard every transaction is possible, whatever its names; a cluster spreads its leaders.
    """
    if "cluster.shards" in config.given:
        return config
    is_alone = not (config.cluster.initial or config.cluster.join)
    shards = config.node.workers if is_alone else max(SHARDS_DEFAULT, config.node.workers)
    return replace(config, cluster=replace(config.cluster, shards=shards))


# Where the value of a key came from, for messages: "--name" or "onelog.toml".
FindOrigin = Callable[[str], str]


def check_config(config: Config, find_origin: FindOrigin) -> None:
    """Refuse values that cannot work together."""

    def refuse(key: str, rule: str) -> None:
        raise ConfigError(f"{key} ({find_origin(key)}) {rule}")

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
            shown = ", ".join(f"{key} ({find_origin(key)})" for key in given)
            raise ConfigError(
                f"section {section}: {error}; set here: {shown or 'nothing'}"
            ) from error
    try:
        assert config.topology
    except DirectoryError as error:
        raise ConfigError(
            f"cluster.shards ({find_origin('cluster.shards')}), "
            f"cluster.partitions ({find_origin('cluster.partitions')}): {error}"
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
    """Tell whether an address can be reached from this machine only."""
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
