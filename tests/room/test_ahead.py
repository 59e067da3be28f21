"""Decode frames that are sent ahead of their tokens, which the last peer gives the first one."""

from collections.abc import Sequence
from random import Random

import pytest

from protos import peer_pb2
from protos.lanes import DECODE
from room.drafts import OFF
from room.errors import InternalError
from room.room import Room
from room.schedule import Limits
from room.session import Event, Session
from room.tuning import Tuning
from tests.room import fakes
from tests.room.fakes import (
    CountingAnswer,
    FakePeer,
    ask,
    close_loop,
    expected,
    job,
    next_id,
    open_room,
    ready_room,
    run_all,
    text,
    told,
)
from tests.room.pipeline import Pipeline


def on_loop(peers: Sequence[FakePeer], steps: int) -> list[peer_pb2.FromPeer]:
    """Let two peers compute so many steps while the room hears nothing of it; what they have to tell it."""
    untold = []
    for _ in range(steps):
        for frame in peers[0].frames():
            untold.append(peers[1].compute(peers[0].compute(frame).relay))
    return untold


def in_loop(*, prompts: int = 1, max_new: int = 30, **options: object) -> tuple[Room, list[FakePeer], list[Session]]:
    """Some answers that two peers are in the middle of, on a way of their own."""
    room, peers = ready_room(2, straight=True, speculate=OFF, **options)
    sessions = [ask(room, prompt=20 + at, max_new=max_new, first=40 * at) for at in range(prompts)]
    while not all(session.decoding and len(session.tokens) > len(session.job.prompt) + 3 for session in sessions):
        for peer in peers:
            peer.work()
    return room, peers, sessions


def right(sessions: Sequence[Session]) -> bool:
    return all(text(told(each)) == expected(each.job.prompt, each.job.max_new) for each in sessions)


def test_peers_take_a_step_of_which_the_room_knows_no_token() -> None:
    room, peers, (session,) = in_loop()
    before = len(session.tokens)
    untold = on_loop(peers, 2)
    assert len(untold) == 2
    assert len(session.tokens) == before
    for message in untold:
        room.arrived(peers[1].member, message)
    assert session.tokens[before:] == [message.result.segments[0].tokens[0].id for message in untold]
    run_all(peers)
    assert right([session])
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


@pytest.mark.parametrize(("way", "steps"), [({"peers": 1}, True), ({"straight": True}, True), ({}, False)])
def test_nothing_is_sent_ahead_where_the_last_peer_does_not_reach_the_first(way: dict, steps: bool) -> None:
    room, peers = ready_room(**way, speculate=OFF)
    session = ask(room, max_new=9)
    follows = []
    while not session.ended:
        frames = peers[0].frames()
        follows += [frame.follows for frame in frames]
        for frame in frames:
            out = peers[0].compute(frame)
            last = peers[-1]
            room.arrived(last.member, out if out.HasField("result") else last.compute(out.relay))
    assert any(follows) is steps
    assert right([session])


def test_no_step_more_is_computed_than_the_answer_may_have() -> None:
    room, peers = ready_room(2, straight=True, speculate=OFF)
    session = ask(room, prompt=10, max_new=12)
    run_all(peers)
    assert sum(peers[1].rows) == 10 + 11
    assert right([session])


def test_who_comes_joins_the_frame_of_the_others() -> None:
    room, peers, sessions = in_loop(prompts=3)
    sessions.append(ask(room, prompt=30, max_new=30, first=500))
    for _ in range(8):
        peers[0].work()
        peers[1].work()
    assert {len(plan.shares) for plan in room.chains[0].flying} == {4}
    run_all(peers)
    assert right(sessions)


class Ending(CountingAnswer):
    """Ends early: nobody could foresee that."""

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> list[Event]:
        events = list(super().feed(tokens))
        if self.completion_tokens > 4:
            self.finished = 1
        return events


def test_what_was_sent_ahead_of_an_end_is_computed_and_ignored() -> None:
    room, peers = ready_room(2, straight=True, speculate=OFF)
    session = room.submit(job(10, 30), Ending(30))
    other = ask(room, prompt=25, max_new=30, first=300)
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 5)
    assert right([other])
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages
    again = ask(room, [*range(1, 11), *expected(range(1, 11), 5), 900], max_new=9)
    run_all(peers)
    assert again.cached >= 14, "what was computed of the answer is held"
    assert right([again])


