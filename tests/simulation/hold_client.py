"""A reader with a hold: what it has not read yet is in the log of every member.

It sets a hold to the entry that sets it, renews it, moves it on as far as it has read from some
replica, and releases it now and then. Whenever it looks, that replica must have what is held, and
in the end every member, whatever was snapshotted, trimmed, shipped and repaired meanwhile. Only a
full disk excuses it.
"""

from onelog.node.replica.shard import Shard
from onelog.projections.limits import TTL_NS_MAX
from onelog.projections.result import Applied, Refused
from onelog.projections.system.commands import Command, HoldRelease, HoldSet, encode_command
from tests.simulation.model_clients import ModelClient

BYTES_MAX = 1 << 40


class HoldClient(ModelClient):
    """See the module's text."""

    _index: int | None = None  # where the hold stands; None: there is none

    def _set_up(self) -> None:
        self._name = f"reader-{self.number}"

    def _operate(self) -> None:
        command: Command
        if self._index is None:
            command = HoldSet(self._name, False, 0, TTL_NS_MAX, BYTES_MAX)
        elif (chance := self._rng.random()) < 0.05:
            command = HoldRelease(self._name)
        else:
            end = self._read(self._index)
            to_index = end if self._lets_go or chance > 0.8 else 0
            command = HoldSet(self._name, True, to_index, 0, 0)

        def finish(result: Applied | Refused) -> None:
            assert isinstance(result, Applied), result
            self._index = None if isinstance(command, HoldRelease) else result.number
            self._next()

        self._write(lambda session: encode_command(command, "", session), finish)

    def _read(self, index: int) -> int:
        """Read from some replica what is held; return how far that goes."""
        shard = self._rng.choice(self._replicas).shard
        if shard is None or shard.log.applied_index < index:
            return index
        assert shard.log.first_index <= index or self._is_excused, f"{self._name} lost {index}"
        return shard.log.applied_index

    @property
    def _is_excused(self) -> bool:
        return any(replica.was_full for replica in self._replicas)

    def wrong_on(self, shard: Shard) -> str | None:
        """See the module's text."""
        hold = shard.projections.system.holds.get(self._name)
        index = None if hold is None else hold.index
        if index != self._index:
            return f"hold {self._name} stands at {index}, not at {self._index}"
        if index is None or self._is_excused:
            return None
        log = shard.log
        kept = [entry.index for entry in log.scan(index, log.applied_index)]
        if kept != list(range(index, log.applied_index + 1)):
            return f"hold {self._name} keeps from {index} on; the log begins at {log.first_index}"
        return None
