"""Tools, and requests that call for them."""

import zlib
from dataclasses import dataclass
from typing import Any

from scripts.wren.words import ADJECTIVES, CITIES, NOUNS, PARAMS, VERBS, Dice

Json = dict[str, Any]


@dataclass(frozen=True)
class Scope:
    """How much a conversation may hold: training starts with little."""

    fewest_tools: int = 1
    most_tools: int = 2
    most_params: int = 1
    # Whether tools are named as training never names them.
    held_out: bool = False
    # Whether people ask for other things too, and tools come laid out in more ways.
    wide: bool = False


@dataclass(frozen=True)
class Param:
    name: str
    kind: str = "string"

    def value(self, dice: Dice) -> str | int | bool:
        if self.kind == "integer":
            return dice.number()
        if self.kind == "boolean":
            return dice.maybe(0.5)
        if self.name in ("city", "location") and dice.maybe(0.7):
            return dice.choice([dice.choice(CITIES), dice.invented().capitalize()])
        if self.name == "path" and dice.maybe(0.7):
            return dice.path()
        if self.name == "command" and dice.maybe(0.7):
            return dice.command()
        return dice.string()


@dataclass(frozen=True)
class Tool:
    name: str
    about: str
    params: tuple[Param, ...]
    # What a request says of it: a verb and a noun, or whole sentences with a value's place at each {}.
    verb: str = ""
    noun: str = ""
    asks: tuple[str, ...] = ()

    def schema(self, dice: Dice, scope: Scope) -> Json:
        """The tool in one of the layouts in which people write it by hand, and libraries make it."""
        layout = dice.choices(["plain", "closed", "pydantic", "zod"], [60, 12, 14, 14])[0]
        if scope.wide and dice.maybe(0.15):
            layout = "runner"
        described = dice.maybe(0.15)
        properties: Json = {}
        for param in self.params:
            title = {"title": param.name.replace("_", " ").title()} if layout == "pydantic" else {}
            about = {"description": f"The {param.name}."} if described else {}
            properties[param.name] = {**title, "type": param.kind, **about}
        names = [param.name for param in self.params]
        parameters: Json = {"type": "object", "properties": properties, "required": names}
        function: Json = {"name": self.name, "description": self.about, "parameters": parameters}
        match layout:
            case "closed":
                parameters["additionalProperties"] = False
            case "zod":
                parameters = {"$schema": "http://json-schema.org/draft-07/schema#", **parameters}
                function["parameters"] = {**parameters, "additionalProperties": False}
            case "runner":
                function = {"name": self.name, "parameters": parameters, "description": self.about}
            case "pydantic":
                shape = {"properties": properties, "required": names, "title": self.name, "type": "object"}
                parameters = {**shape, "additionalProperties": False}
                function = {"name": self.name, "strict": True, "parameters": parameters, "description": self.about}
        return {"type": "function", "function": function}


_FILE = Param("path")
KNOWN = [
    *(
        Tool(
            "get_weather", "Get the weather in a city.", (Param(place),), "get", "weather",
            ("What is the weather in {}?", "What is the weather like in {}?", "Get the weather for {}."),
        )
        for place in ("city", "city", "location")
    ),
    Tool("read_file", "Read a file.", (_FILE,), "read", "file", ("Read the file {}.", "Read {}.")),
    Tool("write_file", "Write text to a file.", (_FILE, Param("content")), "write", "file",
         ("Write the file {} with the content {}.",)),
    Tool("list_files", "List the files in a folder.", (_FILE,), "list", "files", ("List the files in {}.",)),
    Tool("run_command", "Run a command.", (Param("command"),), "run", "command", ("Run the command {}.", "Run {}.")),
    Tool("web_search", "Search the web.", (Param("query"),), "search", "web", ("Search the web for {}.",)),
    Tool("add", "Add two numbers.", (Param("a", "integer"), Param("b", "integer")), "add", "numbers",
         ("Add {} and {}.", "What is {} plus {}?")),
]  # fmt: skip