class Forcing(CountingAnswer):
    """Puts two tokens of its own behind every one that is a multiple of five: nobody could foresee that."""

    def __init__(self, max_new: int) -> None:
        super().__init__(max_new)
        self._last = 1

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> list[Event]:
        self._last = tokens[-1].id
        return list(super().feed(tokens))

    def force(self) -> tuple[list[int], list[Event]]:
        if self._last % 5 or self.finished:
            return [], []
        self._last = 1
        forced = [peer_pb2.SampledToken(id=token) for token in (3, 4)]
        return [3, 4], list(super().feed(forced))


def forced(prompt: Sequence[int], max_new: int) -> list[int]:
    """What comes of that without anything sent ahead."""
    ids = list(prompt)
    while len(ids) - len(prompt) < max_new:
        ids.append(next_id(ids, len(ids)))
        ids += [3, 4] if ids[-1] % 5 == 0 and len(ids) - len(prompt) < max_new else []
    return ids[len(prompt) :]


@pytest.mark.parametrize("frames", [1, 2, 3, 8])
def test_tokens_drawn_behind_what_turned_out_otherwise_do_not_count(
    frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tuning, "ahead", lambda tuning, rows: frames)
    room, peers = ready_room(2, straight=True, speculate=OFF)
    sessions = [room.submit(job(20, 60, first=50 * at), Forcing(60)) for at in range(4)]
    other = ask(room, prompt=25, max_new=30, first=300)
    run_all(peers)
    for session in sessions:
        assert text(told(session)) == forced(session.job.prompt, 60)
    assert right([other])
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


class Masking(CountingAnswer):
    """Behind a multiple of five only even tokens may come; the fake peer draws what it would under the mask it got."""

    allowed = bytes([0b01010101]) * (fakes.VOCAB // 8 + 1)

    def feed(self, tokens: Sequence[peer_pb2.SampledToken]) -> list[Event]:
        self._held = tokens[-1].id % 5 == 0
        return list(super().feed(tokens))

    def mask(self) -> bytes | None:
        return self.allowed if getattr(self, "_held", False) else None


def test_a_token_drawn_under_a_mask_that_no_longer_holds_does_not_count() -> None:
    """Every token behind a multiple of five is drawn in a frame whose plan names the mask."""
    room, peers = ready_room(2, straight=True, speculate=OFF)
    session = room.submit(job(20, 80), Masking(80))
    plans: dict[int, bool] = {}
    counted = []
    while not session.ended:
        peers[0].work()
        sent = peers[1].take()
        plans |= {each.plan.step: bool(each.plan.specs[0].masks) for each in sent if each.HasField("plan")}
        for frame in (each.frame for each in sent if each.HasField("frame")):
            before = session.tokens[-1], len(session.tokens)
            room.arrived(peers[1].member, peers[1].compute(frame))
            if before[1] > 20 and len(session.tokens) > before[1]:
                counted.append((before[0] % 5 == 0, plans[frame.step]))
    assert all(held is masked for held, masked in counted)
    assert (True, True) in counted
    assert (False, False) in counted


def test_when_a_frame_fails_what_was_sent_ahead_behind_it_is_forgotten() -> None:
    room, peers, sessions = in_loop(prompts=2)
    (frame,) = peers[0].frames()
    assert any(plan.follows == frame.step for plan in room.chains[0].flying)
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="NaN")
    room.arrived(peers[0].member, peer_pb2.FromPeer(fault=fault))
    peers[1].load()
    assert peers[1].assignment.end - peers[1].assignment.start == 4, "it does without the other"
    run_all([peers[1]])
    assert right(sessions)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_nobody_waits_for_what_was_sent_ahead_of_a_failure() -> None:
    room, peers, sessions = in_loop(prompts=2, memory=int((3 * 4000 + 16 * 2 * 4 * 4096) / 0.9), max_running=2)
    (frame,) = peers[0].frames()
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="NaN")
    room.arrived(peers[0].member, peer_pb2.FromPeer(fault=fault))
    assert all(isinstance(session.outbox._error, InternalError) for session in sessions), "nobody else has its layers"
    assert not list(room.chains[0].flying)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_a_bad_result_holds_up_nobody_else() -> None:
    """The last peer draws what is no token, and gives the first one nothing."""
    room, peers, sessions = in_loop(prompts=2, memory=int((3 * 4000 + 16 * 2 * 4 * 4096) / 0.9), max_running=2)
    peers[1].first = None
    (frame,) = peers[0].frames()
    result = peers[1].compute(peers[0].compute(frame).relay)
    result.result.segments[0].tokens[0].id = fakes.VOCAB
    room.arrived(peers[1].member, result)
    assert all(isinstance(session.outbox._error, InternalError) for session in sessions)
    for peer in peers:
        peer.load()
    later = ask(room, prompt=30, max_new=5, first=300)
    run_all(peers)
    assert right([later])
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


