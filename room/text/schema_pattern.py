"""Regular expressions of JSON schemas, as ECMA-262 has them, in the dialect of the grammar compiler.

The compiler's own reading of a `pattern` is close to ECMA's and not the same: it lets a trailing backslash pass, knows
sets inside sets, has other ideas of \\s and the dot. So patterns are parsed here. What is written out matches the
whole string, holds no anchors and spells every character in a way that cannot be misread. Where ECMA and Python
disagree the narrower reading is written, so that the text satisfies validators of either kind.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

LONGEST = 10_000
"""Characters of a pattern."""
_DEEPEST = 60
_MOST_REPEATS = 100_000

_START, _END = "^", "$"
_ANYTHING = r"(?:[\x{0}-\x{10FFFF}]*)"

# Each class as few characters as anybody means by it, and as many.
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\f\v"}
_WIDE = {
    "d": r"\p{Nd}",
    "w": r"\p{Alphabetic}\p{M}\p{N}\p{Pc}",
    "s": r"\p{White_Space}\x{1c}-\x{1f}\x{180e}\x{feff}",
}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_PROPERTY = re.compile(r"\{[A-Za-z_]+(?:=[A-Za-z_]+)?\}")
_COUNT = re.compile(r"\{(\d+)(,?)(\d*)\}")


class BadPattern(ValueError):
    """The message goes on after "the pattern": "does not parse"."""


class _Group(NamedTuple):
    """Alternatives, each a sequence."""

    branches: tuple["_Sequence", ...]


@dataclass(frozen=True)
class _Repeat:
    inner: "_Part"
    count: str


# A plain string is finished output, except for the two anchors.
_Part: TypeAlias = "str | _Group | _Repeat"
_Sequence: TypeAlias = "tuple[_Part, ...]"


def whole_match(pattern: str) -> str:
    """A regular expression that matches a whole string where `pattern` is found in it. Raises BadPattern."""
    if len(pattern) > LONGEST:
        raise BadPattern(f"is longer than {LONGEST} characters")
    if any(0xD800 <= ord(char) < 0xE000 for char in pattern):
        raise BadPattern("holds half of a surrogate pair")
    tree = _Parser(pattern).parse()
    return "".join(_write(part) for part in _anchored(_anchored((tree,), first=True), first=False))


class _Parser:
    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._depth = 0

    def parse(self) -> _Group:
        tree = self._group()
        if self._at < len(self._text):
            raise BadPattern("does not parse: it closes a group that is not open")
        return tree

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        if not char:
            raise BadPattern("does not parse: it ends too early")
        self._at += 1
        return char

    def _skip(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _group(self) -> _Group:
        branches = [self._sequence()]
        while self._skip("|"):
            branches.append(self._sequence())
        return _Group(tuple(branches))

    def _sequence(self) -> _Sequence:
        parts: list[_Part] = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            count = self._quantifier()
            if count and part in (_START, _END):
                raise BadPattern("does not parse: it repeats an anchor")
            parts.append(_Repeat(part, count) if count else part)
        return tuple(parts)

    def _atom(self) -> _Part:
        char = self._next()
        if char in (_START, _END):
            return char
        if char == "(":
            return self._bracketed()
        if char == "[":
            return self._set()
        if char == ".":
            return r"[^\n\r\x{2028}\x{2029}]"
        if char == "\\":
            return self._escape()
        if char in "*+?" or (char == "{" and _COUNT.match(self._text, self._at - 1)):
            raise BadPattern("does not parse: it repeats nothing")
        return _character(ord(char))

    def _bracketed(self) -> _Group:
        if self._skip("?") and not self._skip(":"):
            if self._text.startswith(("=", "!", "<=", "<!"), self._at):
                raise BadPattern("uses lookaround, which cannot be enforced")
            name = re.compile(r"P?<[A-Za-z_$][\w$]*>").match(self._text, self._at)
            if not name:
                raise BadPattern("uses a kind of group that is not known")
            self._at = name.end()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadPattern(f"is nested more than {_DEEPEST} deep")
        group = self._group()
        if not self._skip(")"):
            raise BadPattern("does not parse: a group is not closed")
        self._depth -= 1
        return group

    def _quantifier(self) -> str:
        count = next((sign for sign in "*+?" if self._skip(sign)), "")
        if not count and (found := _COUNT.match(self._text, self._at)):
            self._at = found.end()
            count = found[0]
            if int(found[1]) > int(found[3] or found[1]):
                raise BadPattern("does not parse: a repetition's bounds are in the wrong order")
            if max(int(found[1]), int(found[3] or 0)) > _MOST_REPEATS:
                raise BadPattern(f"repeats something more than {_MOST_REPEATS} times")
        elif not count and re.compile(r"\{,\d+\}").match(self._text, self._at):
            raise BadPattern("leaves out the lower bound of a repetition, which not everybody reads alike")
        if count:
            self._skip("?")  # lazy: what matches is the same
            if self._peek() in ("*", "+", "?") and self._peek():
                raise BadPattern("does not parse: it repeats a repetition")
        return count

    def _escape(self) -> str:
        char = self._next()
        if char.lower() in _NARROW:
            return f"[{_class(char)}]"
        if char in "pP":
            return f"[{self._property(char)}]"
        if char in "bB":
            raise BadPattern("uses a word boundary, which cannot be enforced")
        if char in "123456789k":
            raise BadPattern("uses a back-reference, which cannot be enforced")
        return _character(self._code(char))

    def _property(self, char: str) -> str:
        found = _PROPERTY.match(self._text, self._at)
        if not found:
            raise BadPattern("does not parse: a \\p without its property")
        self._at = found.end()
        return f"\\{char}{found[0]}"

    def _code(self, char: str) -> int:
        """The character of an escape that stands for one."""
        if char == "0" and self._peek().isdigit():
            raise BadPattern("uses an octal escape, which is not known")
        if char in _CONTROLS:
            return _CONTROLS[char]
        if char in "xu":
            return self._hexadecimal(char)
        if char == "c":
            letter = self._next()
            if not (letter.isascii() and letter.isalpha()):
                raise BadPattern("does not parse: a \\c without its letter")
            return ord(letter) % 32
        if char.isalnum():
            raise BadPattern(f"uses the escape \\{char}, which is not known")
        return ord(char)

    def _hexadecimal(self, kind: str) -> int:
        code = self._digits(r"[0-9A-Fa-f]{2}" if kind == "x" else r"[0-9A-Fa-f]{4}|\{[0-9A-Fa-f]{1,6}\}")
        if 0xD800 <= code < 0xDC00 and self._skip("\\u"):
            low = self._digits(r"[Dd][C-Fc-f][0-9A-Fa-f]{2}")
            return 0x10000 + (code - 0xD800) * 0x400 + low - 0xDC00
        if 0xD800 <= code < 0xE000:
            raise BadPattern("holds half of a surrogate pair")
        if code > 0x10FFFF:
            raise BadPattern("names a character beyond Unicode")
        return code

    def _digits(self, form: str) -> int:
        found = re.compile(form).match(self._text, self._at)
        if not found:
            raise BadPattern("does not parse: an escape lacks its digits")
        self._at = found.end()
        return int(found[0].strip("{}"), 16)

    def _set(self) -> str:
        negated = self._skip("^")
        items = list(self._set_items(negated))
        if not items:
            return r"[\x{0}-\x{10FFFF}]" if negated else r"[^\x{0}-\x{10FFFF}]"
        return f"[{'^' if negated else ''}{''.join(items)}]"

    def _set_items(self, negated: bool) -> Iterator[str]:
        while not self._skip("]"):
            low = self._set_item(negated)
            if isinstance(low, str):
                if self._peek() == "-" and not self._text.startswith("-]", self._at):
                    raise BadPattern("does not parse: a range begins with a class of characters")
                yield low
            elif self._text.startswith("-", self._at) and not self._text.startswith("-]", self._at):
                self._at += 1
                high = self._set_item(negated)
                if isinstance(high, str) or high < low:
                    raise BadPattern("does not parse: a range in the wrong order")
                yield f"{_character(low)}-{_character(high)}"
            else:
                yield _character(low)

    def _set_item(self, negated: bool) -> int | str:
        """A character, or a class as it is written in a set."""
        char = self._next()
        if char != "\\":
            return ord(char)
        char = self._next()
        if char.lower() in _NARROW:
            return _class(char, negated=negated)
        if char in "pP":
            return self._property(char)
        return 8 if char == "b" else self._code(char)


def _class(char: str, *, negated: bool = False) -> str:
    """\\d, \\S and their like, as they are written in a set. In a negated set the wide reading is the narrow one."""
    if char.islower():
        return (_WIDE if negated else _NARROW)[char]
    return f"[^{(_NARROW if negated else _WIDE)[char.lower()]}]"


def _character(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else f"\\x{{{code:x}}}"


def _anchored(parts: _Sequence, *, first: bool) -> _Sequence:
    """`parts` with an end anchored: the anchors there are gone, and where there were none anything may stand.

    `first` tells which end. A pattern is searched for, so "a" is ".*a.*" of the whole string and "^a|b$" is "a.*|.*b".
    """
    anchor = _START if first else _END
    rest, edge = (parts[1:], parts[:1]) if first else (parts[:-1], parts[-1:])
    if not edge or not _has(edge[0], anchor):
        return (_ANYTHING, *parts) if first else (*parts, _ANYTHING)
    part = edge[0]
    if part == anchor:
        while rest and (rest[0] if first else rest[-1]) == anchor:
            rest = rest[1:] if first else rest[:-1]
        return rest
    if isinstance(part, _Repeat):
        raise BadPattern("repeats an anchor, which cannot be enforced")
    assert isinstance(part, _Group)
    group = _Group(tuple(_anchored(branch, first=first) for branch in part.branches))
    return (group, *rest) if first else (*rest, group)


def _has(part: _Part, anchor: str) -> bool:
    if isinstance(part, _Group):
        return any(_has(inner, anchor) for branch in part.branches for inner in branch)
    return _has(part.inner, anchor) if isinstance(part, _Repeat) else part == anchor


def _write(part: _Part) -> str:
    if isinstance(part, _Group):
        return "(?:" + "|".join("".join(map(_write, branch)) for branch in part.branches) + ")"
    if isinstance(part, _Repeat):
        return f"(?:{_write(part.inner)}){part.count}"
    if part in (_START, _END):
        raise BadPattern("has an anchor in the middle, which cannot be enforced")
    return part
