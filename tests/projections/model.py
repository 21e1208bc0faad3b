"""The KV projection as anybody would write it who has all the time and memory in the world.

State is plain dicts and lists that are copied whole before anything that may have to be undone.
``past`` keeps a copy of everything that existed after each entry, which is what a read as of an
index is compared with. Nothing here is shared with the code under test but commands and results.
"""

import copy
import json
import re
from dataclasses import dataclass, field
from operator import eq, ge, gt, le, lt, ne
from typing import Any

from onelog.projections.conditions import Comparison, Condition, Target
from onelog.projections.kv.commands import (
    Append,
    Command,
    Delete,
    DeleteRange,
    Get,
    Increment,
    JsonDelete,
    JsonSet,
    LeaseGrant,
    LeaseKeepalive,
    LeaseRevoke,
    Maximum,
    Minimum,
    Put,
    PutMany,
    Touch,
    Transaction,
)
from onelog.projections.namespaces import Limits
from onelog.projections.reasons import Reason
from onelog.projections.result import APPLIED, Applied, Outcome, Refused

COMPARE = {
    Comparison.EQUAL: eq,
    Comparison.NOT_EQUAL: ne,
    Comparison.LESS: lt,
    Comparison.LESS_OR_EQUAL: le,
    Comparison.GREATER: gt,
    Comparison.GREATER_OR_EQUAL: ge,
}


@dataclass
class Written:
    """A version; ``value`` is None where the key was deleted."""

    version: int
    value: bytes | None
    expires_ns: int | None = None
    lease: int | None = None
    expired: bool = False


@dataclass
class Lease:
    ttl_ns: int
    deadline_ns: int


NUMBER_MARK = "\ue000"  # in no string that a history draws


class No(Exception):
    def __init__(self, reason: Reason, detail: int = 0) -> None:
        super().__init__(reason)
        self.refused = Refused(reason, detail)


