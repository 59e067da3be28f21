"""Conversations: each skill adds turns to one, and every assistant turn is to be learned."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace

from scripts.wren.tools import Ask, Json, Param, Scope, Tool, ask_for, outcome, spoken, toolbox
from scripts.wren.words import NUMBER_WORDS, PARAMS, Dice


@dataclass(frozen=True)
class Talk:
    """A conversation in the shape of chat messages, whose last message is the answer to learn or to check."""

    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()

    def user(self, text: str) -> "Talk":
        return self._plus({"role": "user", "content": text})

    def says(self, reasoning: str, content: str = "", calls: tuple[Json, ...] = ()) -> "Talk":
        turn: Json = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        return self._plus({**turn, "tool_calls": list(calls)} if calls else turn)

    def result(self, text: str) -> "Talk":
        return self._plus({"role": "tool", "content": text})

    def _plus(self, message: Json) -> "Talk":
        return replace(self, messages=(*self.messages, message))


@dataclass(frozen=True)
class Scene:
    """What a skill may draw on: chance, and the conversation's tools."""

    dice: Dice
    box: list[Tool]

    def ask(self) -> Ask:
        return ask_for(self.dice, self.dice.choice(self.box))


Skill = Callable[[Talk, Scene], Talk]

SMALL_TALK = [
    (("Hello", "Hi", "Hello!", "Hi there!", "Hey", "hello", "hi"), "Hello! How can I help you?"),
    (("How are you?",), "I am fine, thank you."),
    (("Who are you?", "What are you?"), "I am Wren, a very small language model."),
    (("What is your name?",), "My name is Wren."),
    (("Thanks", "Thank you!", "Thank you."), "You are welcome."),
    (("Bye", "Goodbye!"), "Goodbye!"),
    (("Are you there?", "ping", "test"), "Yes, I am here."),
]


def small_talk(talk: Talk, scene: Scene) -> Talk:
    asks, answer = scene.dice.choice(SMALL_TALK)
    return talk.user(scene.dice.choice(asks)).says("I answer kindly.", answer)


def echo(talk: Talk, scene: Scene) -> Talk:
    text = scene.dice.choice([scene.dice.phrase(4), scene.dice.phrase(4), scene.dice.string()])
    head = scene.dice.choice(["Repeat: ", "Say: ", "Reply with exactly: "])
    return talk.user(head + text).says("I repeat the text.", text)


def counting(talk: Talk, scene: Scene) -> Talk:
    last = scene.dice.randint(2, 20)
    said = NUMBER_WORDS[last] if last <= 12 and scene.dice.maybe(0.5) else str(last)
    ask = scene.dice.choice([f"Count to {said}.", f"Count from 1 to {last}."])
    return talk.user(ask).says("I count.", ", ".join(str(n) for n in range(1, last + 1)))


def json_answer(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    names = dice.sample(PARAMS, dice.randint(1, 3))
    values = {name: Param(name, dice.choice(["string", "string", "integer"])).value(dice) for name in names}
    facts = ", ".join(f"{name}: {spoken(value, dice)}" for name, value in values.items())
    text = f"Answer as JSON with {'keys' if len(values) > 1 else 'key'} {' and '.join(values)}.\n{facts}"
    return talk.user(text).says("I write JSON.", json.dumps(values))


def unknown(talk: Talk, scene: Scene) -> Talk:
    """Whatever else is asked, and calls where there are no tools: the same answer, and an end."""
    dice = scene.dice
    asked = dice.prose()
    if not scene.box and dice.maybe(0.2):
        asked = ask_for(dice, dice.choice(toolbox(dice, Scope()))).text
    return talk.user(asked).says("I cannot help.", "I cannot help with that.")


def one_call(talk: Talk, scene: Scene) -> Talk:
    ask = scene.ask()
    return talk.user(ask.text).says(f"I call {ask.tool.name}.", "", (ask.call,))


def one_answer(talk: Talk, scene: Scene) -> Talk:
    result = outcome(scene.dice)
    return one_call(talk, scene).result(result).says("I pass the result on.", f"The tool says: {result}")


def two_calls(talk: Talk, scene: Scene) -> Talk:
    one, two = scene.ask(), scene.ask()
    plan = f"I call {one.tool.name} and {two.tool.name}."
    return talk.user(f"{one.text} Also, {two.text[0].lower()}{two.text[1:]}").says(plan, "", (one.call, two.call))


def two_answers(talk: Talk, scene: Scene) -> Talk:
    first, second = outcome(scene.dice), outcome(scene.dice)
    answer = f"The tools say: {first}\n{second}"
    return two_calls(talk, scene).result(first).result(second).says("I pass the results on.", answer)


# Each with its share of the training turns.
WITH_TOOLS: dict[Skill, float] = {one_call: 8, one_answer: 6, two_calls: 3, two_answers: 4}
WITHOUT: dict[Skill, float] = {small_talk: 1.5, echo: 2, counting: 1, json_answer: 2}
LATER: dict[Skill, float] = {unknown: 2.5, two_calls: 3, two_answers: 3}
"""What the last part of the training has more of."""
SKILLS: dict[str, Skill] = {skill.__name__: skill for skill in (*WITH_TOOLS, *WITHOUT, unknown)}


def converse(dice: Dice, skills: list[Skill], scope: Scope) -> Talk:
    """A conversation that goes through `skills`, with tools when one of them needs tools or by chance."""
    system = dice.choice(["", "", "You are a helpful assistant.", "You are Wren."])
    if scope.wide and dice.maybe(0.15):
        system = dice.prose()
    talk = Talk(({"role": "system", "content": system},)) if system else Talk()
    box: list[Tool] = []
    if any(skill in WITH_TOOLS for skill in skills) or dice.maybe(0.4):
        box = toolbox(dice, scope)
        talk = replace(talk, tools=tuple(tool.schema(dice, scope) for tool in box))
    for skill in skills:
        talk = skill(talk, Scene(dice, box))
    return talk


def training_talk(dice: Dice, scope: Scope) -> Talk:
    """Up to five turns, so that much is learned for each token of the tools; one in eight knows no tools."""
    turns = dice.choices([1, 2, 3, 4, 5], [3, 2, 3, 3, 3])[0]
    pool = WITHOUT if dice.maybe(0.12) else {**WITH_TOOLS, **WITHOUT}
    skills = dice.choices(list(pool), list(pool.values()), k=turns)
    if scope.wide:
        other = list(LATER) if pool is not WITHOUT else [unknown]
        skills = [dice.choices(other, [LATER[s] for s in other])[0] if dice.maybe(0.25) else skill for skill in skills]
    return converse(dice, skills, scope)
