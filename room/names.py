"""Names that others choose, of peers, of invites and of those who knock: shown to people, in tables and logs."""

from room.errors import InvalidValue

MAX_NAME = 64


def checked_name(param: str, name: str) -> str:
    """The name. Raises InvalidValue where it is too long, or holds what is no character to be seen."""
    if len(name) > MAX_NAME:
        raise InvalidValue(param, f"a name has at most {MAX_NAME} characters")
    if not name.isprintable():
        raise InvalidValue(param, "a name has no line breaks or other control characters")
    return name
