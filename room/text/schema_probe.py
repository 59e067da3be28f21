"""What only the grammar compiler can tell: whether there is a text that some regular expressions all match."""

import functools
import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits

from room.text.schema_shape import String


class Unwritable(ValueError):
    """The message goes on after the keyword: "has too many digits"."""


def string_schema(shape: String) -> dict[str, Any]:
    patterns = [{"pattern": f"^(?:{pattern})$"} for pattern in shape.patterns]
    if shape.values is not None:
        return (
            {"type": "string", "enum": list(shape.values), "allOf": patterns}
            if patterns
            else {"enum": list(shape.values)}
        )
    schema: dict[str, Any] = {"type": "string"}
    if shape.shortest:
        schema["minLength"] = shape.shortest
    if shape.longest is not None:
        schema["maxLength"] = shape.longest
    if patterns:
        schema |= patterns[0]
    return {**schema, "allOf": patterns[1:]} if patterns[1:] else schema


@functools.lru_cache(maxsize=4096)
def fits_something(shape: String) -> bool:
    """There is a string of this shape. Raises Unwritable where that cannot be found out, or no grammar be made."""
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(string_schema(shape)))
    limits = LLParserLimits(initial_lexer_fuel=500_000, verbose_errors=False)
    try:
        error = LLMatcher.validate_grammar(grammar, limits=limits)
    except BaseException as panic:
        # The compiler's panics are BaseExceptions, beside those that must go on their way.
        if isinstance(panic, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        raise Unwritable("cannot be turned into a grammar") from panic
    if not error:
        return True
    if "nsatisfiable" in error:
        return False
    raise Unwritable("cannot be turned into a grammar, since it is too complex or uses what is not known")
