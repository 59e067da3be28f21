"""Text that comes in pieces, told apart: what the model thinks, what it answers, what it calls."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto

Segment = tuple[str, str]
"""A kind of text, and a piece of it."""

TEXT = "text"
REASONING = "reasoning"
CALL = "call"
"""A call begins; the piece is the function's name, whole."""
ARGUMENTS = "arguments"
"""More of the JSON text of the last call's arguments."""


@dataclass(frozen=True)
class ThinkTags:
    """What a model writes around its thoughts; `head`, `tail` and `gap` are the blank lines it puts there."""

    open: str = "<think>"
    close: str = "</think>"
    head: str = "\n"
    tail: str = "\n"
    gap: str = "\n\n"

    def block(self, reasoning: str) -> str:
        """Thoughts as the model writes them in front of its answer."""
        return f"{self.open}{self.head}{reasoning}{self.tail}{self.close}{self.gap}"


class TagFinder:
    """Finds the first of some tags in a text, also when it is cut anywhere."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(tags)
        self._beginnings = {tag[:length] for tag in self._tags for length in range(1, len(tag))}
        self._longest = max(map(len, self._beginnings), default=0)

    def find(self, text: str) -> tuple[int, str] | None:
        """Where the first whole tag begins, and which it is."""
        found = [(at, tag) for tag in self._tags if (at := text.find(tag)) >= 0]
        return min(found, default=None)

    def safe(self, text: str) -> int:
        """Length of the part of `text` that cannot belong to a tag, whatever comes next."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return len(text) - next((length for length in lengths if text[-length:] in self._beginnings), 0)


class _At(Enum):
    START = auto()
    THOUGHTS = auto()
    GAP = auto()
    ANSWER = auto()
    REST = auto()


class ThinkSplitter:
    """Takes a model's thoughts apart from its answer; tags and the blank lines around them are dropped.

    `inside`: the prompt has opened the thoughts. Thoughts may come later too, until `opener`, the beginning of a
    call: from there on all is answer. In an answer that is `guided` by a grammar, all is answer from its first
    character on, since tags may be part of its data.
    """

    def __init__(self, tags: ThinkTags, *, inside: bool, opener: str = "", guided: bool = False) -> None:
        self._at = _At.THOUGHTS if inside else _At.START
        self.closed = 0
        """How often thoughts have ended."""
        self._fresh = True  # no thought since the tag
        self._opener = opener
        self._guided = guided
        self._tags = tags
        self._close = TagFinder([tags.close])
        self._any = TagFinder([tags.open, tags.close, *([opener] if opener else [])])
        self._held = ""

    @property
    def thinking(self) -> bool:
        return self._at is _At.THOUGHTS

    @property
    def held(self) -> str:
        """Text that has not come out: it may yet belong to a tag."""
        return self._held

    def feed(self, text: str) -> list[Segment]:
        self._held += text
        out: list[Segment] = []
        while self._step(out):
            pass
        return [segment for segment in out if segment[1]]

    def flush(self) -> list[Segment]:
        """The text ends here."""
        held, self._held = self._held, ""
        if self._at is _At.THOUGHTS:
            held = held.lstrip("\n") if self._fresh else held
            cut = self._close.safe(held)
            held = held[:cut] if len(held) - cut > 1 else held  # most of a tag is no thought
            return [(REASONING, held.rstrip("\n"))] if held.rstrip("\n") else []
        return [(TEXT, held)] if held and (self._at is not _At.GAP or held.strip()) else []

    def _step(self, out: list[Segment]) -> bool:
        """Take one thing out of what is held; False when more must come first."""
        if not self._held:
            return False
        if self._at is _At.THOUGHTS:
            return self._think(out)
        if self._at in (_At.START, _At.GAP):
            return self._begin()
        return self._answer(out)

    def _think(self, out: list[Segment]) -> bool:
        if self._fresh:
            self._held = self._held.lstrip("\n")
            # Qwen3 is asked to open its thoughts itself; a prompt that has opened them may see the tag again.
            if self._held.startswith(self._tags.open):
                self._held = self._held.removeprefix(self._tags.open).lstrip("\n")
            elif self._tags.open.startswith(self._held):
                return False
        found = self._close.find(self._held)
        if found:
            at, tag = found
            out.append((REASONING, self._held[:at].rstrip("\n")))
            self._held = self._held[at + len(tag) :]
            self._at = _At.GAP
            self.closed += 1
            return True
        cut = len(self._held[: self._close.safe(self._held)].rstrip("\n"))
        out.append((REASONING, self._held[:cut]))
        self._fresh = self._fresh and not cut
        self._held = self._held[cut:]
        return False

    def _begin(self) -> bool:
        """Before the first character of the answer: thoughts may come, and blank lines belong to the tags."""
        body = self._held.lstrip()
        for tag in (self._tags.open, self._tags.close):
            if body.startswith(tag):
                self._open_or_close(tag, body)
                return True
            if tag.startswith(body):  # also when nothing but blanks has come
                return False
        if self._at is _At.GAP:
            self._held = self._held.lstrip("\n")
        self._at = _At.REST if self._guided else _At.ANSWER
        return True

    def _answer(self, out: list[Segment]) -> bool:
        found = self._any.find(self._held) if self._at is _At.ANSWER else None
        if found and found[1] != self._opener:
            at, tag = found
            out.append((TEXT, self._held[:at]))
            self._open_or_close(tag, self._held[at:])
            return True
        if found:
            self._at = _At.REST
        cut = self._any.safe(self._held) if self._at is _At.ANSWER else len(self._held)
        out.append((TEXT, self._held[:cut]))
        self._held = self._held[cut:]
        return False

    def _open_or_close(self, tag: str, text: str) -> None:
        self._held = text.removeprefix(tag)
        self._at = _At.THOUGHTS if tag == self._tags.open else _At.GAP
        self._fresh = True