@pytest.mark.parametrize("kind", [Forcing, Masking, CountingAnswer])
def test_the_last_word_of_what_was_rebuilt_may_come_late(kind: type[CountingAnswer]) -> None:
    """It comes from another peer than the tokens drawn behind it."""
    for steps in range(4, 20):
        room = open_room(devices=2, speculate=OFF)
        peers = [FakePeer(room, name, machine=name) for name in ("a", "b")]
        for peer in peers:
            peer.load()
        close_loop(peers)
        spare = FakePeer(room, "spare", machine="spare")
        spare.prepared()
        session = room.submit(job(20, 60), kind(60))
        for _ in range(steps):
            for peer in peers:
                peer.work()
        for peer in peers:
            peer.take()
        dead = next(at for at, peer in enumerate(peers) if (peer.assignment.start == spare.prepare.start))
        room.leave(peers[dead].member, "killed")
        peers[dead] = spare
        for peer in peers:
            peer.load()
        close_loop(peers)
        while not session.ended:
            late = []
            for frame in peers[0].frames():
                out = peers[0].compute(frame)
                if out.HasField("result"):
                    late.append(out)
                else:
                    room.arrived(peers[1].member, peers[1].compute(out.relay))
            assert late or session.in_flight or session.ended, "it goes on"
            for out in late:
                room.arrived(peers[0].member, out)
        wanted = forced if kind is Forcing else expected
        assert text(told(session)) == wanted(session.job.prompt, 60)


def test_what_cannot_be_filled_in_is_the_last_peers_fault() -> None:
    room, peers, _ = in_loop()
    assert room.chains[0].before(peers[0].member) is peers[1].member


def test_what_is_drawn_reaches_the_first_peer_through_the_room_too() -> None:
    room, (first, second), _ = in_loop()
    first.take()
    drawn = peer_pb2.Frame(epoch=room.chains[0].epoch, step=3, lane=1, hop=1, drawn=peer_pb2.Drawn(ids=[5]))
    room.arrived(second.member, peer_pb2.FromPeer(relay=drawn))
    assert [message.frame for message in first.take()] == [drawn]
    for segments in ([peer_pb2.Segment(ids=[5])], []):
        frame = peer_pb2.Frame(epoch=room.chains[0].epoch, step=3, lane=1, segments=segments)
        room.arrived(second.member, peer_pb2.FromPeer(relay=frame))
        assert first.take() == [], "what it computes comes from the room alone"


def test_a_link_that_breaks_ends_it() -> None:
    room, peers, (session,) = in_loop()
    peers[1].measured(10**9, direct=False)
    on_way = len(list(room.chains[0].flying))
    for message in on_loop(peers, on_way):
        room.arrived(peers[1].member, message)
    assert not any(plan.follows for plan in room.chains[0].flying)
    close_loop(peers)
    run_all(peers)
    assert right([session])


def test_nothing_follows_a_frame_that_was_sent_before_there_was_a_way() -> None:
    room, peers = ready_room(2, speculate=OFF)
    session = ask(room, max_new=20)
    while not any(plan.lane == DECODE for plan in room.chains[0].flying):
        for peer in peers:
            peer.work()
    close_loop(peers)
    room.tick()
    assert not any(plan.follows for plan in room.chains[0].flying), "its tokens will not come to the first peer"
    run_all(peers)
    assert right([session])


