"""Changing the members of a group: what a leader makes sure of before it proposes it."""

from cluster.errors import MembershipRefused, NotLeader
from cluster.member import LEADER, RaftMember
from cluster.membership import Membership, check_change


def change_membership(member: RaftMember, membership: Membership) -> tuple[int, int]:
    """As leader, propose other members; return the proposal's number and term."""
    if member.state != LEADER:
        raise NotLeader(member.leader_id)
    if member.protections.one_change:
        if not member.has_applied_noop:
            raise MembershipRefused("this leader has not committed anything yet")
        if member.journal.membership_number > member.applied:
            raise MembershipRefused("the change before this one is not committed yet")
        check_change(member.membership, membership, member.self_id)
    for each in set(membership.voters) - set(member.membership.voters):
        if member.match_of(each) < member.commit:
            raise MembershipRefused(f"{each} has not caught up yet")
    return member.propose([membership.draft()])
