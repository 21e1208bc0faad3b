"""Every call of a server, as its reflection lists them, with whatever bytes for a request."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from onelog.v1 import common_pb2
from tests.system.reflecting import Reflection

CALL_S = 20.0
# A mutated request may ask to wait: nobody waits for its answer.
MUTANT_S = 2.0
# A stream has begun when it is accepted, and may have nothing to send.
STREAM_S = 0.3
DETAILS_KEY = "grpc-status-details-bin"
# Codes of gRPC that say nothing of what was done.
CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE = 1, 2, 4, 13, 14

Metadata = tuple[tuple[str, str], ...]


@dataclass
class Outcome:
    """What a call ended with; code 0: it was accepted."""

    code: int = 0
    reason: str = ""
    message: str = ""
    answers: list[Any] = field(default_factory=list)
    cost: Any = None  # in the details of an error

    @property
    def is_known(self) -> bool:
        """Whether it says what was done."""
        return self.code not in (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE)

    @property
    def is_refused(self) -> bool:
        return self.code != 0 and self.is_known


class Calls:
    """The calls of one server."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        database = Reflection(channel, "v1alpha")
        pool = DescriptorPool(database)
        self.methods: dict[str, Any] = {}  # by service and name, without the package
        for service in database.get_services():
            for method in pool.FindServiceByName(service).methods:
                self.methods[f"{service.rpartition('.')[2]}/{method.name}"] = method

    def request(self, path: str, /, **fields: Any) -> Message:
        """Return the request of a call."""
        return GetMessageClass(self.methods[path].input_type)(**fields)

    def ask(self, path: str, /, **fields: Any) -> Any:
        """Make a call that nobody has meddled with; return its answer."""
        data = self.request(path, **fields).SerializeToString()
        outcome = self.send(path, data, timeout_s=CALL_S)
        assert outcome.code == 0, (path, fields, outcome)
        return outcome.answers[0]

    def send(
        self, path: str, data: bytes, metadata: Metadata = (), timeout_s: float = MUTANT_S
    ) -> Outcome:
        """Make a call with any bytes; of a stream, take the first answer."""
        method = self.methods[path]
        is_stream = method.server_streaming
        kind = f"{'stream' if method.client_streaming else 'unary'}_"
        kind += "stream" if is_stream else "unary"
        decode = GetMessageClass(method.output_type).FromString
        name = f"/{method.containing_service.full_name}/{method.name}"
        run = getattr(self._channel, kind)(name, None, decode)
        request: Any = iter([data]) if method.client_streaming else data
        outcome = Outcome()
        try:
            made = run(request, timeout=timeout_s, metadata=metadata)
            if not is_stream:
                outcome.answers = [made]
                return outcome
            for answer in made:
                outcome.answers.append(answer)
                made.cancel()
                break
        except grpc.RpcError as error:
            _fill(outcome, error)
        return outcome


def _fill(outcome: Outcome, error: Any) -> None:
    """Note the status that a call ended with."""
    outcome.code, outcome.message = error.code().value[0], error.details() or ""
    info = error_details_pb2.ErrorInfo()
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    outcome.reason = info.reason
                elif detail.Is(common_pb2.Cost.DESCRIPTOR):
                    outcome.cost = common_pb2.Cost()
                    detail.Unpack(outcome.cost)


def errors_in(answers: Iterable[Message]) -> Iterator[Message]:
    """Yield the errors of single operations in answers."""
    for answer in answers:
        for descriptor, value in answer.ListFields():
            if descriptor.type != descriptor.TYPE_MESSAGE:
                continue
            if descriptor.message_type.GetOptions().map_entry:
                continue
            parts = [value] if isinstance(value, Message) else value
            if descriptor.message_type.name == "Error":
                yield from parts
            else:
                yield from errors_in(parts)
