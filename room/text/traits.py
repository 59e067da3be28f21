"""What a model's template and vocabulary show of its ways: thinking, effort, calls, frames. Found by trying."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from room.text import tools
from room.text.frames import Frames, Message, Render, mark
from room.text.segments import ThinkTags
from room.text.tools import harmony

LEVELS = ("low", "medium", "high", "xhigh", "max")

_TOOL = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string"}}, "required": ["probe"]},
    },
}
_CALL = {"type": "function", "id": "probe0001", "function": {"name": "probe_tool", "arguments": {"probe": "value"}}}


@dataclass(frozen=True)
class Traits:
    format: tools.Format
    tags: ThinkTags | None
    """What is taken for thoughts in what the model writes; None: it has no such tags."""
    frames: Frames | None
    thinks: bool
    """Thinking can be asked for."""
    stops_thinking: bool
    """And can be left out."""
    levels: dict[str, str]
    """For each level of effort the one that the template takes; empty where it knows none."""

    def thinking(self, asked: bool) -> bool:
        """Whether an answer begins with thoughts when thinking is or is not asked for."""
        return self.thinks and (asked or not self.stops_thinking)

    @property
    def off(self) -> str:
        """What begins an answer without thoughts, where the prompt writes it."""
        return self.frames.off if self.frames else ""

    @property
    def on(self) -> str:
        return self.frames.on if self.frames else ""

    @property
    def opened(self) -> bool:
        """With thinking on, the prompt has begun the thoughts."""
        return self.tags is not None and opens(self.on, self.tags)

    @property
    def opened_always(self) -> bool:
        """The prompt begins thoughts although none are asked for."""
        return self.tags is not None and opens(self.off, self.tags)


def opens(lead: str, tags: ThinkTags) -> bool:
    """Whether what a prompt ends with has begun thoughts and not ended them."""
    return lead.rfind(tags.open) > lead.rfind(tags.close)


def find_traits(
    render: Render, wrap: Callable[[str], Any], names: Iterable[str], source: str, ends: Sequence[str]
) -> Traits:
    """`render` gives the text of messages, `wrap` the form of contents the template takes, `names` are the added
    tokens, `source` is the template's, `ends` are the tokens that end a turn."""
    names = frozenset(names)
    form = tools.format_of(_look(render, wrap, names))
    harmonic = form.NAME == harmony.NAME
    frames = Frames.learn(render, wrap, [*ends, harmony.END, harmony.CALLED] if harmonic else ends)
    tags = harmony.THOUGHTS if harmonic else _tags(names, source)
    off, on = (frames.off, frames.on) if frames else ("", "")
    switches = off != on
    return Traits(
        format=form,
        tags=tags,
        frames=frames,
        thinks=tags is not None and (harmonic or switches or opens(on, tags)),
        stops_thinking=switches,
        levels=_levels(render, wrap),
    )


def _tags(names: frozenset[str], source: str) -> ThinkTags | None:
    tags = ThinkTags()
    known = {tags.open, tags.close} <= names or (tags.open in source and tags.close in source)
    return tags if known else None


def _look(render: Render, wrap: Callable[[str], Any], names: frozenset[str]) -> tools.Look:
    question: Message = {"role": "user", "content": wrap("q")}
    without, system = render([question]), render([question], tools=[_TOOL])
    called: Message = {"role": "assistant", "content": wrap(""), "tool_calls": [_CALL]}
    result: Message = {"role": "tool", "content": wrap("r"), "tool_call_id": _CALL["id"], "name": "probe_tool"}
    history = [question, called, result]
    reacts = bool(system) and system != without and "probe_tool" in system
    call = render(history, tools=[_TOOL]) if reacts else ""
    return tools.Look(system if reacts else "", call.replace(system, ""), names)


def _levels(render: Render, wrap: Callable[[str], Any]) -> dict[str, str]:
    question: Message = {"role": "user", "content": wrap(mark(0))}
    told = {
        level: render([question], add_generation_prompt=True, enable_thinking=True, reasoning_effort=level)
        for level in LEVELS
    }
    if len(set(told.values())) < 2:
        return {}
    levels, best = {}, next(level for level in LEVELS if told[level])
    for level in LEVELS:
        best = level if told[level] else best
        levels[level] = best
    return levels
