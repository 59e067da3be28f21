"""The chains of a room: who is in which, and which one a request goes to. Free of I/O."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from protos import room_pb2
from room.chain import Chain
from room.config import RoomConfig
from room.deal import Deal
from room.members import Member, State
from room.model import Model
from room.session import Session

FORESEEN = 256
"""Tokens that an answer is taken to have before it where it may have more."""

READ_AT_ONCE = 8
"""Tokens of a prompt, which go in chunks, are taken to need as long as one step of an answer."""


class Chains:
    """Each has its own pages, prefix tree and epoch; no peer is in two of them. In order of their numbers."""

    def __init__(self, model: Model, config: RoomConfig, clock: Callable[[], float]) -> None:
        self._model = model
        self._config = config
        self._clock = clock
        self._epoch = 0
        self._chains: list[Chain] = []

    def __repr__(self) -> str:
        return f"<Chains {self._chains}>"

    def __len__(self) -> int:
        return len(self._chains)

    def __iter__(self) -> Iterator[Chain]:
        return iter(tuple(self._chains))

    def __getitem__(self, at: int) -> Chain:
        return self._chains[at]

    @property
    def ready(self) -> bool:
        """Whether requests can be answered."""
        return any(chain.ready for chain in self._chains)

    @property
    def sessions(self) -> list[Session]:
        """All that run."""
        return [session for chain in self._chains for session in chain.sessions]

    @property
    def most_positions(self) -> int:
        """That a session may have in the roomiest chain."""
        return max(chain.most_positions for chain in self._chains)

    def of(self, member: Member) -> Chain | None:
        """The one that the peer is in."""
        return next((chain for chain in self._chains if chain.holds(member)), None)

    def of_epoch(self, member: Member, epoch: int) -> Chain | None:
        """The same, if what the peer says is of that deal and not of one that is over."""
        chain = self.of(member)
        return chain if chain is not None and chain.epoch == epoch else None

    def answering(self, session: Session) -> Chain | None:
        """The one that the session runs in."""
        return next((chain for chain in self._chains if session in chain.sessions), None)

    def leaves(self, session: Session) -> bool:
        """Whether frames of a session that does not run any more are still on their way."""
        return any(session in chain.leaving for chain in self._chains)

    def start(self, deal: Deal, members: Sequence[Member], former: Chain | None = None) -> Chain:
        """Have the members load their slices; those of `former`, which has ended, keep its pages."""
        self._epoch += 1
        taken = {chain.number for chain in self._chains}
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        chain = Chain(self._epoch, number, deal, members, self._model, self._config, self._clock, former)
        self._chains = sorted([*self._chains, chain], key=lambda each: each.number)
        for member, assignment in chain.assignments():
            member.task, member.loaded, member.link, member.kept = State.LOADING, 0.0, None, False
            member.preparing = None
            member.held = member.held if member.held == (assignment.start, assignment.end) else None
            member.outbox.put(room_pb2.ToMember(assignment=assignment))
        return chain

    def end(self, chain: Chain, keeping: Sequence[Member] = ()) -> None:
        """It is over: its members wait for another deal, and those `keeping` its pages get one now."""
        self._chains.remove(chain)
        for stage in chain.stages:
            if stage.member.task is not State.FAILED:
                stage.member.task = State.JOINING
            if stage.member not in keeping:
                stage.member.outbox.put(room_pb2.ToMember(released=room_pb2.Released(epoch=chain.epoch)))


def by_preference(session: Session, chains: Sequence[Chain]) -> list[Chain]:
    """The chains that could answer the session, the one in which it should end first before the others.

    A chain that holds the session's beginning may be busier, by as much as computing that anew would take.
    """
    if len(chains) < 2:
        return list(chains)

    def rank(chain: Chain) -> tuple[float, int]:
        running = len(chain.sessions)
        return _seconds(session, chain, running + 1, chain.cache.promises(session)), running

    return sorted(chains, key=rank)


def better_off(chain: Chain, others: Iterable[Chain]) -> list[tuple[Chain, Session]]:
    """Who should go on in `chain`, since it ends sooner there although all it has is computed anew."""
    running = {other: list(other.sessions) for other in others if other.sessions}
    found: list[tuple[Chain, Session]] = []
    while running:
        busiest = max(running, key=lambda other: other.step_seconds(len(running[other])))
        session = min(running[busiest], key=lambda each: len(each.tokens))
        there = _seconds(session, chain, len(chain.sessions) + len(found) + 1, held=0)
        if there >= _seconds(session, busiest, len(running[busiest]), held=len(session.tokens)):
            break
        found.append((busiest, session))
        running[busiest].remove(session)
        if not running[busiest]:
            del running[busiest]
    return found


def _seconds(session: Session, chain: Chain, running: int, held: int) -> float:
    """Until the session's end, as one of so many that are `running` in the chain, which holds that much of it."""
    steps = min(session.left, FORESEEN) + (len(session.tokens) - held) / READ_AT_ONCE
    return steps * chain.step_seconds(running)
