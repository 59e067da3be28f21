"""Messages in channels, marked by special tokens: gpt-oss.

    <|channel|>final<|message|>text
    <|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>
    <|channel|>commentary<|message|>text before a call<|end|><|start|>assistant...

Thoughts are messages in the channel `analysis`; whoever parses takes them out first. A call ends the turn, so there is
one in an answer.
"""

import re
from collections.abc import Callable, Sequence

from room.text.segments import ARGUMENTS, CALL, TEXT, Segment, TagFinder, ThinkTags
from room.text.tools.base import ANY_TEXT, Call, JsonObject, Lark, Look, Parser, Tool, arguments_rule, quoted

NAME = "harmony"
START, CHANNEL, MESSAGE, END, CALLED = "<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"
CONSTRAIN = "<|constrain|>"
ALWAYS = True
SHOWN = (START, CHANNEL, MESSAGE, END, CONSTRAIN)
"""<|call|> and <|return|> end an answer: nobody sees them."""
OPENER = ""
THOUGHTS = ThinkTags(f"{CHANNEL}analysis{MESSAGE}", f"{END}{START}assistant", head="", tail="", gap="")

_RECIPIENT = re.compile(r"to=functions\.(\S+)")


def detect(look: Look) -> bool:
    return {START, CHANNEL, MESSAGE, END} <= look.names and CHANNEL in look.call + look.system


def render_answer(content: str, calls: Sequence[Call]) -> str:
    """Of several calls each is a message of its own."""
    messages = [_message("commentary" if calls else "final", content)] if content or not calls else []
    return f"{END}{START}assistant".join([*messages, *map(render_call, calls)])


def _message(channel: str, content: str) -> str:
    return f"{CHANNEL}{channel}{MESSAGE}{content}"


def render_call(call: Call) -> str:
    return f"{CHANNEL}commentary to=functions.{call.name} {CONSTRAIN}json{MESSAGE}{call.text}"


def grammar(tools: Sequence[Tool], most: int, lark: Lark) -> str:
    """`most` is not looked at: a call ends the turn."""
    channel, message, end, start, constrain = map(lark.special, (CHANNEL, MESSAGE, END, START, CONSTRAIN))
    rules = [
        "calls: " + " | ".join(f"late_{at} | early_{at}" for at in range(len(tools))),
        "free_or_calls: final | before? calls",
        f"final: {channel} {quoted('final')} {message} TEXT",
        f"before: {channel} {quoted('commentary')} {message} TEXT {end} {start} {quoted('assistant')}",
        f"TEXT: {ANY_TEXT}",
    ]
    for at, tool in enumerate(tools):
        # The recipient may stand before the channel, too.
        to = f" to=functions.{tool.name}"
        rules += [
            f"late_{at}: {channel} {quoted(f'commentary{to} ')} json_{at}",
            f"early_{at}: {quoted(to)} {channel} {quoted('commentary ')} json_{at}",
            f"json_{at}: {constrain}? {quoted('json')} {message} {arguments_rule(tool, lark)}",
        ]
    return "\n".join(rules) + "\n"


def answer_rule(rule: str, lark: Lark) -> str:
    """Lark for an answer in the channel people see."""
    return f"{lark.special(CHANNEL)} {quoted('final')} {lark.special(MESSAGE)} {rule}"


def parser(tools: Sequence[Tool]) -> Parser:
    return _Parser(tools)


class _Parser:
    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name for tool in tools}
        self.complete = 0
        self.held = ""
        self._state: Callable[[list[Segment]], bool] = self._header
        self._message = TagFinder([MESSAGE])
        # Whoever takes thoughts out may have taken the end of a message with them.
        self._end = TagFinder([END, START, CHANNEL])
        self._object = JsonObject()

    @property
    def inside(self) -> bool:
        return self._state == self._arguments

    def feed(self, text: str) -> list[Segment]:
        self.held += text
        out: list[Segment] = []
        while self._state(out):
            pass
        return [segment for segment in out if segment[1]]

    def flush(self, *, cut: bool) -> list[Segment]:
        held, self.held = self.held, ""
        return [(TEXT, held)] if held and self._state == self._text else []

    def _header(self, out: list[Segment]) -> bool:
        """Whom the message is for. What does not look like a header is text."""
        found = self._message.find(self.held)
        if found is None:
            body = self.held.lstrip()
            if body and not any(_alike(body, tag) for tag in (CHANNEL, START, "assistant", "to=")):
                self._state = self._text
                return True
            return False
        header, self.held = self.held[: found[0]], self.held[found[0] + len(MESSAGE) :]
        recipient = _RECIPIENT.search(header.replace(CHANNEL, " ").replace(CONSTRAIN, " "))
        if recipient and recipient[1] in self._tools and not self.complete:
            out.append((CALL, recipient[1]))
            self._object = JsonObject()
            self._state = self._arguments
        else:
            self._state = self._text
        return True

    def _text(self, out: list[Segment]) -> bool:
        found = self._end.find(self.held)
        if found is None:
            cut = self._end.safe(self.held)
            out.append((TEXT, self.held[:cut]))
            self.held = self.held[cut:]
            return False
        out.append((TEXT, self.held[: found[0]]))
        self.held = self.held[found[0] :].removeprefix(END)
        self._state = self._header
        return True

    def _arguments(self, out: list[Segment]) -> bool:
        end = self._object.feed(self.held)
        out.append((ARGUMENTS, self.held[:end]))
        self.held = self.held[end:] if end is not None else ""
        if end is not None:
            self.complete += 1
            self._state = self._over
        return False

    def _over(self, out: list[Segment]) -> bool:
        """A call is the last thing in an answer."""
        self.held = ""
        return False


def _alike(text: str, tag: str) -> bool:
    return tag.startswith(text) or text.startswith(tag)
