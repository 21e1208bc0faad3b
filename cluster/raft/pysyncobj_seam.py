"""pysyncobj's module globals, its transport and its poller, replaced by ours.

pysyncobj reads time and random numbers from module globals, opens sockets and polls them. Here it
gets the clock of the member that is running, a transport that passes its messages to that member,
and nothing to poll. Only cluster/raft/member.py uses its private names.
"""

from collections.abc import Callable
from typing import Any, Protocol

import pysyncobj.syncobj as module
from pysyncobj import SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from onelog.cluster.config import RaftConfig
from onelog.cluster.raft.messages import Vote, VoteRequest

NEVER = 10**9  # entries or seconds: log compaction is ours, pysyncobj's would pickle the member


class Clock(Protocol):
    """Time and random numbers, passed in so that a run can be repeated exactly."""

    def now_s(self) -> float:
        """Return monotonic seconds."""

    def random(self) -> float:
        """Return a number in [0, 1)."""


class SharedGlobals:
    """pysyncobj's global time and random numbers; those of the running member's ``clock``."""

    clock: Clock | None = None

    def use(self, clock: Clock) -> None:
        """Make this the clock of the running member."""
        self.clock = clock
        module.monotonicTime = clock.now_s
        module.random = clock


running = SharedGlobals()
module.PIPE_NOTIFIER_ENABLED = False  # or each proposal costs a write to a pipe
module.createJournal = lambda journal: journal  # conf.journalFile carries the journal itself


def configuration(config: RaftConfig, journal: Any) -> SyncObjConf:
    """Return pysyncobj's settings: no threads, no files, no pickling, our journal and times."""
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=False,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        fullDumpFile=None,
        journalFile=journal,
        logCompactionMinEntries=NEVER,
        logCompactionMinTime=NEVER,
        appendEntriesPeriod=config.heartbeat_s,
        raftMinTimeout=config.election_s_min,
        raftMaxTimeout=config.election_s_max,
        leaderFallbackTimeout=config.leader_silence_s_max,
        # Of its sockets, which are never opened; it asserts that elections are not longer.
        connectionTimeout=config.election_s_max,
        commandsQueueSize=config.proposals_waiting_max,
        pollerType="select",
    )


class Wire(Transport):  # type: ignore[misc]
    """pysyncobj's transport: its messages go to the member, which translates and stamps them."""

    ready = True

    def __init__(self, send: Callable[[Node, dict[str, Any]], None]) -> None:
        super().__init__(None, None, [])
        self.send = send

    def tryGetReady(self) -> None:  # noqa: N802 - pysyncobj's name
        """Nothing to get ready."""

    def destroy(self) -> None:
        """Nothing to destroy."""


class NoPoller:
    """There are no sockets here to poll."""

    def poll(self, _timeout: float) -> None:
        """Do nothing."""


def translated(message: dict[str, Any], *, is_handed: bool) -> VoteRequest | Vote:
    """Translate a message that pysyncobj makes into one of ours."""
    term = message["term"]
    match message["type"]:
        case "request_vote":
            last, last_term = message["last_log_index"], message["last_log_term"]
            return VoteRequest(term, last, last_term, is_handed=is_handed)
        case "response_vote":
            return Vote(term)
        case other:
            raise AssertionError(f"pysyncobj sent an unexpected {other}")
