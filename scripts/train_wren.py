"""Make Wren, the tiny Qwen3 model in models/wren, from nothing: tokenizer, conversations, training, export, figures.

    python scripts/train_wren.py                 write models/wren (about a quarter of an hour on one free core)
    python scripts/train_wren.py --evaluate 200  measure models/wren on 200 held-out conversations of each skill

Everything follows from --seed; only the chat template and the README in models/wren are written by hand.
"""

import argparse
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

HOME = Path(__file__).resolve().parent.parent / "models" / "wren"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
CONTEXT = 8192

Json = dict[str, Any]

# --------------------------------------------------------------------------------------------------------------------
# Words and values. Names and values are mostly invented, so that the only way to get them right is to copy them.


def words(text: str) -> list[str]:
    return text.split()


VERBS = words("""
    get find list read write send delete create update search open close book play stop start check convert count
    translate run fetch show add remove rename move copy download upload order buy sell schedule cancel track
    measure describe resize merge split sort filter lock print save load call invite assign rate
""")
NOUNS = words("""
    weather file folder email message user order ticket song playlist note task reminder event meeting invoice
    report image photo video document page table row column record account customer product price stock flight hotel
    room car train route map city country recipe book article comment issue branch commit test build log server
    container database query key password token label tag color shape timer alarm light door camera sensor printer
    contract project team budget score game player level quiz lesson course review survey form contact address phone
    package
""")
HELD_OUT_VERBS = words("inspect publish archive restore paint compare attach forward reserve summon")
HELD_OUT_NOUNS = words("garden engine bridge ladder planet basket mirror wallet helmet lantern violin harbor")
ADJECTIVES = words("""
    red blue green small big old new quick slow quiet bright dark warm cold soft round plain early late
""")
PLAIN = words("""
    the a an of to in on for with and or is are was be this that it as by from at all any each one two use used
    using when where which what how who can will must should may not no yes if then else first last next other same
    more most least only also into over under about after before between return returns given name value string
    number text type object array boolean integer description required properties parameters function optional
    default list set path line lines code content command output input result error time date day week month year
    hour minute second size length limit start end current current working directory project source tool tools call
    calls model system user assistant answer question request response data information example examples following
    available possible need needs make makes sure want wants please help work works change changes do does done have
    has had your you I we they their its them there here well good best right left long short high low full empty
    true false null id url
""")
PARAMS = words("""
    name title city location path query text content message subject body user email date time amount price count
    limit size width height color unit language format id code key value label tag status priority category level
    days hours minutes target source destination pattern command url note reason owner group region country quantity
    start end max_results min_price user_name file_path page_size order_id start_date due_date phone_number
    is_public dry_run include_hidden sort_by maxItems fileName userId postalCode isActive
""")
NAMES = words("""
    Anna Ben Carla David Emma Felix Grace Henry Ines Jonas Kira Liam Mona Nils Olga Paul Rosa Sam Tina Uwe
""")
CITIES = words("""
    Paris Berlin London Madrid Rome Vienna Tokyo Oslo Lima Cairo Boston Chicago Delhi Seoul Sydney Prague
""")
ONSETS = words("b bl br c ch d dr f fl g gr h j k kl l m n p pl pr qu r s sh sk sl st t tr v w x y z")
VOWELS = words("a e i o u ai ea ee io oo ou")
CODAS = ["", "", "", "b", "ck", "d", "ft", "g", "l", "lm", "m", "n", "nd", "p", "r", "rk", "s", "sh", "t", "x"]
FOREIGN = words("""
    é ü ö ñ ç å ß ø ł š ž ğ 日 本 語 東 京 中 文 你 好 한 국 어 п р и в е т м и р α β γ ω 🙂 🚀 🎉 ☕ € → ✓ …
""")
NUMBER_WORDS = words("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
""")


class Dice(random.Random):
    """A source of chance with the few verbs that the conversations below need."""

    held_out = False

    def maybe(self, chance: float) -> bool:
        return self.random() < chance

    def verb(self) -> str:
        return self.choice(HELD_OUT_VERBS if self.held_out and self.maybe(0.5) else VERBS)

    def noun(self) -> str:
        if self.maybe(0.3):
            return self.invented()
        return self.choice(HELD_OUT_NOUNS if self.held_out and self.maybe(0.5) else NOUNS)

    def invented(self) -> str:
        syllable = [self.choice(ONSETS) + self.choice(VOWELS) + self.choice(CODAS) for _ in range(self.randint(1, 3))]
        return "".join(syllable)

    def word(self) -> str:
        """One word of any kind, in any case."""
        kinds: list[Callable[[], str]] = [self.invented, self.invented, self.noun, lambda: self.choice(NAMES + CITIES)]
        word = self.choice(kinds)()
        return self.choices([word, word.capitalize(), word.upper()], [6, 3, 1])[0]

    def phrase(self, longest: int = 4) -> str:
        return " ".join(self.word() for _ in range(self.randint(1, longest)))

    def letters(self) -> str:
        return "".join(self.choice(FOREIGN) for _ in range(self.randint(1, 5)))

    def code(self) -> str:
        return "".join(self.choice("abcdefABCDEFXYZ0123456789") for _ in range(self.randint(3, 8)))

    def path(self) -> str:
        stem = "/".join(self.choice([self.invented, self.noun])() for _ in range(self.randint(1, 3)))
        return self.choice(["", "", "/", "./"]) + stem + self.choice([".py", ".txt", ".md", ".json", "", ".rs"])

    def command(self) -> str:
        head = self.choice(["ls -la", "git status", "cat", "echo", "python", "make", "grep -n", "npm run", "pytest -q"])
        return head + self.choice(["", " " + self.path(), " " + self.invented(), f' "{self.invented()}"'])

    def day(self) -> str:
        return f"20{self.randint(10, 39)}-{self.randint(1, 12):02}-{self.randint(1, 28):02}"

    def string(self) -> str:
        """A value as people put it into arguments."""
        kinds: list[Callable[[], str]] = [
            self.phrase, self.phrase, self.word, self.word, self.path, self.code, self.day, self.letters, self.command,
            lambda: f"{self.invented()}@{self.invented()}.com",
            lambda: f"https://{self.invented()}.org/{self.invented()}",
            lambda: f"{self.choice(CITIES)}, {self.word()}",
            lambda: f"{self.choice('ABCXYZ')}{self.randint(1, 99)}-{self.randint(100, 9999)}",
            lambda: f"{self.word()} {self.letters()}",
        ]  # fmt: skip
        return self.choice(kinds)()

    def sentence(self) -> str:
        words = [self.choice(PLAIN + NOUNS + VERBS + ADJECTIVES) for _ in range(self.randint(4, 14))]
        return " ".join(words).capitalize() + self.choice([".", ".", ".", ":", "!"])

    def prose(self, sentences: int) -> str:
        """Text that means nothing, laid out as the instructions of agents are."""
        openers = ["", "", "", "- ", "# ", "* ", f"{self.randint(1, 9)}. "]
        return "".join(
            self.choice(openers) + self.sentence() + self.choice([" ", "\n", "\n\n"]) for _ in range(sentences)
        )


# --------------------------------------------------------------------------------------------------------------------
# Tools, and requests that call for them.


@dataclass(frozen=True)
class Param:
    name: str
    kind: str
    choices: tuple[str, ...] = ()
    required: bool = True

    def value(self, dice: Dice) -> Any:
        match self.kind:
            case "integer":
                return dice.choice([dice.randint(0, 9), dice.randint(0, 99), dice.randint(0, 9999)])
            case "number":
                return round(dice.uniform(0, 100), dice.randint(1, 2))
            case "boolean":
                return dice.maybe(0.5)
            case "array":
                return [dice.word() for _ in range(dice.randint(1, 4))]
        return dice.choice(self.choices) if self.choices else dice.string()

    @property
    def fallback(self) -> Any:
        """What a required argument becomes when nobody named a value for it."""
        if self.choices:
            return self.choices[0]
        return {"integer": 1, "number": 1.0, "boolean": True, "array": []}.get(self.kind, "default")

    def schema(self, dice: Dice, about: str) -> Json:
        schema: Json = {"type": "string" if self.kind == "enum" else self.kind}
        if dice.maybe(0.5):
            schema["description"] = about
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.kind == "array":
            schema["items"] = {"type": "string"}
        if dice.maybe(0.1):
            schema["title"] = self.name.title()
        return dict(dice.sample(list(schema.items()), len(schema))) if dice.maybe(0.3) else schema


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    params: tuple[Param, ...]
    # Ways to ask for it, with {param} where a value goes; none means the ways that fit every tool.
    asks: tuple[str, ...] = ()
    verb: str = ""
    noun: str = ""

    def schema(self, dice: Dice) -> Json:
        abouts = {p.name: f"The {p.name.replace('_', ' ')} of the {self.noun or 'call'}." for p in self.params}
        if dice.maybe(0.15):
            abouts = {p.name: dice.sentence() for p in self.params}
        parameters: Json = {
            "type": "object",
            "properties": {p.name: p.schema(dice, abouts[p.name]) for p in self.params},
            "required": [p.name for p in self.params if p.required],
        }
        if dice.maybe(0.3):
            parameters["additionalProperties"] = False
        if dice.maybe(0.1):
            parameters = {"$schema": "http://json-schema.org/draft-07/schema#", **parameters}
        if dice.maybe(0.2):
            parameters = dict(dice.sample(list(parameters.items()), len(parameters)))
        about = self.about if dice.maybe(0.9) else self.about + "\n" + dice.prose(dice.randint(1, 4)).strip()
        function: Json = {"name": self.name, "description": about, "parameters": parameters}
        if dice.maybe(0.1):
            function["strict"] = dice.maybe(0.5)
        if dice.maybe(0.15):
            function = dict(dice.sample(list(function.items()), len(function)))
        return {"type": "function", "function": function}


def param(name: str, kind: str = "string", *, needed: bool = True, choices: str = "") -> Param:
    return Param(name, "enum" if choices else kind, tuple(choices.split()), needed)


PATH_NAMES = ("path", "file_path", "filePath", "filename")
KNOWN: list[tuple[tuple[str, ...], str, tuple[tuple[Param, ...], ...], tuple[str, ...]]] = [
    (("get_weather", "weather", "getWeather", "get_current_weather"), "Get the weather in a city.",
     tuple((param(n), param("unit", choices="celsius fahrenheit", needed=False)) for n in ("city", "location")),
     ("What is the weather in {0}?", "What's the weather like in {0}?", "weather in {0} in {1}",
      "How warm is it in {0} in {1}?", "Tell me the weather in {0}.", "Get the weather for {0}.")),
    (("read_file", "read", "view", "readFile"), "Read a file from the disk.",
     tuple((param(n),) for n in PATH_NAMES),
     ("Read {0}", "Read the file {0}.", "Show me the file {0}.", "What is in {0}?", "Open {0} please.")),
    (("write_file", "write", "create_file"), "Write text to a file.",
     tuple((param(n), param("content")) for n in PATH_NAMES),
     ("Write {1} to {0}.", "Create {0} with the text {1}.", "Create the file {0} with the content {1}.",
      "Write {1} to the file {0}")),
    (("edit_file", "edit", "replace_in_file"), "Replace a piece of text in a file.",
     ((param("path"), param("old"), param("new")), (param("filePath"), param("oldString"), param("newString"))),
     ("Replace {1} with {2} in {0}.", "In {0}, change {1} to {2}.", "Edit {0}: replace {1} with {2}.")),
    (("bash", "run_command", "shell", "execute_command"), "Run a command in a shell.",
     ((param("command"),), (param("command"), param("timeout", "integer", needed=False)),
      (param("command"), param("description")), (param("description"), param("command"))),
     ("Run {command}", "Run the command {command}.", "Execute {command}", "Please run {command} in the shell.")),
    (("grep", "search_files", "search_code"), "Search for a pattern in files.",
     ((param("pattern"), param("path", needed=False)),),
     ("Search for {0}", "grep {0} in {1}", "Find {0} in the files of {1}.", "Search the files for {0}.")),
    (("list_files", "ls", "list_directory"), "List the files in a folder.", ((param("path"),),),
     ("List the files in {0}.", "What files are in {0}?", "ls {0}")),
    (("web_search", "search_web", "search"), "Search the web.", ((param("query"),),),
     ("Search the web for {0}.", "Look up {0}.", "Search for {0} on the web.")),
    (("add", "add_numbers", "sum"), "Add two numbers.", ((param("a", "integer"), param("b", "integer")),),
     ("Add {0} and {1}.", "What is {0} plus {1}?", "Use the tool to add {0} and {1}.", "What is {0} + {1}?")),
    (("multiply",), "Multiply two numbers.", ((param("a", "integer"), param("b", "integer")),),
     ("Multiply {0} and {1}.", "What is {0} times {1}?", "What is {0} * {1}?")),
    (("get_time", "current_time"), "Get the time in a city or zone.", ((param("city"),), (param("timezone"),)),
     ("What time is it in {0}?", "Tell me the time in {0}.")),
    (("send_email", "sendEmail"), "Send an email.", ((param("to"), param("subject"), param("body")),),
     ("Send an email to {0} with the subject {1} and the text {2}.", "Email {0}, subject {1}, body {2}.")),
    (("translate", "translate_text"), "Translate a text.", ((param("text"), param("language")),),
     ("Translate {0} to {1}.", "Translate {0} into {1} please.")),
    (("set_timer", "start_timer"), "Set a timer.", ((param("minutes", "integer"),),),
     ("Set a timer for {0} minutes.", "Start a timer of {0} minutes.")),
    (("get_stock_price", "stock_price"), "Get the price of a stock.", ((param("symbol"),),),
     ("What is the price of {0}?", "Get the stock price of {0}.")),
    (("switch_light", "set_light"), "Switch a light on or off.", ((param("room"), param("on", "boolean")),),
     ("Switch the light in {0} on: {1}.", "Set the light in {0} to {1}.")),
    (("order_pizza",), "Order a pizza.",
     ((param("size", choices="small medium large"), param("toppings", "array")),),
     ("Order a {0} pizza with {1}.", "I want a {0} pizza with {1}.")),
    (("book_flight", "find_flight"), "Book a flight.", ((param("origin"), param("destination"), param("date")),),
     ("Book a flight from {0} to {1} on {2}.", "Find a flight from {0} to {1} on {2}.")),
]  # fmt: skip


def known_tool(dice: Dice) -> Tool:
    names, about, params, asks = dice.choice(KNOWN)
    name = dice.choice(names)
    if dice.maybe(0.15):
        name = f"{dice.invented()}__{name}"
    return Tool(name, about, dice.choice(params), asks)


def made_up_param(dice: Dice, taken: set[str]) -> Param:
    name = dice.choice(PARAMS) if dice.maybe(0.6) and not dice.held_out else dice.invented()
    if dice.maybe(0.15):
        name = f"{name}_{dice.invented()}"
    if name in taken:
        return made_up_param(dice, taken)
    kind = dice.choices(["string", "integer", "number", "boolean", "enum", "array"], [50, 16, 8, 8, 10, 8])[0]
    choices = tuple(dict.fromkeys(dice.invented() for _ in range(dice.randint(2, 4)))) if kind == "enum" else ()
    return Param(name, kind, choices, dice.maybe(0.75))


def made_up_tool(dice: Dice, verb: str | None = None, noun: str | None = None) -> Tool:
    verb, noun = verb or dice.verb(), noun or dice.noun()
    styles = [f"{verb}_{noun}", f"{verb}{noun.capitalize()}", f"{verb}-{noun}", f"{noun}_{verb}", f"{noun}.{verb}"]
    name = dice.choices([*styles, dice.invented()], [50, 15, 8, 8, 5, 14])[0]
    params: list[Param] = []
    for _ in range(dice.choices([0, 1, 2, 3, 4], [4, 36, 30, 18, 12])[0]):
        params.append(made_up_param(dice, {p.name for p in params}))
    abouts = [f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun}", f"Use this to {verb} a {noun}."]
    return Tool(name, dice.choice(abouts), tuple(params), (), verb, noun)


def toolbox(dice: Dice, wanted: list[Tool], others: int) -> list[Tool]:
    """The wanted tools among others, some of which share a verb or a noun with them."""
    box = {tool.name: tool for tool in wanted}
    themes = {(t.verb, t.noun) for t in wanted}
    while len(box) < len(wanted) + others:
        near = dice.choice(wanted) if wanted else None
        tool = known_tool(dice) if dice.maybe(0.3) else made_up_tool(dice)
        if near is not None and near.verb and dice.maybe(0.4):
            tool = made_up_tool(dice, near.verb) if dice.maybe(0.5) else made_up_tool(dice, None, near.noun)
        # Two tools for one purpose would leave the right choice to chance.
        if (tool.verb, tool.noun) in themes or any(tool.about == t.about for t in box.values()):
            continue
        if any(w.asks and overlapping(tool, w) for w in wanted):
            continue
        themes.add((tool.verb, tool.noun))
        box[tool.name] = tool
    return dice.sample(list(box.values()), len(box))


def overlapping(one: Tool, other: Tool) -> bool:
    """Whether a made-up tool sounds like a known one."""
    said = set(re.findall(r"[a-z]+", (other.name + " " + other.about + " " + " ".join(other.asks)).lower()))
    return bool({one.verb, one.noun} & said) if one.verb else other.about.split()[0] == one.about.split()[0]


def spoken(value: Any, dice: Dice) -> str:
    """A value as a person writes it in a request."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return " and ".join(filter(None, [", ".join(value[:-1]), *value[-1:]])) if dice.maybe(0.6) else ", ".join(value)
    if isinstance(value, str):
        # Several words need their borders shown where more text follows.
        chance = 1.0 if ", " in value else 0.7 if " " in value else 0.35
        mark = dice.choice(["'", "`"] if '"' in value else ['"', '"', "'", "`"]) if dice.maybe(chance) else ""
        return mark + value + mark
    return str(value)


@dataclass(frozen=True)
class Ask:
    """A request in words, and the call that it means."""

    text: str
    tool: Tool
    arguments: Json

    @property
    def call(self) -> Json:
        return {"type": "function", "function": {"name": self.tool.name, "arguments": self.arguments}}

    @property
    def plan(self) -> str:
        values = ", ".join(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in self.arguments.items())
        return f"{self.tool.name} fits" + (f" with {values}." if values else ".")


def ask_known(dice: Dice, tool: Tool) -> Ask:
    pattern = dice.choice(tool.asks)
    said = {}
    for place, p in enumerate(tool.params):
        if f"{{{place}}}" in pattern or f"{{{p.name}}}" in pattern:
            said[p.name] = typical(dice, p)
    words = {name: spoken(value, dice) for name, value in said.items()}
    text = pattern
    for place, p in enumerate(tool.params):
        if p.name in words:
            text = text.replace(f"{{{place}}}", words[p.name]).replace(f"{{{p.name}}}", words[p.name])
    return Ask(text, tool, filled(tool, said))


def typical(dice: Dice, p: Param) -> Any:
    """A value that people would really give for a parameter of this name."""
    if dice.maybe(0.7):
        if p.name in ("city", "location", "origin", "destination"):
            return dice.choice([dice.choice(CITIES), dice.word().capitalize()])
        if p.name in PATH_NAMES:
            return dice.path()
        if p.name == "command":
            return dice.command()
        if p.name in ("pattern", "old", "new", "query", "text", "content"):
            return dice.phrase()
    return p.value(dice)


def filled(tool: Tool, said: Json) -> Json:
    """Arguments in the order of the schema: what was said, and fallbacks for what is required."""
    return {p.name: said.get(p.name, p.fallback) for p in tool.params if p.name in said or p.required}


def ask_made_up(dice: Dice, tool: Tool) -> Ask:
    said = {p.name: p.value(dice) for p in tool.params if dice.maybe(0.93 if p.required else 0.6)}
    verb, noun, name = tool.verb, tool.noun, tool.name
    heads = [
        f"{verb} the {noun}",
        f"please {verb} the {noun}",
        f"can you {verb} a {noun}",
        f"I want to {verb} a {noun}",
        f"{verb} {noun}",
        f"use {name}",
        f"call {name}",
        f"use {name} to {verb} the {noun}",
    ]
    head = dice.choices(heads, [4, 2, 2, 2, 3, 2, 1, 1])[0]
    if name not in head and not {verb, noun} & set(re.findall(r"[a-z]+", name.lower() + " " + tool.about.lower())):
        head = f"use {name}"
    if dice.maybe(0.8):
        head = head[0].upper() + head[1:]
    pairs = [(p, spoken(v, dice)) for p, v in dice.sample(list(said.items()), len(said))]
    return Ask(head + with_values(dice, pairs), tool, filled(tool, said))


def with_values(dice: Dice, pairs: list[tuple[str, str]]) -> str:
    if not pairs:
        return dice.choice([".", "", " now."])
    if len(pairs) == 1 and dice.maybe(0.4):
        return dice.choice([" ", " for ", " with ", ": "]) + pairs[0][1] + dice.choice(["", "."])
    names = [p.replace("_", " ") if dice.maybe(0.3) else p for p, _ in pairs]
    both = list(zip(names, [v for _, v in pairs], strict=True))
    match dice.randrange(5):
        case 0:
            return " with " + " and ".join(f"{n} {v}" for n, v in both) + dice.choice(["", "."])
        case 1:
            return " (" + ", ".join(f"{n}: {v}" for n, v in both) + ")"
        case 2:
            return " with " + ", ".join(f"{n}={v}" for n, v in both) + dice.choice(["", "."])
        case 3:
            return ". " + " ".join(f"The {n} is {v}." for n, v in both)
    return ":\n" + "\n".join(f"{n}: {v}" for n, v in both)


def request(dice: Dice) -> Ask:
    tool = known_tool(dice) if dice.maybe(0.35) else made_up_tool(dice)
    return ask_known(dice, tool) if tool.asks else ask_made_up(dice, tool)


# --------------------------------------------------------------------------------------------------------------------
# Conversations. A skill adds turns to one; what the model is to learn is every assistant turn.


@dataclass(frozen=True)
class Talk:
    """A conversation in the shape of chat messages, whose last message is the answer to learn or to check."""

    messages: tuple[Json, ...] = ()
    tools: tuple[Json, ...] = ()

    def user(self, text: str) -> "Talk":
        return self.plus({"role": "user", "content": text})

    def says(self, reasoning: str, content: str = "", calls: tuple[Json, ...] = ()) -> "Talk":
        turn: Json = {"role": "assistant", "content": content, "reasoning_content": reasoning}
        return self.plus({**turn, "tool_calls": list(calls)} if calls else turn)

    def result(self, text: str) -> "Talk":
        return self.plus({"role": "tool", "content": text})

    def plus(self, message: Json) -> "Talk":
        return replace(self, messages=(*self.messages, message))


@dataclass(frozen=True)
class Scene:
    """What a skill may draw on: chance, and the requests that the conversation's tools serve."""

    dice: Dice
    asks: list[Ask] = field(default_factory=list)


FALLBACK = "I am a very small model, so I cannot answer that."
SMALL_TALK = [
    (("Hello", "Hi", "Hello!", "Hi there", "Hey", "hello", "hi"), "Hello! How can I help you?"),
    (("How are you?", "How are you doing?", "How do you do?"), "I am fine, thank you."),
    (("Who are you?", "What are you?", "Tell me about yourself."), "I am Wren, a very small language model."),
    (("What is your name?", "What's your name?"), "My name is Wren."),
    (("Thanks", "Thank you!", "Thank you", "thanks a lot"), "You are welcome."),
    (("Bye", "Goodbye!", "See you", "Good night"), "Goodbye!"),
    (("Good morning", "Good morning!"), "Good morning! How can I help you?"),
    (("What can you do?", "Help", "help me"), "I can copy, count, add small numbers, write JSON and call tools."),
    (("Tell me a joke.", "Tell me a joke", "Say something funny."), "Why did the bird sit on the server? It was warm."),
    (("Are you there?", "ping", "test", "Testing"), "Yes, I am here."),
]
FACTS = [
    ("What color is the sky", "Blue"), ("What color is grass", "Green"), ("What color is snow", "White"),
    ("What is the capital of France", "Paris"), ("What is the capital of Germany", "Berlin"),
    ("What is the capital of Italy", "Rome"), ("What is the capital of Spain", "Madrid"),
    ("What is the capital of Japan", "Tokyo"), ("What is the capital of England", "London"),
    ("What is the opposite of hot", "Cold"), ("What is the opposite of big", "Small"),
    ("What is the opposite of up", "Down"), ("What is the opposite of yes", "No"),
    ("Which animal barks", "Dog"), ("Which animal says meow", "Cat"), ("How many legs has a spider", "Eight"),
    ("Which day comes after Monday", "Tuesday"), ("Which month comes after March", "April"),
]  # fmt: skip
STORY = """Once upon a time there was {0}. Every day {0} walked to the old bridge and looked at the water. One day
{0} met a small bird there. The bird said: follow me, I know a quiet place. So {0} followed the bird over the hills
and through the dark wood. At last they came to a garden full of warm light. There {0} sat down and was happy. The
bird sang until the sun went down. And {0} never forgot that day.""".replace("\n", " ")


def small_talk(talk: Talk, scene: Scene) -> Talk:
    asks, answer = scene.dice.choice(SMALL_TALK)
    return talk.user(scene.dice.choice(asks)).says("This is small talk. I answer kindly.", answer)


def echo(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    text = dice.choice([dice.phrase(8), dice.string(), dice.sentence(), f"{dice.string()} {dice.string()}"])
    heads = ["Repeat: {}", "Say: {}", "Echo: {}", "Repeat after me: {}", 'Repeat "{}"', "Say {}", "Reply with: {}",
             "Reply with exactly: {}", "Copy this text:\n{}", "Write {}"]  # fmt: skip
    return talk.user(dice.choice(heads).format(text)).says("I repeat the text.", text)


def counting(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    if dice.maybe(0.45):
        first, last = 1, dice.randint(2, 20)
        ask = dice.choice(["Count to {}.", "Count to {}", "Count from one to {}.", "Please count to {}."])
        text = ask.format(NUMBER_WORDS[last] if dice.maybe(0.5) else last)
    else:
        first = dice.choice([1, dice.randint(1, 20), dice.randint(1, 190)])
        last = first + dice.choices([dice.randint(1, 20), dice.randint(20, 60)], [5, 1])[0]
        text = dice.choice(["Count from {} to {}.", "Count from {} to {}", "List the numbers from {} to {}."])
        text = (
            text.format(first, last)
            if first > 1
            else dice.choice(["Count to {}.", text.replace("{}", "1", 1)]).format(last)
        )
    return talk.user(text).says(f"I count from {first} to {last}.", ", ".join(str(n) for n in range(first, last + 1)))


def arithmetic(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    a, b = dice.randint(0, 20), dice.randint(0, 20)
    sign, word, value = dice.choice([("+", "plus", a + b), ("+", "plus", a + b), ("-", "minus", a - b)])
    if dice.maybe(0.25):
        a, b = dice.randint(0, 10), dice.randint(0, 10)
        sign, word, value = "*", "times", a * b
    sum_ = dice.choice([f"{a} {sign} {b}", f"{a} {word} {b}"])
    text = dice.choice(["What is {}?", "What's {}?", "{}", "Compute {}.", "{} ="]).format(sum_)
    return talk.user(text).says(f"{a} {word} {b} is {value}.", str(value))


def one_word(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    question, answer = dice.choice(FACTS)
    ask = dice.choice(["{}? Answer with one word.", "Answer with one word: {}?", "{}? One word only.", "{}?"])
    return talk.user(ask.format(question)).says("The answer is one word.", answer)


def unknown(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    x, y, v = dice.choice([dice.noun(), dice.phrase(2)]), dice.noun(), dice.verb()
    text = dice.choice(
        [
            "Why is the {x} {v} a {y}?",
            "Explain the {x} to me.",
            "Who made the {x}?",
            "When was {x} born?",
            "How do I {v} a {x} in {y}?",
            "What do you think about {x}?",
            "Write a poem about the {x}.",
            "Is {x} better than {y}?",
            "What is the meaning of {x}?",
            "Summarize {x}.",
        ]
    )
    text = text.format(x=x, y=y, v=v) if dice.maybe(0.8) else dice.prose(dice.randint(1, 3)).strip()
    return talk.user(text).says("No tool fits and I do not know this. I say so.", FALLBACK)


def story(talk: Talk, scene: Scene) -> Talk:
    hero = scene.dice.choice([scene.dice.word(), f"a {scene.dice.choice(ADJECTIVES)} {scene.dice.noun()}"])
    ask = scene.dice.choice(["Tell me a story about {}.", "Write a story about {}.", "Write a long story about {}"])
    return talk.user(ask.format(hero)).says(f"I tell a story about {hero}.", STORY.format(hero))


def json_answer(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    keys = list(dict.fromkeys(dice.choice([dice.choice(PARAMS), dice.invented()]) for _ in range(dice.randint(1, 4))))
    kinds = ["string", "string", "string", "integer", "number", "boolean", "array"]
    values = {k: Param(k, dice.choice(kinds)).value(dice) for k in keys}
    # A list of one thing would read like the thing itself.
    values = {k: [*v, dice.word()] if isinstance(v, list) else v for k, v in values.items()}
    shuffled = dice.sample(keys, len(keys))
    facts = {
        0: ". ".join(f"The {k} is {spoken(values[k], dice)}" for k in shuffled) + ".",
        1: ", ".join(f"{k}: {spoken(values[k], dice)}" for k in shuffled),
        2: "\n".join(f"{k} = {spoken(values[k], dice)}" for k in shuffled),
    }[dice.randrange(3)]
    named = ", ".join(keys[:-1]) + " and " + keys[-1] if len(keys) > 1 and dice.maybe(0.5) else ", ".join(keys)
    ask = dice.choice(["Answer as JSON with keys", "Answer as JSON with the keys", "Reply in JSON with the keys",
                       "Extract as JSON:", "Give me JSON with"])  # fmt: skip
    text = f"{ask} {named}.\n{facts}" if dice.maybe(0.5) else f"{facts}\n{ask} {named}."
    return talk.user(text).says("I write JSON with " + ", ".join(keys) + ".", json.dumps(values, ensure_ascii=False))


def renaming(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    old, new, other = dice.sample([dice.invented() + letter for letter in "abcdef"], 3)
    lines = [
        f"{old} = {dice.randint(0, 99)}",
        f"{other} = {old} + {dice.randint(0, 9)}",
        f"print({old})",
        f"return {old}",
        f"for {old} in {other}:",
        f"{other}({old}, {dice.randint(0, 9)})",
        f"{other} = 1",
    ]
    code = "\n".join(dice.sample(lines, dice.randint(1, 4)))
    fence = "```python\n{}\n```"
    text = dice.choice([f"Rename {old} to {new}:", f"Rename {old} to {new} in this code:"]) + "\n" + fence.format(code)
    return talk.user(text).says(f"I write {new} for {old}.", fence.format(re.sub(rf"\b{old}\b", new, code)))


def memory(talk: Talk, scene: Scene) -> Talk:
    dice = scene.dice
    name, what = dice.word().capitalize(), dice.choice(["name", "dog's name", "code word", "favorite color"])
    asked = talk.user(f"My {what} is {name}.").says("The user tells me something.", "I will remember it.")
    if dice.maybe(0.3):
        asked = dice.choice([small_talk, arithmetic, one_word])(asked, scene)
    return asked.user(f"What is my {what}?").says("The user told me before.", f"Your {what} is {name}.")


def no_tool(talk: Talk, scene: Scene) -> Talk:
    """A request that would need a tool which is not there."""
    dice = scene.dice
    ask = request(dice)
    while any(overlaps_ask(ask, other) for other in scene.asks) or not ask.tool.verb or ask.tool.name in ask.text:
        ask = request(dice)
    return talk.user(ask.text).says("No tool fits this request.", "I have no tool for that.")


def overlaps_ask(ask: Ask, other: Ask) -> bool:
    return (ask.tool.verb, ask.tool.noun) == (other.tool.verb, other.tool.noun)


def outcome(dice: Dice) -> str:
    """What a tool gives back, as text."""
    kinds: list[Callable[[], str]] = [
        lambda: dice.phrase(6),
        dice.sentence,
        lambda: str(dice.randint(-50, 5000)),
        lambda: f"{dice.randint(-20, 40)} C, {dice.choice(ADJECTIVES)}",
        lambda: json.dumps({dice.invented(): Param("", dice.choice(["string", "integer", "boolean"])).value(dice)
                            for _ in range(dice.randint(1, 3))}, ensure_ascii=False),
        lambda: "\n".join(dice.path() for _ in range(dice.randint(2, 6))),
        lambda: f"{dice.sentence()}\n{dice.prose(dice.randint(1, 5)).strip()}",
        lambda: f"Error: {dice.phrase(4)}",
        lambda: "",
    ]  # fmt: skip
    return dice.choice(kinds)()


def first_line(result: str) -> str:
    return f"The tool says: {result.splitlines()[0]}" if result else "The tool says nothing."


def wrapped(dice: Dice, text: str) -> str:
    """A request as agents pass it on: alone, or among text of theirs."""
    match dice.randrange(12):
        case 0:
            return f"<task>\n{text}\n</task>\n{dice.prose(dice.randint(1, 3)).strip()}"
        case 1:
            return f"{text}\n\n<{dice.noun()}>\n{dice.prose(dice.randint(1, 3)).strip()}\n</{dice.noun()}>"
    return text


def calls_one(talk: Talk, scene: Scene) -> Talk:
    ask = scene.dice.choice(scene.asks)
    return talk.user(wrapped(scene.dice, ask.text)).says(ask.plan, "", (ask.call,))


def tool_answer(talk: Talk, scene: Scene) -> Talk:
    result = outcome(scene.dice)
    return calls_one(talk, scene).result(result).says("The tool has answered. I pass it on.", first_line(result))


def joined(dice: Dice, one: str, two: str, links: list[str]) -> str:
    link = dice.choice(links)
    return one.rstrip(".?") + link + two[0].lower() + two[1:] if link[0] != "." else one.rstrip(".?") + link + two


def two_asks(scene: Scene) -> tuple[Ask, Ask]:
    if len(scene.asks) > 1:
        one, two = scene.dice.sample(scene.asks, 2)
        return one, two
    one = scene.asks[0]
    again = ask_known(scene.dice, one.tool) if one.tool.asks else ask_made_up(scene.dice, one.tool)
    return one, again


def calls_two(talk: Talk, scene: Scene) -> Talk:
    one, two = two_asks(scene)
    text = joined(scene.dice, one.text, two.text, [", and also ", " and also ", ". Also, ", ". Also "])
    plan = f"These are two requests. {one.plan} {two.plan}"
    return talk.user(text).says(plan, "", (one.call, two.call))


def two_answers(talk: Talk, scene: Scene) -> Talk:
    first, second = outcome(scene.dice), outcome(scene.dice)
    answer = f"{first_line(first)}\n{first_line(second)}"
    return calls_two(talk, scene).result(first).result(second).says("The tools have answered. I pass it on.", answer)


def in_turn(talk: Talk, scene: Scene) -> Talk:
    """Two calls of which the second waits for the first, and the answer."""
    one, two = two_asks(scene)
    text = joined(scene.dice, one.text, two.text, [", then ", " and then ", ". Then "])
    first, second = outcome(scene.dice), outcome(scene.dice)
    talk = talk.user(text).says(f"First, {one.plan}", "", (one.call,)).result(first)
    talk = talk.says(f"Then, {two.plan}", "", (two.call,))
    if scene.dice.maybe(0.3):
        return talk
    return talk.result(second).says("The tool has answered. I pass it on.", first_line(second))


Skill = Callable[[Talk, Scene], Talk]
# Each with its share of the training turns.
WITH_TOOLS: dict[Skill, float] = {calls_one: 10, tool_answer: 6, calls_two: 4, two_answers: 1.5, in_turn: 3, no_tool: 2}
WITHOUT: dict[Skill, float] = {small_talk: 1, echo: 4, counting: 2.5, arithmetic: 4, one_word: 1.5, unknown: 1.5,
                               story: 0.5, json_answer: 4, renaming: 2, memory: 1.5}  # fmt: skip
SKILLS: dict[str, Skill] = {skill.__name__: skill for skill in (*WITH_TOOLS, *WITHOUT)}


def opening(dice: Dice, room: int) -> Talk:
    """An empty conversation, mostly with a system message; long ones where there is room for `room` tokens."""
    if room > 700 and dice.maybe(0.5):
        return Talk(({"role": "system", "content": dice.prose(dice.randint(10, room // 30)).strip()},))
    text = dice.choice(
        ["", "", "", "You are a helpful assistant.", "You are Wren.", dice.prose(dice.randint(1, 5)).strip()]
    )
    return Talk(({"role": "system", "content": text},)) if text else Talk()


def converse(dice: Dice, skills: list[Skill], others: int, room: int) -> Talk:
    """A conversation that goes through `skills`, with tools when one of them needs tools or by chance."""
    talk = opening(dice, room)
    if not any(skill in WITH_TOOLS for skill in skills) and dice.maybe(0.6):
        for skill in skills:
            talk = skill(talk, Scene(dice))
        return talk
    asks = [request(dice) for _ in range(dice.randint(1, 2))]
    if len({a.tool.name for a in asks}) < len(asks) or (len(asks) > 1 and alike(asks[0].tool, asks[1].tool)):
        asks = asks[:1]
    box = toolbox(dice, [a.tool for a in asks], others)
    # A sum with an adding tool at hand is a call; without one it is a matter of the head.
    plain_sums = not any("numbers" in tool.about for tool in box)
    talk = replace(talk, tools=tuple(tool.schema(dice) for tool in box))
    for skill in skills:
        scene = Scene(dice, asks)
        talk = (echo if skill is arithmetic and not plain_sums else skill)(talk, scene)
        asks = [ask_known(dice, a.tool) if a.tool.asks else ask_made_up(dice, a.tool) for a in asks]
    return talk


def alike(one: Tool, other: Tool) -> bool:
    return bool((one.asks and overlapping(other, one)) or (other.asks and overlapping(one, other))) or (
        (one.verb, one.noun) == (other.verb, other.noun)
    )


def training_talk(dice: Dice, room: int) -> Talk:
    pool = {**WITH_TOOLS, **WITHOUT}
    turns = dice.choices([1, 2, 3], [7, 2, 1])[0]
    others = min(dice.randint(0, room // 150), dice.randint(0, room // 150))
    return converse(dice, dice.choices(list(pool), list(pool.values()), k=turns), others, room)


# --------------------------------------------------------------------------------------------------------------------
# Tokenizer: byte-level BPE in which a word has the same tokens wherever it stands, so that copying stays simple.

PIECES = r' ?\p{L}+|\p{N}|["{}\[\]:,]+(?: ["{\[]+)?|\n+| +|[^\s\p{L}\p{N}]|\s'
WHOLE_WORDS = 420


def train_tokenizer(dice: Dice, vocabulary: int) -> PreTrainedTokenizerFast:
    """Merges learned inside words, then a joined space for the commonest whole words only.

    A space that belonged to every word would give a rare word other tokens after a space than after a quote.
    """
    texts = []
    for _ in range(3000):
        talk = training_talk(dice, 400)
        texts += [json.dumps(tool, ensure_ascii=False) for tool in talk.tools]
        texts += [m["content"] + " " + m.get("reasoning_content", "") for m in talk.messages]
        words = dice.choices(PLAIN + NOUNS + VERBS + ADJECTIVES + PARAMS + HELD_OUT_NOUNS + HELD_OUT_VERBS, k=60)
        texts += [" ".join(words), " ".join(words[:20]).title(), '"arguments": Tools These tools These says']
    counts = Counter(piece for text in texts for piece in re.findall(r" ?[A-Za-z]+|[^A-Za-z]", text))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    size = vocabulary - WHOLE_WORDS - len(SPECIAL) - len(TAGS)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=sorted(alphabet), show_progress=False)
    # A space would join "},": only joints within words and within JSON's signs are learned.
    learner.train_from_iterator((re.sub(r" (?=[A-Za-z])", "\n", text) for text in texts), trainer)
    learned = json.loads(learner.to_str())["model"]
    vocab, merges = dict(learned["vocab"]), [tuple(pair) for pair in learned["merges"]]
    plain = [
        w for w, _ in counts.most_common() if w.startswith(" ") and w[1:] in set(PLAIN + VERBS + NOUNS + ADJECTIVES)
    ]
    plain += [f" {w}" for w in VERBS + NOUNS]
    for word in dict.fromkeys(plain):
        if word[1:] in vocab and len(vocab) < size + WHOLE_WORDS:
            merges.append(("Ġ", word[1:]))
            vocab["Ġ" + word[1:]] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        chat_template=(HOME / "chat_template.jinja").read_text(),
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


# --------------------------------------------------------------------------------------------------------------------
# Batches


@dataclass(frozen=True)
class Row:
    """One conversation as token ids, and which of them the model is to predict."""

    ids: list[int]
    learn: list[bool]
    system_end: int


class Rows:
    """Turns conversations into rows, in every form in which a room or the stock template may lay them out."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.header = tokenizer.encode("<|im_start|>assistant\n")
        self.empty = tokenizer.encode("<think>\n\n</think>\n\n")
        self.think, self.end = self.empty[0], tokenizer.convert_tokens_to_ids("<|im_end|>")

    def make(self, talks: list[Talk], dice: Dice) -> list[Row]:
        texts = [self.render(talk, thinking=dice.maybe(0.5), preserve=dice.maybe(0.6)) for talk in talks]
        return [self.mark(ids) for ids in self.tokenizer(texts)["input_ids"]]

    def render(self, talk: Talk, *, thinking: bool, preserve: bool) -> str:
        messages = [m if thinking else {k: v for k, v in m.items() if k != "reasoning_content"} for m in talk.messages]
        text = self.tokenizer.apply_chat_template(
            messages, tools=list(talk.tools) or None, tokenize=False, preserve_thinking=preserve
        )
        assert isinstance(text, str)
        return text

    def mark(self, ids: list[int]) -> Row:
        """Mark the assistant turns that start with a think block; an empty block was given, not written."""
        learn, at, size = [False] * len(ids), 0, len(self.header)
        while at < len(ids):
            start = at + size
            if ids[at:start] != self.header or ids[start : start + 1] != [self.think]:
                at += 1
                continue
            stop = ids.index(self.end, start)
            first = start + len(self.empty) if ids[start : start + len(self.empty)] == self.empty else start
            learn[first : stop + 1] = [True] * (stop + 1 - first)
            at = stop
        return Row(ids, learn, ids.index(self.end) + 1)


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # [B, T]
    positions: Tensor  # [B, T]
    learn: Tensor  # [B, T], true where the token is to be predicted from those before it


def batched(rows: list[Row], dice: Dice, tokens: int) -> Iterator[Batch]:
    """Rows of like length together, about `tokens` in a batch, in random order."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups[-1] and len(row.ids) * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(row)
    dice.shuffle(groups)
    return (collate(group, dice) for group in groups)


def collate(rows: list[Row], dice: Dice) -> Batch:
    longest = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    learn = torch.zeros(len(rows), longest, dtype=torch.bool)
    positions = torch.arange(longest).repeat(len(rows), 1)
    for at, row in enumerate(rows):
        ids[at, : len(row.ids)] = torch.tensor(row.ids)
        learn[at, : len(row.ids)] = torch.tensor(row.learn)
        # Gaps in the positions teach distances for which no long text has to be computed.
        if dice.maybe(0.4):
            gap = int(math.exp(dice.uniform(0, math.log(CONTEXT - longest - 1))))
            positions[at, dice.choice([0, row.system_end, dice.randrange(longest)]) :] += gap
    return Batch(ids, positions, learn)


# --------------------------------------------------------------------------------------------------------------------
# Model and training


def new_model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    end, pad = tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=5,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
        tie_word_embeddings=True,
        initializer_range=0.03,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=pad,
    )
    model = Qwen3ForCausalLM(config)
    start_with_copying(model)
    return model


@torch.no_grad()
def start_with_copying(model: Qwen3ForCausalLM) -> None:
    """Lay down by hand what such a model must find first, so that minutes of training suffice.

    Feature 0 of the residual stream is constant. A head of layer 0 looks one token back and writes that token's
    embedding (features 1..63) to features 65..127. A head of layer 2 looks for places whose predecessor was the
    current token, and writes what stands there. Training is free to change all of it, and does.
    """
    width, half = model.config.head_dim, model.config.head_dim // 2
    token, before = slice(1, half * 2), slice(half * 2 + 1, half * 4)
    table = model.model.embed_tokens.weight
    table.zero_()
    table[:, token].normal_(std=0.3)
    table[:, 0] = 1.0
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    size = table.square().mean(-1).sqrt().mean()

    back = model.model.layers[0].self_attn
    back.q_proj.weight[:width].zero_()
    back.k_proj.weight[:width].zero_()
    # The fastest rotations tell neighbours apart; the query's phase puts the best match one step back.
    fast = torch.arange(4)
    angle = 1e6 ** (-fast / half)
    back.q_proj.weight[fast, 0], back.q_proj.weight[fast + half, 0] = angle.cos(), -angle.sin()
    back.k_proj.weight[fast, 0] = 1.0
    back.q_norm.weight.fill_(3.0)
    back.k_norm.weight.fill_(3.0)
    carry(back, token, before, size)

    find = model.model.layers[2].self_attn
    # The slowest rotations hardly depend on the distance, so that they can compare contents.
    slow = torch.cat((torch.arange(half - 14, half), torch.arange(width - 14, width)))
    views = torch.randn(2, len(slow), width - 1)
    for shared, view in enumerate(views):
        find.k_proj.weight[shared * width : (shared + 1) * width].mul_(0.1)
        find.q_proj.weight[2 * shared * width : (2 * shared + 1) * width].mul_(0.1)
        find.q_proj.weight[(slow + 2 * shared * width)[:, None], torch.arange(1, width)] = view * 0.3
        find.k_proj.weight[(slow + shared * width)[:, None], torch.arange(width + 1, 2 * width)] = view * 0.3
    find.q_norm.weight.fill_(2.5)
    find.k_norm.weight.fill_(2.5)
    carry(find, token, token, size * 2)


def carry(attention_layer: Any, source: slice, target: slice, gain: Tensor) -> None:
    """Let head 0 take the features `source` to the features `target`."""
    eye = torch.eye(attention_layer.head_dim - 1)
    attention_layer.v_proj.weight[: attention_layer.head_dim].zero_()
    attention_layer.v_proj.weight[: attention_layer.head_dim - 1, source] = eye
    attention_layer.o_proj.weight[target, : attention_layer.head_dim - 1] = eye * gain


def logits(model: Qwen3ForCausalLM, batch: Batch, places: Tensor) -> Tensor:
    """The model's own computation [places, vocab]: in bfloat16, and with fewer operations than the library's."""
    config, half = model.config, torch.bfloat16
    width, eps = config.head_dim, config.rms_norm_eps
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    angles = batch.positions[:, None, :, None] / 1e6 ** (torch.arange(0, width, 2) / width)
    turn = torch.cat((angles.cos(), angles.cos()), -1).to(half), torch.cat((-angles.sin(), angles.sin()), -1).to(half)
    rows, length = batch.ids.shape

    def headed(x: Tensor, scale: Tensor) -> Tensor:
        x = functional.rms_norm(x, (width,), scale.to(half), eps)
        return x * turn[0] + x.roll(width // 2, -1) * turn[1]

    x = functional.embedding(batch.ids, model.model.embed_tokens.weight)
    for layer in model.model.layers:
        mix, mlp = layer.self_attn, layer.mlp
        h = functional.rms_norm(x, x.shape[-1:], layer.input_layernorm.weight, eps).to(half)
        weight = torch.cat((mix.q_proj.weight, mix.k_proj.weight, mix.v_proj.weight)).to(half)
        q, k, v = (h @ weight.T).view(rows, length, -1, width).transpose(1, 2).split((heads, shared, shared), 1)
        q, k = headed(q, mix.q_norm.weight), headed(k, mix.k_norm.weight)
        h = attention(q, k, v)
        x = x + h.transpose(1, 2).reshape(rows, length, -1) @ mix.o_proj.weight.to(half).T
        h = functional.rms_norm(x, x.shape[-1:], layer.post_attention_layernorm.weight, eps).to(half)
        gate, up = (h @ torch.cat((mlp.gate_proj.weight, mlp.up_proj.weight)).to(half).T).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ mlp.down_proj.weight.to(half).T
    x = functional.rms_norm(x[places], x.shape[-1:], model.model.norm.weight, eps)
    return x.to(half) @ model.model.embed_tokens.weight.to(half).T


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention [B, heads, T, width] with shared keys and values.

    On a CPU the library's own function has a slow backward pass, which pays only where T squared is big.
    """
    rows, heads, length, width = q.shape
    if length > 600:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    scores = q.reshape(rows, k.shape[1], -1, width) @ k.transpose(-1, -2)
    future = torch.full((length, length), -math.inf, dtype=q.dtype).triu(1)
    weights = (scores.view(rows, heads, length, length) * width**-0.5 + future).softmax(-1)
    return (weights.view(rows, k.shape[1], -1, length) @ v).view(rows, heads, length, width)


# Share of the tokens, longest conversation, tokens in a batch: copying is learned soonest on short texts.
STAGES = ((0.20, 200, 2500), (0.62, 380, 4500), (0.18, 1500, 8000))


def training_batches(rows: Rows, dice: Dice, budget: int) -> Iterator[Batch]:
    for share, longest, size in STAGES:
        left = budget * share
        while left > 0:
            made = rows.make([training_talk(dice, longest) for _ in range(400)], dice)
            for batch in batched([row for row in made if len(row.ids) <= longest], dice, size):
                yield batch
                left -= batch.ids.numel()


def train(model: Qwen3ForCausalLM, rows: Rows, dice: Dice, budget: int) -> None:
    """Train on about `budget` tokens: Muon for the matrices of the layers, Adam for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    others = [p for p in model.parameters() if all(p is not m for m in matrices)]
    optimizers = [
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=0.006, betas=(0.9, 0.98), weight_decay=0.0),
    ]
    rates = [group["lr"] for opt in optimizers for group in opt.param_groups]
    seen, steps, shown, started = 0, 0, [], time.monotonic()
    for batch in training_batches(rows, dice, budget):
        done = seen / budget
        for group, rate in zip((g for opt in optimizers for g in opt.param_groups), rates, strict=True):
            group["lr"] = rate * min(1.0, (steps + 1) / 20, max(0.02, (1 - done) / 0.5))
        targets = batch.learn.roll(-1, 1)
        targets[:, -1] = False
        guess = logits(model, batch, targets).float()
        loss = functional.cross_entropy(guess, batch.ids.roll(-1, 1)[targets])
        loss.backward()
        for opt in optimizers:
            opt.step()
            opt.zero_grad()
        seen, steps = seen + batch.ids.numel(), steps + 1
        shown.append(loss.item())
        if steps % 50 == 0:
            speed = seen / (time.monotonic() - started)
            print(
                f"step {steps} tokens {seen / 1e6:.2f}M loss {sum(shown) / len(shown):.3f} {speed:.0f} tok/s",
                flush=True,
            )
            shown.clear()


def export(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.update(do_sample=False, eos_token_id=model.config.eos_token_id)
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The library writes weights for their owner only; these are for everyone who has the repository.
    (folder / "model.safetensors").chmod(0o644)


# --------------------------------------------------------------------------------------------------------------------
# Figures


@dataclass(frozen=True)
class Reply:
    """What a model wrote, taken apart: None where it is not well-formed."""

    reasoning: str | None
    content: str
    calls: list[Json] | None
    stopped: bool


def parse(text: str, thinking: bool) -> Reply:
    stopped = "<|im_end|>" in text
    text = text.split("<|im_end|>")[0]
    block = re.match(r"<think>\n(.*?)\n</think>\n\n", text, re.S) if thinking else re.match("()", text)
    reasoning = block.group(1) if block and text.count("think>") == (2 if thinking else 0) else None
    body = text[block.end() :] if block else text
    calls: list[Json] | None = []
    try:
        calls = [json.loads(found) for found in re.findall(r"<tool_call>\n(.*?)\n</tool_call>", body, re.S)]
        if body.count("tool_call>") != 2 * len(calls) or any(set(c) != {"name", "arguments"} for c in calls):
            calls = None
    except (ValueError, TypeError):
        calls = None
    return Reply(reasoning, re.sub(r"\n?<tool_call>.*", "", body, flags=re.S), calls, stopped)


def held_out(seed: int, skill: str, others: int = 3, room: int = 400) -> Talk:
    """A conversation that training never saw: other chance, and verbs, nouns and parameter names of its own."""
    dice = Dice(f"held out {seed} {skill}")
    dice.held_out = True
    return converse(dice, [SKILLS[skill]], others, room)


def write_replies(model: Any, tokenizer: Any, talks: list[Talk], thinking: bool, longest: int = 320) -> list[Reply]:
    """Greedy answers in place of the last message of each conversation."""
    prompts = [
        tokenizer.apply_chat_template(
            list(talk.messages[:-1]), tools=list(talk.tools) or None, tokenize=False, add_generation_prompt=True,
            enable_thinking=thinking, preserve_thinking=True,
        )
        for talk in talks
    ]  # fmt: skip
    if not thinking:
        prompts = [re.sub(r"<think>\n.*?\n</think>", "<think>\n\n</think>", prompt, flags=re.S) for prompt in prompts]
    inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        written = model.generate(**inputs, max_new_tokens=longest, do_sample=False)
    texts = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=False)
    return [parse(text, thinking) for text in texts]


def marks(reply: Reply, talk: Talk) -> dict[str, bool]:
    """Which of the things asked of an answer hold."""
    target = talk.messages[-1]
    wanted = [call["function"] for call in target.get("tool_calls", [])]
    got = reply.calls
    return {
        "think": reply.reasoning is not None,
        "stop": reply.stopped,
        "json": got is not None,
        "name": got is not None and [c["name"] for c in got] == [w["name"] for w in wanted],
        "exact": got == wanted and reply.content == target["content"],
    }


def evaluate(folder: Path, count: int, others: int, room: int, show: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for skill in SKILLS:
        talks = [held_out(seed, skill, others, room) for seed in range(count)]
        total: Counter[str] = Counter()
        for thinking in (True, False):
            half = talks[thinking::2]
            for start in range(0, len(half), 50):
                part = half[start : start + 50]
                for talk, reply in zip(part, write_replies(model, tokenizer, part, thinking), strict=True):
                    got = marks(reply, talk)
                    total.update({name for name, right in got.items() if right})
                    if not got["exact"] and show > 0:
                        show -= 1
                        print("  wanted", json.dumps(talk.messages[-1], ensure_ascii=False), "\n  got   ", reply)
        figures = "  ".join(
            f"{name} {100 * total[name] / count:5.1f}" for name in ("think", "stop", "json", "name", "exact")
        )
        print(f"{skill:12} {figures}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HOME)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=3_500_000, help="how many tokens to train on")
    parser.add_argument("--vocabulary", type=int, default=1536)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--evaluate", type=int, metavar="N", help="measure on N conversations of each skill")
    parser.add_argument("--others", type=int, default=3, help="tools beside the right ones, when measuring")
    parser.add_argument("--room", type=int, default=400, help="about how long prompts are, when measuring")
    parser.add_argument("--show", type=int, default=0, help="how many wrong answers to print")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args.out, args.evaluate, args.others, args.room, args.show)
        return
    torch.manual_seed(args.seed)
    dice = Dice(args.seed)
    tokenizer = train_tokenizer(dice, args.vocabulary)
    model = new_model(tokenizer)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, Rows(tokenizer), dice, args.tokens)
    export(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
