"""What a model may write, position by position: grammars compiled for one vocabulary, and matchers that walk them.

Grammar texts are in the Lark-like language of llguidance, schemas inside them as `%json {...}`. Compiling runs in a
thread and under limits of the compiler's own, so that a thread nobody waits for any more comes to an end too.
"""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from threading import Lock
from typing import NoReturn

import anyio
from anyio import to_thread
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from room.text.schema_errors import InvalidSchema, SchemaTooComplex, TakesTooLong
from room.text.tokenizer import TextModel

__all__ = ["COMPILE_S", "Grammar", "Grammars", "InvalidSchema", "Matcher", "SchemaTooComplex", "TakesTooLong"]

COMPILE_S = 2.0
"""Seconds that whoever asks waits for a grammar."""
_COMPILING = 2
"""Compilers at work at a time; others wait within their own time. One that has begun goes on to its end."""
_KEPT = 64
"""Compiled grammars kept; those of large schemas take some megabytes each."""
_TRIED = 32
"""Steps that a new grammar is tried out for."""
_LONGEST = 4_000_000
"""Characters of a grammar text."""


def _limits() -> LLParserLimits:
    """About a second of compiling, and 50 ms of a mask, at their worst; errors tell nothing of the grammar."""
    return LLParserLimits(
        max_items_in_row=50_000,
        initial_lexer_fuel=20_000_000,
        step_lexer_fuel=500_000,
        step_max_items=100_000,
        max_lexer_states=100_000,
        max_grammar_size=500_000,
        verbose_errors=False,
    )