@pytest.mark.parametrize("what", ["penalty", "state"])
def test_answers_that_need_the_room_between_two_steps_are_not_sent_ahead(what: str) -> None:
    room, peers = ready_room(2, straight=True, speculate=OFF, shape_options={"hybrid": what == "state"})
    wanted = job(20, 20)
    if what == "penalty":
        wanted.params.frequency_penalty = 0.5
    session = room.submit(wanted, CountingAnswer(20))
    while not session.ended:
        assert not any(plan.follows for plan in room.chains[0].flying)
        for peer in peers:
            peer.work()
    assert right([session])


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_in_between_answers_are_right(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of all kinds that come, are given up, and whose peers tell the room of frames late."""
    random = Random(seed)
    monkeypatch.setattr(Tuning, "ahead", lambda tuning, rows: random.randrange(1, 5))
    room, peers = ready_room(2, straight=True, speculate=random.choice((-1, 0, 3)), max_running=6)
    plain, special, untold = [], [], []
    for number in range(40):
        if random.random() < 0.3:
            prompt = random.choices(range(900), k=random.randrange(1, 60))
            plain.append(ask(room, prompt, max_new=random.randrange(1, 40), client=str(number % 3)))
        if random.random() < 0.2:
            special.append(room.submit(job(random.randrange(1, 60), 30), Forcing(30)))
        if plain and random.random() < 0.1:
            room.close(plain.pop(random.randrange(len(plain))))
        untold += on_loop(peers, random.randrange(3))
        while untold and random.random() < 0.7:
            room.arrived(peers[1].member, untold.pop(0))
    for message in untold:
        room.arrived(peers[1].member, message)
    run_all(peers)
    assert right(plain)
    for session in special:
        assert text(told(session)) == forced(session.job.prompt, 30)
    following = [ask(room, [*session.tokens, 900], max_new=3) for session in [*plain, *special]]
    run_all(peers)
    assert right(following), "what is held of an answer is that of its tokens"
    assert (room.running, len(room.line)) == ([], 0)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


# ---------------------------------------------------------------- what it brings


def pace(link: float, streams: int, stages: int, *, straight: bool, shared: bool) -> float:
    """Tokens a second of so many answers, on stages that take 20 ms a frame and 1 ms a row."""
    pipeline = Pipeline(
        [lambda rows: 0.020 + 0.001 * rows] * stages,
        link=link,
        machines=["m"] * stages if shared else None,
        straight=straight,
        speculate=OFF,
    )
    sessions = [ask(pipeline.room, prompt=20, max_new=2000, first=20 * at) for at in range(streams)]
    return pipeline.pace(sessions, seconds=4, warm=8)


@pytest.mark.parametrize("shared", [False, True])
def test_behind_slow_links_a_token_takes_two_hops_instead_of_three(shared: bool) -> None:
    by_room, straight = (pace(0.025, 1, 2, straight=way, shared=shared) for way in (False, True))
    assert straight / by_room == pytest.approx((0.075 + 0.042) / (0.050 + 0.042), rel=0.02)
    assert pace(0.025, 16, 2, straight=True, shared=shared) > 1.1 * pace(0.025, 16, 2, straight=False, shared=shared)


def test_without_delay_it_costs_nothing() -> None:
    for streams in (1, 16):
        assert pace(0.0, streams, 2, straight=True, shared=True) >= 0.99 * pace(
            0.0, streams, 2, straight=False, shared=True
        )


def test_one_peer_far_away_computes_without_a_pause() -> None:
    assert pace(0.05, 1, 1, straight=False, shared=False) > 0.95 / 0.021


def test_a_prompt_gets_its_turn_where_stages_share_a_processor() -> None:
    room, peers, (session,) = in_loop()
    assert room.chains[0].limits.by_turns, Limits
    late = ask(room, prompt=300, max_new=5, first=300)
    for _ in range(8):
        for peer in peers:
            peer.work()
    assert late.decoding or late.ended
    run_all(peers)
    assert right([session, late])
