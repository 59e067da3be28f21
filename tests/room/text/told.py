"""What a caller hears of an answer, put together."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from protos import peer_pb2, room_pb2
from room.text.answer import Answer


@dataclass
class Told:
    reasoning: str = ""
    text: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    """Kinds of events, neighbours of one kind as one."""

    def hear(self, events: Iterable[room_pb2.GenerateEvent]) -> None:
        for event in events:
            kind = event.WhichOneof("event")
            assert kind is not None
            if self.order[-1:] != [kind]:
                self.order.append(kind)
            if kind == "reasoning":
                assert event.reasoning.text
                self.reasoning += event.reasoning.text
            elif kind == "text":
                assert event.text.text
                assert not self.calls, "no content after a call"
                self.text += event.text.text
            elif kind == "call":
                assert event.call.index == len(self.calls)
                assert event.call.name
                self.calls.append((event.call.name, ""))
            else:
                assert event.call_delta.arguments
                assert event.call_delta.index == len(self.calls) - 1
                name, arguments = self.calls[-1]
                self.calls[-1] = (name, arguments + event.call_delta.arguments)

    @property
    def what(self) -> tuple[str, str, list[tuple[str, str]]]:
        return self.reasoning, self.text, self.calls


def tokens(ids: Sequence[int]) -> list[peer_pb2.SampledToken]:
    return [peer_pb2.SampledToken(id=token) for token in ids]


def listen(answer: Answer, ids: Sequence[int]) -> Told:
    """Feed tokens one by one."""
    told = Told()
    for token in tokens(ids):
        told.hear(answer.feed([token]))
    return told