def kept_from_training(verb: str, noun: str) -> bool:
    """Whether a pair of known words is held out: one pair in eight."""
    return zlib.crc32(f"{verb}_{noun}".encode()) % 8 == 0


def _made_up_params(dice: Dice, most: int) -> tuple[Param, ...]:
    names = [dice.invented() if dice.maybe(0.08) else dice.choice(PARAMS) for _ in range(dice.randint(1, most))]
    kinds = dice.choices(["string", "integer", "boolean"], [65, 27, 8], k=len(names))
    return tuple(Param(*pair) for pair in zip(dict.fromkeys(names), kinds, strict=False))


def made_up_tool(dice: Dice, scope: Scope) -> Tool:
    while True:
        verb, noun = dice.choice(VERBS), dice.choice(NOUNS)
        if kept_from_training(verb, noun) == scope.held_out:
            break
    if not scope.held_out:
        verb = dice.invented() if dice.maybe(0.06) else verb
        noun = dice.invented() if dice.maybe(0.12) else noun
    name = f"{verb}{noun.capitalize()}" if dice.maybe(0.06) else f"{verb}_{noun}"
    about = dice.choice([f"{verb.capitalize()} the {noun}.", f"{verb.capitalize()} a {noun}."])
    return Tool(name, about, _made_up_params(dice, scope.most_params), verb, noun)


def toolbox(dice: Dice, scope: Scope) -> list[Tool]:
    """Tools of which no request means two: they share a verb or a noun now and then, never both."""
    box: list[Tool] = []
    size = dice.randint(scope.fewest_tools, scope.most_tools)
    while len(box) < size:
        tool = dice.choice(KNOWN) if dice.maybe(0.2) else made_up_tool(dice, scope)
        shared = sum(tool.verb == other.verb or tool.noun == other.noun for other in box)
        if shared == 0 or (shared == 1 and dice.maybe(0.1) and not tool.asks and not any(t.asks for t in box)):
            box.append(tool)
    return box


@dataclass(frozen=True)
class Ask:
    """A request in words, and the call that it means."""

    text: str
    tool: Tool
    arguments: Json

    @property
    def call(self) -> Json:
        return {"type": "function", "function": {"name": self.tool.name, "arguments": self.arguments}}


def spoken(value: str | int | bool, dice: Dice) -> str:
    """A value as a person writes it in a request: whatever is not one word of letters stands in quotes."""
    if not isinstance(value, str):
        return str(value).lower()
    return value if value.isalpha() and dice.maybe(0.6) else f'"{value}"'


def ask_for(dice: Dice, tool: Tool) -> Ask:
    """Ask in the words of the tool, with the values in the order of its parameters."""
    arguments: Json = {param.name: param.value(dice) for param in tool.params}
    values = [spoken(value, dice) for value in arguments.values()]
    if tool.asks and dice.maybe(0.75):
        return Ask(dice.choice(tool.asks).format(*values), tool, arguments)
    heads = [f"Use {tool.name}", f"Call {tool.name}"]
    heads += [f"{tool.verb.capitalize()} the {tool.noun}", f"Please {tool.verb} the {tool.noun}"]
    pairs = " and ".join(f"{name} {value}" for name, value in zip(arguments, values, strict=True))
    return Ask(f"{dice.choice(heads)} with {pairs}.", tool, arguments)


def outcome(dice: Dice) -> str:
    """What a tool gives back, as text of one line."""
    kinds = [
        dice.phrase(4),
        dice.phrase(4),
        str(dice.number()),
        f"{dice.randint(-9, 40)} C, {dice.choice([dice.choice(ADJECTIVES), dice.invented()])}",
        f'{{"{dice.choice(PARAMS)}": "{dice.word()}"}}',
        f"Error: {dice.phrase(3)}",
    ]
    return dice.choice(kinds)