@dataclass
class Model:
    """One namespace."""

    limits: Limits = field(default_factory=Limits)
    chains: dict[bytes, list[Written]] = field(default_factory=dict)  # oldest first
    trimmed: set[bytes] = field(default_factory=set)
    leases: dict[int, Lease] = field(default_factory=dict)
    purged_index: int = 0
    past: dict[int, dict[bytes, Written]] = field(default_factory=dict)

    # What exists ---------------------------------------------------------------------------------

    def find(self, key: bytes) -> Written | None:
        chain = self.chains.get(key)
        return chain[-1] if chain and chain[-1].value is not None else None

    def live(self) -> dict[bytes, Written]:
        return {key: chain[-1] for key, chain in self.chains.items() if chain[-1].value is not None}

    def remember(self, index: int) -> None:
        self.past[index] = copy.deepcopy(self.live())

    def known_from(self, key: bytes) -> int:
        return self.chains[key][0].version if key in self.trimmed else self.purged_index

    # Writing -------------------------------------------------------------------------------------

    def write(self, key: bytes, written: Written) -> None:
        chain = self.chains.setdefault(key, [])
        if chain and chain[-1].version == written.version:
            chain.pop()
        chain.append(written)
        while len(chain) > self.limits.versions_max:
            del chain[0]
            self.trimmed.add(key)

    def remove(self, key: bytes, index: int, *, expired: bool = False) -> None:
        self.write(key, Written(index, None, expired=expired))
        gone = sorted(
            (chain[-1].version, key)
            for key, chain in self.chains.items()
            if chain[-1].value is None
        )
        for version, oldest in gone[: min(2, max(0, len(gone) - self.limits.tombstones_max))]:
            del self.chains[oldest]
            self.trimmed.discard(oldest)
            self.purged_index = max(self.purged_index, version)

    def change(self, key: bytes, index: int, value: bytes) -> None:
        found = self.find(key)
        self.check_growth(key, value)
        if found is None:
            self.write(key, Written(index, value))
        else:
            self.write(key, Written(index, value, found.expires_ns, found.lease))

    def check_growth(self, key: bytes, value: bytes) -> None:
        if len(value) > self.limits.value_size_max:
            raise No(Reason.VALUE_TOO_LARGE, len(value))
        keys_max = self.limits.keys_max
        if self.find(key) is None and keys_max and len(self.live()) >= keys_max:
            raise No(Reason.NAMESPACE_FULL, keys_max)

    def check_version(self, key: bytes, expected: int | None) -> None:
        found = self.find(key)
        version = found.version if found else 0
        if expected is not None and version != expected:
            raise No(Reason.CONDITION_FAILED if expected else Reason.ALREADY_EXISTS, version)

    # Commands ------------------------------------------------------------------------------------

    def apply(self, command: Command, index: int, now_ns: int) -> Outcome:
        before = copy.deepcopy((self.chains, self.trimmed, self.leases, self.purged_index))
        try:
            result: Outcome = self.run(command, index, now_ns)
        except No as no:
            self.chains, self.trimmed, self.leases, self.purged_index = before
            result = no.refused
        return result

    def run(self, command: Command, index: int, now_ns: int) -> Applied:
        match command:
            case Put(key, value, ttl_ns, lease, expected):
                self.check_version(key, expected)
                self.check_growth(key, value)
                if lease is not None and lease not in self.leases:
                    raise No(Reason.LEASE_LOST, lease)
                expires_ns = None if ttl_ns is None else now_ns + ttl_ns
                self.write(key, Written(index, value, expires_ns, lease))
            case Delete(key, expected):
                self.check_version(key, expected)
                if self.find(key) is not None:
                    self.remove(key, index)
                    return Applied(1)
            case Touch(key, ttl_ns, expected, with_version):
                self.check_version(key, expected)
                found = self.find(key)
                if found is None:
                    raise No(Reason.KEY_NOT_FOUND)
                found.expires_ns = now_ns + ttl_ns if ttl_ns else None
                if with_version:
                    return Applied(found.version)
            case Increment() | Minimum() | Maximum():
                return self.count(command, index)
            case Append(key, data):
                found = self.find(key)
                value = ((found.value or b"") if found else b"") + data
                self.change(key, index, value)
                return Applied(len(value))
            case JsonSet() | JsonDelete():
                self.change_document(command, index)
            case DeleteRange():
                return self.delete_range(command, index)
            case Get(key):
                found = self.find(key)
                return Applied(found.version, found.value) if found else APPLIED
            case LeaseGrant(ttl_ns):
                self.leases[index] = Lease(ttl_ns, now_ns + ttl_ns)
                return Applied(index)
            case LeaseKeepalive(lease):
                self.lease(lease).deadline_ns = now_ns + self.lease(lease).ttl_ns
            case LeaseRevoke(lease):
                return Applied(self.end_lease(lease, index))
            case Transaction():
                return self.transact(command, index, now_ns)
            case PutMany():
                self.transact(Transaction((), tuple(command.puts())), index, now_ns)
        return APPLIED

    def lease(self, lease: int) -> Lease:
        if lease not in self.leases:
            raise No(Reason.LEASE_LOST, lease)
        return self.leases[lease]

    def end_lease(self, lease: int, index: int, *, expired: bool = False) -> int:
        self.lease(lease)
        bound = sorted(key for key, found in self.live().items() if found.lease == lease)
        for key in bound:
            self.remove(key, index, expired=expired)
        del self.leases[lease]
        return len(bound)

    def count(self, command: Increment | Minimum | Maximum, index: int) -> Applied:
        found = self.find(command.key)
        before: int | None = None
        if found is not None:
            assert found.value is not None
            text = found.value.decode("latin-1")
            if not text or text != text.strip() or not text.isascii() or "+" in text or "_" in text:
                raise No(Reason.NOT_A_NUMBER)
            try:
                before = int(text)
            except ValueError:
                raise No(Reason.NOT_A_NUMBER) from None
            if not -(2**63) <= before < 2**63 or len(text.lstrip("-")) > 19:
                raise No(Reason.NOT_A_NUMBER)
        match command:
            case Increment(_, delta):
                after = (before or 0) + delta
            case Minimum(_, operand):
                after = min(operand, before if before is not None else operand)
            case Maximum(_, operand):
                after = max(operand, before if before is not None else operand)
        if not -(2**63) <= after < 2**63:
            raise No(Reason.COUNTER_OVERFLOW, before or 0)
        if isinstance(command, Increment) or after != before:
            self.change(command.key, index, str(after).encode())
        return Applied(after)

    def change_document(self, command: JsonSet | JsonDelete, index: int) -> None:
        found = self.find(command.key)
        text = None if found is None else found.value
        if isinstance(command, JsonDelete) and text is None:
            raise No(Reason.KEY_NOT_FOUND)
        if isinstance(command, JsonDelete) and not command.path:
            raise No(Reason.JSON_PATH_INVALID)
        field_value = parse(command.text) if isinstance(command, JsonSet) else None
        if isinstance(command, JsonSet) and not command.path:
            self.change(command.key, index, dump(field_value))
            return
        create = isinstance(command, JsonSet) and command.create_parents
        if text is not None:
            root = parse(text)
        elif create:
            root = empty_for(command.path[0], 0)
        else:
            raise No(Reason.KEY_NOT_FOUND)
        node: Any = root
        for at, step in enumerate(command.path[:-1]):
            if create and isinstance(node, dict) and isinstance(step, str) and step not in node:
                node[step] = empty_for(command.path[at + 1], at + 1)
            if create and isinstance(node, list) and step is None:
                node.append(empty_for(command.path[at + 1], at + 1))
                node = node[-1]
                continue
            check_step(node, step, at)
            node = node[step]
        last, at = command.path[-1], len(command.path) - 1
        if isinstance(command, JsonSet) and isinstance(node, dict) and isinstance(last, str):
            node[last] = field_value
        elif isinstance(command, JsonSet) and isinstance(node, list) and last is None:
            node.append(field_value)
        else:
            check_step(node, last, at)
            if isinstance(command, JsonSet):
                node[last] = field_value
            else:
                del node[last]
        self.change(command.key, index, dump(root))

    def delete_range(self, command: DeleteRange, index: int) -> Applied:
        inside = sorted(
            key
            for key in self.chains
            if key >= command.start and (command.end is None or key < command.end)
        )
        number = 0
        for key in inside:
            if number == command.limit:
                return Applied(number, key)
            if self.find(key) is not None:
                self.remove(key, index)
                number += 1
        return Applied(number)

    def transact(self, command: Transaction, index: int, now_ns: int) -> Applied:
        holds = all(self.holds(condition) for condition in command.conditions)
        results = []
        for at, operation in enumerate(command.then if holds else command.otherwise):
            try:
                results.append(self.run(operation, index, now_ns))
            except No as no:
                raise TransactionRefused(at, no.refused.reason) from None
        return Applied(1 if holds else 2, None, tuple(results))

    def holds(self, condition: Condition) -> bool:
        found = self.find(condition.key)
        match condition.target:
            case Target.EXISTS:
                return found is not None
            case Target.MISSING:
                return found is None
            case Target.VERSION:
                version = found.version if found else 0
                return bool(COMPARE[condition.comparison](version, condition.version))
            case Target.VALUE:
                value = found.value if found else None
                return value is not None and bool(
                    COMPARE[condition.comparison](value, condition.value)
                )

    # Time ----------------------------------------------------------------------------------------

    def deadlines(self) -> list[int]:
        keys = [found.expires_ns for found in self.live().values() if found.expires_ns is not None]
        return keys + [lease.deadline_ns for lease in self.leases.values()]

    def expire(self, index: int, now_ns: int) -> None:
        """Expire everything that is due; the order of equals is by key."""
        for key in sorted(self.live()):
            found = self.find(key)
            if found is not None and found.expires_ns is not None and found.expires_ns <= now_ns:
                self.remove(key, index, expired=True)
        for lease in sorted(self.leases):
            if self.leases[lease].deadline_ns <= now_ns:
                self.end_lease(lease, index, expired=True)


