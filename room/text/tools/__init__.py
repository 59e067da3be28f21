"""How models write calls: one module per format, the same names in each (see base.Format)."""

from typing import cast

from room.text.tools import harmony, json_tags, llama_json, plain, xml_function
from room.text.tools.base import Call, Format, Look, Tool

FORMATS = tuple(cast(Format, module) for module in (harmony, xml_function, json_tags, llama_json, plain))
"""The first that a model shows is its own; the last takes every model."""


def format_of(look: Look) -> Format:
    return next(each for each in FORMATS if each.detect(look))


__all__ = ["FORMATS", "Call", "Format", "Look", "Tool", "format_of"]
