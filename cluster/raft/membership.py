"""Who belongs to a Raft group: voters and learners, as a value and as bytes.

The membership that counts is the newest ``raft_config`` entry in a replica's log, committed or not,
else the one in its snapshot, else the list that the cluster was founded with. The journal keeps
track of it as entries come and go. Invariants:

* One change adds, promotes or removes one member. So any majority before a change and any majority
  after it share a member, and no two leaders of one term can be elected.
* A learner receives the log and counts nowhere: it does not stand for election, is not asked for
  its vote, and its copy is not part of a majority. (Counting it would let a cluster of one wait
  for a newcomer that has yet to read the whole log.)
* Address and name travel with the change that adds a member: every replica that reads it can reach
  it, and knows which certificate it must show (cluster/transport/certificate.py).
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from uuid import UUID

from onelog.cluster.errors import MembershipRefused
from onelog.projections.system.commands import TYPE_RAFT_CONFIG
from onelog.ual.entry import Draft
from onelog.ual.errors import CorruptEntry

VERSION = 3  # 2, which is still read, has no names
_VERSION_UNNAMED = 2
# More voters make every commit slower and no data safer; learners are meant to pass through.
VOTERS_MAX = 9
LEARNERS_MAX = 9
ADDRESS_SIZE_MAX = 255
NAME_SIZE_MAX = 255
_ID_SIZE = 16

_HEAD = struct.Struct(
    "<"
    "B"  # version
    "B"  # voters
    "B"  # learners
    "B"  # reserved, zero
)


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group; ids are kept sorted, so that equal groups are equal bytes."""

    voters: tuple[UUID, ...]
    learners: tuple[UUID, ...] = ()
    # Where members listen, as far as it is known; the others know the founders from their settings.
    addresses: tuple[tuple[UUID, str], ...] = ()
    # What the certificates of members call them; the founders' names are in SYSTEM.
    names: tuple[tuple[UUID, str], ...] = ()

    @classmethod
    def of(
        cls,
        voters: Iterable[UUID],
        learners: Iterable[UUID] = (),
        addresses: Mapping[UUID, str] | None = None,
        names: Mapping[UUID, str] | None = None,
    ) -> "Membership":
        """Return a membership with sorted ids."""
        members = cls(tuple(sorted(voters)), tuple(sorted(learners)))
        return members.at(addresses or {}).named(names or {})

    def at(self, addresses: Mapping[UUID, str]) -> "Membership":
        """Return it with these addresses added."""
        known = dict(self.addresses) | dict(addresses)
        for address in known.values():
            if not address.isascii() or len(address) > ADDRESS_SIZE_MAX:
                raise MembershipRefused(f"the address {address[:80]!r}")
        pairs = ((each, known[each]) for each in sorted(self.members) if known.get(each))
        return replace(self, addresses=tuple(pairs))

    def named(self, names: Mapping[UUID, str]) -> "Membership":
        """Return it with these names added."""
        known = dict(self.names) | dict(names)
        for name in known.values():
            if not name.isprintable() or len(name.encode()) > NAME_SIZE_MAX:
                raise MembershipRefused(f"the name {name[:80]!r}")
        pairs = ((each, known[each]) for each in sorted(self.members) if known.get(each))
        return replace(self, names=tuple(pairs))

    @property
    def members(self) -> tuple[UUID, ...]:
        """All replicas that receive the log."""
        return self.voters + self.learners

    def with_learner(self, member: UUID) -> "Membership":
        """Return it with a newcomer."""
        if member in self.members:
            raise MembershipRefused(f"{member} is a member already")
        if len(self.learners) >= LEARNERS_MAX:
            raise MembershipRefused(f"there are {LEARNERS_MAX} learners already")
        return replace(self, learners=tuple(sorted((*self.learners, member))))

    def with_promoted(self, member: UUID) -> "Membership":
        """Return it with a learner made a voter."""
        if member not in self.learners:
            raise MembershipRefused(f"{member} is not a learner")
        if len(self.voters) >= VOTERS_MAX:
            raise MembershipRefused(f"there are {VOTERS_MAX} voters already")
        voters, learners = (*self.voters, member), set(self.learners) - {member}
        return Membership.of(voters, learners, dict(self.addresses), dict(self.names))

    def without(self, member: UUID) -> "Membership":
        """Return it with a member removed."""
        if member not in self.members:
            raise MembershipRefused(f"{member} is not a member")
        if self.voters == (member,):
            raise MembershipRefused("the last voter cannot leave")
        voters, learners = set(self.voters) - {member}, set(self.learners) - {member}
        return Membership.of(voters, learners, dict(self.addresses), dict(self.names))

    def draft(self) -> Draft:
        """Return the entry that makes this the membership."""
        # Without a name it is what earlier versions write and read.
        version = VERSION if self.names else _VERSION_UNNAMED
        payload = _HEAD.pack(version, len(self.voters), len(self.learners), 0)
        payload += b"".join(member.bytes for member in self.members)
        for pairs in (self.addresses, self.names)[: version - 1]:
            known = dict(pairs)
            texts = [known.get(member, "").encode() for member in self.members]
            payload += b"".join(bytes([len(text)]) + text for text in texts)
        return Draft(TYPE_RAFT_CONFIG, payload)