class Grammars:
    """Compiles for one model."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._compiled: OrderedDict[bytes, Grammar] = OrderedDict()
        self._working: dict[bytes, asyncio.Task[Grammar]] = {}
        self._places = asyncio.Semaphore(_COMPILING)
        self._building = Lock()

    async def compile(self, lark: str, within: float = COMPILE_S) -> "Grammar":
        """The grammar that `lark` describes; the same object as long as it is remembered.

        Raises TakesTooLong after so many seconds (and goes on, so that whoever asks next may find it done),
        SchemaTooComplex, and InvalidSchema for a schema inside that strict() would not let through.
        """
        key = hashlib.sha256(lark.encode("utf-8", "replace")).digest()
        grammar = self._compiled.get(key) or await self._compile(key, lark, within)
        if key in self._compiled:
            self._compiled.move_to_end(key)
        return grammar

    async def _compile(self, key: bytes, lark: str, within: float) -> "Grammar":
        with anyio.move_on_after(within):
            if key not in self._working:
                await self._places.acquire()
                if key in self._working:
                    self._places.release()
                else:
                    self._working[key] = asyncio.create_task(self._work(key, lark))
                    self._working[key].add_done_callback(lambda work: work.cancelled() or work.exception())
            return await asyncio.shield(self._working[key])
        raise TakesTooLong

    async def _work(self, key: bytes, lark: str) -> "Grammar":
        try:
            grammar = await to_thread.run_sync(self.compile_now, lark, abandon_on_cancel=True)
        finally:
            del self._working[key]
            self._places.release()
        self._compiled[key] = grammar
        if len(self._compiled) > _KEPT:
            self._compiled.popitem(last=False)
        return grammar

    def compile_now(self, lark: str) -> "Grammar":
        """The same without a limit of time: blocks."""
        if len(lark) > _LONGEST:
            raise SchemaTooComplex(f"it has more than {_LONGEST} characters")
        try:
            matcher = LLMatcher(self._tokens, LLMatcher.grammar_from_lark(lark), log_level=0, limits=_limits())
            if not matcher.is_error():
                matcher.compute_bitmask()  # the first mask fills the lexer's tables, which every matcher shares
                _try_out(matcher)
        except SchemaTooComplex:
            raise
        except BaseException as panic:
            _refuse_panic(panic)
        if matcher.is_error():
            _refuse(matcher.get_error())
        return Grammar(matcher, self._text.vocab_size, self._text.eos_ids)

    def warm_up(self) -> None:
        """Build the tokenizer: blocks."""
        self._tokens  # noqa: B018

    def special(self, token: str) -> str:
        """How a grammar text names the added token that is spelled `token`; its text where there is no such token."""
        found = self._text.token_named(token)
        return json.dumps(token, ensure_ascii=False) if found is None else f"<[{found}]>"

    @property
    def _tokens(self) -> LLTokenizer:
        with self._building:  # threads of two requests may come first at the same time
            return self._tokenizer

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        """Takes about a second for a large vocabulary."""
        return LLTokenizer(TokenizerWrapper(_Tokens(self._text)), eos_token=sorted(self._text.eos_ids) or None)


def _try_out(matcher: LLMatcher) -> None:
    """Write a short text by the grammar, to see whether it stays within its limits. Raises SchemaTooComplex."""
    ahead = matcher.deep_copy()
    for _ in range(_TRIED):
        if ahead.is_stopped():
            break
        allowed = int.from_bytes(ahead.compute_bitmask(), "little")
        first = (allowed & -allowed).bit_length() - 1
        ahead.consume_tokens(ahead.compute_ff_tokens() or [first])
    if ahead.is_error():
        raise SchemaTooComplex


def _refuse_panic(panic: BaseException) -> NoReturn:
    """A panic of the compiler is a BaseException, beside those that must go on their way."""
    if isinstance(panic, KeyboardInterrupt | SystemExit | GeneratorExit):
        raise panic
    raise SchemaTooComplex("the grammar compiler fails on it") from panic


def _refuse(error: str) -> NoReturn:
    """What the compiler found fault with. Its own words may hold pieces of the schema."""
    if "nsatisfiable" in error:
        raise InvalidSchema("response_format", "", "#", "is impossible: no value fits it")
    if any(word in error for word in ("too large", "too many", "limit", "fuel", "complex")):
        raise SchemaTooComplex
    raise InvalidSchema("response_format", "", "#", "cannot be turned into a grammar")


class _Tokens:
    """Our vocabulary as llguidance takes it: the bytes it counts on are the ones that answers are made of."""

    bos_token_id = None

    def __init__(self, text: TextModel) -> None:
        self.tokens = [text.token_spelling(token) for token in range(text.vocab_size)]
        self.special_token_ids = sorted(text.vocabulary.special | text.eos_ids)
        self.eos_token_id = min(text.eos_ids, default=0)
        self._backend = text.tokenizer.backend_tokenizer
        self._newline = self._encode("\n")
        ordinary = ((data, token) for token, data in enumerate(self.tokens) if token not in text.vocabulary.controls)
        self._ids = {data: token for data, token in ordinary if data}
        self._longest = max(map(len, self._ids))

    def __call__(self, text: str) -> list[int]:
        """Ids whose bytes are `text`. A tokenizer may add a blank to the first word, which does not stand there."""
        if not isinstance(text, str):
            raise TypeError("bytes are not encoded")  # which the wrapper tries
        wanted = text.encode()
        candidates = (self._encode(text), self._encode("\n" + text)[len(self._newline) :])
        return next((ids for ids in candidates if self._decode(ids) == wanted), None) or self._greedy(wanted)

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _decode(self, ids: list[int]) -> bytes:
        return b"".join(self.tokens[token] for token in ids)

    def _greedy(self, data: bytes) -> list[int]:
        """The longest token first. What no token spells ends the list: fewer tokens are forced then than could be."""
        ids = []
        while data:
            lengths = range(min(self._longest, len(data)), 0, -1)
            token = next((self._ids[data[:length]] for length in lengths if data[:length] in self._ids), None)
            if token is None:
                break
            ids.append(token)
            data = data[len(self.tokens[token]) :]
        return ids


class Grammar:
    """Compiled, and shared by all requests that use it."""

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        bits = bytearray(-(-vocab_size // 8))
        for token in eos_ids:
            if token < vocab_size:
                bits[token // 8] |= 1 << token % 8
        self._end = bytes(bits)

    def matcher(self) -> "Matcher":
        """A fresh one, before the first token."""
        return Matcher(self._matcher.deep_copy(), self._vocab_size, self._eos_ids, self._end)


class Matcher:
    """Where one answer stands in its grammar. `end` is the mask of the tokens `eos_ids`, which end a turn.

    mask() and finished take well under a millisecond as a rule, and raise SchemaTooComplex at a place where a grammar
    outgrows the compiler's limits. Not for use from several threads.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, eos_ids: frozenset[int], end: bytes) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_ids = eos_ids
        self._end = end
        self._ended = False
        self._mask: bytes | None = None

    @property
    def accepting(self) -> bool:
        """The text so far is complete: the turn may end here."""
        return self._matcher.is_accepting()

    @property
    def finished(self) -> bool:
        """Nothing but the end of the turn may follow."""
        return self.accepting and self.mask() == self._end

    def mask(self) -> bytes:
        """Tokens that may come next: bit i of byte i // 8, least significant first, for token i.

        The ends of turn are among them when the text is complete.
        """
        if self._ended:
            return self._end
        if self._mask is None:
            self._mask = self._compute()
        return self._mask

    def _compute(self) -> bytes:
        if self._matcher.is_stopped():
            return self._end
        found = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise SchemaTooComplex
        size = len(self._end)
        mask = int.from_bytes(found[:size], "little")
        end = int.from_bytes(self._end, "little")
        return (mask | end if self.accepting else mask).to_bytes(size, "little")

    def accept(self, token: int) -> bool:
        """Go on by `token`; False, and nothing changes, when it may not come here.

        Raises SchemaTooComplex at a place where the grammar outgrows the compiler's limits.
        """
        if self._ended:
            return False
        if token in self._eos_ids and self.accepting:
            self._ended = True
            return True
        # An id that the compiler does not know would put it out of order for good.
        accepted = 0 <= token < self._vocab_size and self._matcher.try_consume_tokens([token]) == 1
        if self._matcher.is_error():
            raise SchemaTooComplex
        if accepted:
            self._mask = None
        return accepted

    def forced(self) -> list[int]:
        """The tokens that come next without a choice, as the tokenizer itself cuts their text. None is accepted."""
        return [] if self._ended else self._matcher.compute_ff_tokens()

    def walk(self, guess: Sequence[int]) -> tuple[list[int], list[bytes]]:
        """Where a guess at the next tokens leads; the matcher itself stays where it is.

        What may come of the guess, with tokens that leave no choice put in, and the masks before each token and behind
        the last. It ends where the grammar forbids the guess, or outgrows the compiler's limits.
        """
        ahead = Matcher(self._matcher.deep_copy(), self._vocab_size, self._eos_ids, self._end)
        ids, masks, waiting = list[int](), [self.mask()], list(guess)
        while waiting:
            token, *waiting = waiting
            try:
                if not ahead.accept(token):
                    break
                masks.append(ahead.mask())
                forced = ahead.forced()
            except SchemaTooComplex:
                break
            ids.append(token)
            if forced and waiting[: len(forced)] != forced:
                waiting = forced
        return ids, masks[: len(ids) + 1]
