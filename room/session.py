"""One request being answered: what it has, what has been sent of it, and what its caller hears."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from protos import peer_pb2, room_pb2
from protos.outbox import Outbox
from room.drafts import NOTHING, Draft, DraftIndex, Guessed
from room.pages import PAGE, as_runs
from room.prefix import Node
from room.states import Snapshot
from room.tally import Tally
from room.text.answer import Answer

Event = room_pb2.GenerateEvent


@dataclass(frozen=True)
class Job:
    """A request after all its checks: what a session is made from."""

    request_id: str
    client: str
    prompt: tuple[int, ...]
    max_new: int
    params: peer_pb2.SamplingParams
    max_waiting: int
    """How many requests of this client may wait; 0: any number."""
    landmarks: tuple[int, ...]
    """How many tokens of the prompt a later one is likely to begin with too, rising: states are kept there."""


@dataclass(eq=False)
class Session:
    """A state machine without I/O: the room moves it, its caller reads `outbox`.

    `tokens` are the prompt and the answer so far. Of these, `sent` are on their way through the chain or through it;
    one more than there are where the next one was sent ahead.
    Whatever happens to the chain, the tokens are all that is needed to go on.
    """

    number: int
    job: Job
    answer: Answer
    outbox: Outbox[Event] = field(default_factory=Outbox)
    tokens: list[int] = field(init=False)
    sent: int = 0
    in_flight: int = 0
    """Frames that name this session and have not come back; its pages stay taken until there are none."""
    pages: list[int] = field(default_factory=list)
    """Where its tokens are kept, in order of position."""
    runs: list[peer_pb2.PageRun] = field(default_factory=list)
    """The same, as frames name them."""
    path: list[Node] = field(default_factory=list)
    """The part of them that others may share."""
    entered: int = 0
    """How many of its tokens the chain held when it was let in."""
    read: int = 0
    """How many of its tokens frames have brought back since, and those; while it reads."""
    source: Node | None = None
    """A page of others whose start its next page begins with: to be copied with its first frame."""
    snapshot: Snapshot | None = None
    """Of a hybrid model's state: what its first frame goes on from."""
    behind: "Session | None" = None
    """The running session that computes what this one waits for."""
    cached: int = 0
    """Tokens of the prompt that were in the chain already."""
    slot: int = 0
    """Of a hybrid model's recurrent state; 0: none."""
    second: int = 0
    """Another slot, which a frame with guesses writes, so that the state before it is still there; 0: none."""
    doubt: int | None = None
    """Of a hybrid model, while guesses are on their way: how many tokens the state in `slot` has seen."""
    kept: list[tuple[int, int]] = field(default_factory=list)
    """(position, slot) of states to go on from later."""
    strays: int = 0
    """Frames on their way that were sent ahead of tokens which turned out otherwise: what they bring does not count."""
    guessed: Guessed = field(default_factory=Guessed)
    """What a draft model guesses."""
    awaits_guesses: bool = False
    """Of a draft model; its next frame is held back for them."""
    mask: bytes | None = None
    """Bits of the tokens that may be sampled next; None: all."""
    decoding: bool = False
    """Past its prompt: one new token per frame."""
    whole: int = 0
    """How many of its tokens are still held by all stages of its chain that were not replaced."""
    started: bool = False
    began_at: float = 0.0
    """When it first ran."""
    ended: bool = False
    spoilt: bool = False
    """A frame of its failed: what its pages hold is not known."""
    recoveries: int = 0
    faulted: set[str] = field(default_factory=set)
    """Ids of the peers that failed at a frame of its."""
    faulted_at: int = -1
    """How many tokens it had sent then."""
    _place: int = -1
    _drafts: DraftIndex | None = None
    _tally: Tally | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.job.prompt)

    def __repr__(self) -> str:
        return f"<Session {self.number} [{self.sent} of {len(self.tokens)} tokens sent, {self.in_flight} in flight]>"

    @property
    def most_tokens(self) -> int:
        """Of the prompt and the longest answer it may get."""
        return len(self.job.prompt) + self.job.max_new

    @property
    def left(self) -> int:
        """Tokens that its answer may still have."""
        return self.most_tokens - len(self.tokens)

    @property
    def housed(self) -> bool:
        """There are pages for all its tokens."""
        return len(self.tokens) <= len(self.pages) * PAGE

    @property
    def unsent(self) -> int:
        return len(self.tokens) - self.sent

    @property
    def to_landmark(self) -> int:
        """Tokens until a state is to be kept, or more stages take part; until the end of what it has if neither is."""
        if self.rebuilding:
            return self.whole - self.sent
        due = (mark - self.sent for mark in self.job.landmarks if mark > self.sent and self.slot)
        return next(due, self.unsent)

    @property
    def untouched(self) -> bool:
        """No frame of it has been sent since it was let in."""
        return self.sent == self.entered

    @property
    def rebuilding(self) -> bool:
        """What it sends is only lacking at stages that were replaced."""
        return self.sent < self.whole

    @property
    def prefilling(self) -> bool:
        """Part of what it has is not in the chain yet, and can go."""
        return not self.decoding and self.unsent > 0 and self.housed

    @property
    def ready_to_decode(self) -> bool:
        """Its last token is back, and there is a place for it."""
        return self.lacks_only_guesses and not self.awaits_guesses

    @property
    def lacks_only_guesses(self) -> bool:
        """The same, whether or not it waits for a draft model."""
        return self.decoding and self.unsent > 0 and not self.in_flight and self.housed

    @property
    def can_go_ahead(self) -> bool:
        """Its next token may go on its way before it is known: nothing but that token is needed to draw the one behind.

        All its tokens are sent, and there is a place for one more. What is drawn of it counts unless the one before it
        changes what may come (`take`).
        """
        expected = len(self.tokens) + self.in_flight  # once its frames are back
        return (
            self.decoding
            and not self.strays
            and self.in_flight > 0
            and self.sent + 1 == expected
            and expected < min(self.most_tokens, len(self.pages) * PAGE + 1)
            and self.foreseeable
        )

    @property
    def foreseeable(self) -> bool:
        """How its next tokens are drawn does not depend on those before; a recurrent state could not be taken back."""
        return self.answer.steady and not self.slot and not self._counts_tokens and not self.travels_alone

    @property
    def drafts(self) -> DraftIndex:
        """Its tokens so far, made ready to guess the next ones."""
        if self._drafts is None:
            self._drafts = DraftIndex()
            self._drafts.read(self.job.prompt)
        if len(self._drafts) < len(self.tokens):
            self._drafts.feed(self.tokens[len(self._drafts) :])
        return self._drafts

    def draft(self, most: int) -> Draft:
        """Up to `most` guesses at how it goes on: never more than the answer may have, nor than its pages hold."""
        most = min(most, self.left - 1, len(self.pages) * PAGE - len(self.tokens))
        if most <= 0:
            return NOTHING
        guess = self.drafts.draft(most) or self.guessed.draft(len(self.tokens), most)
        return self.answer.ahead(guess).first(most)

    def chances(self, count: int) -> list[float]:
        """For each of `count` guesses that `draft` gave, how likely it and all before it come true."""
        if self.drafts.draft(1):
            return self.drafts.chances(count)
        return [self.guessed.chance**number for number in range(1, count + 1)]

    @property
    def travels_alone(self) -> bool:
        """A frame of its failed: until it is past that place, it may harm whoever shares a frame with it."""
        return bool(self.faulted) and self.sent <= self.faulted_at

    def keep_in(self, pages: list[int]) -> None:
        """Its tokens are kept in these pages from now on."""
        self.pages = pages
        self.runs = [peer_pb2.PageRun(first=run.first, count=run.length) for run in as_runs(pages)]

    def begin(self) -> None:
        """It runs: what its answer must begin with needs no sampling."""
        self.started = True
        self.tell_place(0)
        self._take_forced()

    def take(self, sampled: Sequence[peer_pb2.SampledToken], draft: Draft = NOTHING) -> None:
        """A frame's tokens came back: say what they mean to the caller.

        The first one counts, unless its frame went astray. Each later one does if all guesses before it were what came,
        under the mask it was drawn with: then it is the token that would have been drawn without guesses.
        """
        if self.strays:
            self.strays -= 1
            return
        mask, ahead = self.mask, self.sent - len(self.tokens)
        self.decoding = True
        before = len(self.tokens)
        while self.answer.finished is None and self._counts(len(self.tokens) - before, sampled, draft):
            token = sampled[len(self.tokens) - before]
            self.tokens.append(token.id)
            for event in self.answer.feed([token]):
                self.outbox.put(event)
            self._take_forced()
        self.guessed.judge(self.tokens)
        # The last token goes on its way in any case: where its guess was right, what was drawn behind it did not count.
        came = zip(self.tokens[before:-1], draft.ids, strict=False)
        self._settle(draft, right=len(list(takewhile(lambda pair: pair[0] == pair[1], came))))
        if ahead > 0 and (len(self.tokens) != before + 1 or self.mask != mask):
            # Of what was sent ahead the first is the token that came. What was drawn behind it would not be now.
            self.strays = ahead
            self.sent = min(before + 1, len(self.tokens) - 1)

    def _settle(self, draft: Draft, right: int) -> None:
        """Of a draft the first `right` guesses came true: what is computed of these stays.

        A recurrent state has seen all of them or is of no use; then it goes on from the one before.
        """
        if self.doubt is None or right == len(draft):
            self.sent += right
        else:
            self.sent = self.doubt
        if self.doubt is not None and right == len(draft):
            self.slot, self.second = self.second, self.slot
        self.doubt = None

    def _counts(self, at: int, sampled: Sequence[peer_pb2.SampledToken], draft: Draft) -> bool:
        """Whether the drawn token `at` is the one that comes after the `at` tokens taken so far."""
        if at == 0 or at >= len(sampled):
            return at < len(sampled)
        return tuple(self.tokens[-at:]) == draft.ids[:at] and self.mask == draft.masks[at]

    def _take_forced(self) -> None:
        """Tokens that leave no choice go in as if they had been sampled; then it is known what may come next."""
        forced, events = self.answer.force()
        self.tokens.extend(forced)
        for event in events:
            self.outbox.put(event)
        self.mask = self.answer.mask() if self.answer.finished is None else None

    def finish(self) -> None:
        """The answer is whole: say why it ended and what it took."""
        assert self.answer.finished is not None
        usage = room_pb2.Usage(
            prompt_tokens=len(self.job.prompt),
            completion_tokens=self.answer.completion_tokens,
            cached_tokens=self.cached,
            reasoning_tokens=self.answer.reasoning_tokens,
        )
        self.outbox.put(Event(finish=room_pb2.Finish(reason=self.answer.finished)))
        self.outbox.put(Event(usage=usage))

    def rewind(self) -> None:
        """Its KV is gone: everything has to be sent again."""
        self.sent = self.entered = self.read = self.in_flight = self.slot = self.second = self.whole = 0
        self.doubt = None
        self.path, self.kept, self.source, self.snapshot = [], [], None, None
        self.decoding, self.spoilt, self.strays = False, False, 0
        self.keep_in([])

    def counts(self) -> list[peer_pb2.TokenCount]:
        """What the penalties count; empty when none is on."""
        if not self._counts_tokens:
            return []
        if self._tally is None:
            self._tally = Tally(self.job.prompt)
        return self._tally.of(self.tokens)

    @property
    def _counts_tokens(self) -> bool:
        params = self.job.params
        return bool(params.repetition_penalty != 1 or params.presence_penalty or params.frequency_penalty)

    def has_read(self, tokens: int) -> None:
        """So many more of its tokens are in the chain: say how far that is. An unread older word is replaced."""
        self.read = max(self.read, self.entered) + tokens
        event = Event(prefill=room_pb2.Prefill(done=self.read, total=len(self.tokens)))
        self._replacing("prefill", event)

    def told(self, state: str, ahead: int = 0) -> room_pb2.RequestState:
        """What the host is told of it."""
        return room_pb2.RequestState(
            number=self.number,
            request_id=self.job.request_id,
            client=self.job.client,
            state=state,
            ahead=ahead,
            prompt_tokens=len(self.job.prompt),
            answer_tokens=len(self.tokens) - len(self.job.prompt),
            max_new=self.job.max_new,
        )

    def tell_place(self, ahead: int, wait: float = 0.0) -> None:
        """Say how many must make way first, if that has changed; an unread older place is replaced.

        `wait` is how many seconds that should take; 0: not known.
        """
        if ahead == self._place:
            return
        self._place = ahead
        self._replacing("queued", Event(queued=room_pb2.Queued(ahead=ahead, eta=math.ceil(wait))))

    def _replacing(self, kind: str, event: Event) -> None:
        last = self.outbox.last
        if last is not None and last.WhichOneof("event") == kind:
            self.outbox.replace_last(event)
        else:
            self.outbox.put(event)