def check_moment(*, leads: bool, is_settled: bool) -> None:
    """Refuse a change before this leader has committed anything, or beside another change."""
    if not leads:
        raise MembershipRefused("this leader has not committed anything yet")
    if not is_settled:
        raise MembershipRefused("the change before this one is not committed yet")


def check_change(old: Membership, new: Membership, leader: UUID) -> None:
    """Refuse a change if old and new majorities need not overlap, or the leader would leave."""
    if len(set(old.voters) ^ set(new.voters)) > 1:
        raise MembershipRefused("more than one voter at a time")
    if leader not in new.voters:
        raise MembershipRefused("a leader transfers its leadership before it leaves")


def decode_membership(payload: bytes) -> Membership:
    """Return the membership that an entry carries; ``CorruptEntry`` if it carries none."""
    if len(payload) < _HEAD.size:
        raise CorruptEntry(0, "a raft_config entry without a head")
    version, voters, learners, reserved = _HEAD.unpack_from(payload)
    if version not in (_VERSION_UNNAMED, VERSION) or reserved:
        raise CorruptEntry(0, f"raft_config version {version}")
    if not 1 <= voters <= VOTERS_MAX or learners > LEARNERS_MAX:
        raise CorruptEntry(0, f"raft_config of {voters} voters and {learners} learners")
    addresses_at = _HEAD.size + (voters + learners) * _ID_SIZE
    if len(payload) < addresses_at:
        raise CorruptEntry(0, f"raft_config of {len(payload)} bytes")
    ids = [UUID(bytes=payload[at : at + _ID_SIZE]) for at in range(_HEAD.size, addresses_at, 16)]
    addresses, at = _decode_texts(payload, addresses_at, ids)
    names, at = ({}, at) if version == _VERSION_UNNAMED else _decode_texts(payload, at, ids)
    if at != len(payload):
        raise CorruptEntry(0, "raft_config with bytes behind its end")
    if not all(each.isascii() for each in addresses.values()):
        raise CorruptEntry(0, "raft_config with an address that is not ASCII")
    if not all(each.isprintable() for each in names.values()):
        raise CorruptEntry(0, "raft_config with a name that cannot be printed")
    if version == VERSION and not any(names.values()):
        raise CorruptEntry(0, "raft_config of version 3 without a name")
    membership = Membership.of(ids[:voters], ids[voters:], addresses, names)
    in_order = (*membership.voters, *membership.learners) == tuple(ids)
    if not in_order or len(set(ids)) != len(ids):
        raise CorruptEntry(0, "raft_config names a member twice or out of order")
    return membership


def _decode_texts(data: bytes, at: int, ids: list[UUID]) -> tuple[dict[UUID, str], int]:
    """Return a text for each member, and where they end; each is a length of one byte and UTF-8."""
    texts: dict[UUID, str] = {}
    for each in ids:
        text = data[at + 1 : at + 1 + data[at]] if at < len(data) else None
        if text is None or len(text) != data[at]:
            raise CorruptEntry(0, f"raft_config without an address or a name of {each}")
        try:
            texts[each] = text.decode()
        except UnicodeDecodeError as error:
            raise CorruptEntry(0, f"raft_config with a bad address or name of {each}") from error
        at += 1 + len(text)
    return texts, at
