"""Streams and groups as they are set up and how far they are: looks at the state of a shard.

They work on any state of the projections, the live one or one of the past.
"""

from onelog.node.edge.operation import Read
from onelog.node.edge.shards import View
from onelog.node.edge.stream_records import found
from onelog.node.services.stream_requests import by_stream, check_group, check_stream
from onelog.projections.stream.reads import GroupDescription, StreamDescription
from onelog.v1 import stream_pb2


def put_stream(target: stream_pb2.StreamInfo, namespace: str, stream: StreamDescription) -> None:
    """Write how a stream is set up and what it holds."""
    target.namespace, target.stream, target.stream_id = namespace, stream.name, stream.stream_id
    retention = stream.retention
    target.retention.age_ms = retention.age_ns // 1_000_000
    target.retention.size_max = retention.size_max
    target.retention.count_max = retention.count_max
    target.retention.past_groups = retention.past_groups
    for each in stream.partitions:
        partition = target.partitions.add(partition=each.partition)
        if each.record_count_kept:
            partition.first_offset = each.first_offset
            partition.last_offset = each.end_offset - 1
            partition.record_count = each.record_count_kept
            partition.size = each.size_kept
    target.groups.extend(stream.groups)


def _look_stream(
    view: View,
    namespace: str,
    request: stream_pb2.GetStreamRequest,
    answer: stream_pb2.GetStreamResponse,
) -> None:
    name = check_stream(request.stream)
    put_stream(answer.stream, namespace, found(view.projections.stream.describe(namespace, name)))


def _look_group(
    view: View,
    namespace: str,
    request: stream_pb2.GetGroupRequest,
    answer: stream_pb2.GetGroupResponse,
) -> None:
    stream, name = check_stream(request.stream), check_group(request.group)
    group: GroupDescription = found(view.projections.stream.describe_group(namespace, stream, name))
    answer.config.shared = group.config.shared
    answer.config.max_deliveries = group.config.max_deliveries
    answer.config.dead_letter_stream = group.config.dead_letter
    answer.generation = group.generation
    for member_id, deadline_ns in group.members:
        member = answer.members.add(member_id=member_id, expires_ns=deadline_ns)
        member.pending_count = group.pending_of_members.get(member_id, 0)
        member.partitions.extend(
            number
            for number, owner in enumerate(group.owners)
            if owner == member_id or group.config.shared
        )
    for number, committed in enumerate(group.committed):
        answer.partitions.add(
            partition=number,
            committed_offset=committed,
            next_offset=group.delivered[number],
            lag=max(0, group.lags[number]),
            pending_count=group.pending_of_partitions[number],
        )


GET_STREAM = Read(stream_pb2.GetStreamResponse, by_stream, _look_stream)
GET_GROUP = Read(stream_pb2.GetGroupResponse, by_stream, _look_group)
