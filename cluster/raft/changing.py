"""Changing the members of a group: what a leader makes sure of before it proposes it."""

from onelog.cluster.errors import MembershipRefused, NotLeader
from onelog.cluster.raft.member import LEADER, RaftMember
from onelog.cluster.raft.membership import Membership, check_change, check_moment


def change_membership(member: RaftMember, membership: Membership) -> tuple[int, int]:
    """As leader, propose other members; return the proposal's number and term."""
    if member.state != LEADER:
        raise NotLeader(member.leader_id)
    if member.protections.one_change:
        is_settled = member.journal.membership_number <= member.applied
        check_moment(leads=member.has_applied_noop, is_settled=is_settled)
        check_change(member.membership, membership, member.self_id)
    for each in set(membership.voters) - set(member.membership.voters):
        if member.match_of(each) < member.commit:
            raise MembershipRefused(f"{each} has not caught up yet")
    return member.propose([membership.draft()])