class TransactionRefused(No):
    def __init__(self, at: int, cause: Reason) -> None:
        super().__init__(Reason.TRANSACTION_REFUSED, at)
        self.refused = Refused(Reason.TRANSACTION_REFUSED, at, cause)


def parse(text: bytes) -> Any:
    try:
        return json.loads(text, parse_constant=refuse, parse_float=as_text, parse_int=as_text)
    except ValueError:
        raise No(Reason.JSON_INVALID) from None


def refuse(name: str) -> None:
    raise ValueError(name)


def as_text(number: str) -> str:
    """Numbers keep their text: a marked string stands for them while a document is parsed."""
    return NUMBER_MARK + number


def dump(node: Any) -> bytes:
    text = json.dumps(node, separators=(",", ":"), ensure_ascii=False)
    return re.sub(f'"{NUMBER_MARK}([^"]*)"', r"\1", text).encode()


def empty_for(step: str | int | None, at: int) -> Any:
    if isinstance(step, int):
        raise No(Reason.JSON_PATH_NOT_FOUND, at)
    return [] if step is None else {}


def check_step(node: Any, step: str | int | None, at: int) -> None:
    fits = (isinstance(node, dict) and isinstance(step, str)) or (
        isinstance(node, list) and isinstance(step, int)
    )
    if not fits:
        raise No(Reason.JSON_PATH_INVALID, at)
    if (isinstance(node, dict) and step not in node) or (
        isinstance(node, list) and isinstance(step, int) and step >= len(node)
    ):
        raise No(Reason.JSON_PATH_NOT_FOUND, at)
