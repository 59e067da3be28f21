"""Answers that go on when peers of their chain are replaced: only what the new ones lack is computed again."""

from random import Random

import pytest

from room.room import Room
from room.session import Session
from tests.room.fakes import FakePeer, ask, close_loop, expected, ready_room, run_all, text, told

LAYERS = 6


def chain_of_three(**options: object) -> tuple[Room, list[FakePeer]]:
    return ready_room(3, layers=LAYERS, **options)


def spare_for(room: Room, peers: list[FakePeer], at: int, name: str = "spare") -> FakePeer:
    """A spare that holds the slice of stage `at`."""
    for number, peer in enumerate(peers):
        peer.member.weight_bytes = 9 if number == at else 1
    spare = FakePeer(room, name)
    spare.prepared()
    assert (spare.prepare.start, spare.prepare.end) == room.chains[0].spans[at]
    return spare


def replace(room: Room, peers: list[FakePeer], at: int, spare: FakePeer) -> list[FakePeer]:
    """The chain's peers after the one at `at` died; none has computed anything since."""
    chain = [spare if number == at else peer for number, peer in enumerate(peers)]
    room.leave(peers[at].member, "killed")
    for peer in chain:
        peer.rows.clear()
        peer.load()
    return chain


def work(peers: list[FakePeer], rounds: int) -> None:
    for _ in range(rounds):
        for peer in peers:
            peer.work()


def right(sessions: list[Session]) -> bool:
    return all(text(told(each)) == expected(each.job.prompt, each.job.max_new) for each in sessions)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_frames_that_rebuild_end_at_the_replaced_stage(at: int) -> None:
    room, peers = chain_of_three()
    spare = spare_for(room, peers, at)
    session = ask(room, prompt=200, max_new=30)
    work(peers, 8)
    held = session.sent - session.in_flight
    assert held > 200
    chain = replace(room, peers, at, spare)
    run_all(chain)
    for number, peer in enumerate(chain):
        assert (sum(peer.rows) >= held) is (number <= at), "later stages keep theirs"
    assert sum(chain[2].rows) < 60 or at == 2
    assert right([session])
    assert room.state().pages_free == room.state().pages


def test_pages_that_sessions_share_are_rebuilt_once() -> None:
    room, peers = chain_of_three(speculate=0)
    spare = spare_for(room, peers, 1)
    beginning = list(range(1, 161))
    sessions = [ask(room, [*beginning, 300 + at], max_new=40) for at in range(4)]
    work(peers, 20)
    assert all(session in room.running and session.decoding for session in sessions)
    held = [session.sent for session in sessions]
    chain = replace(room, peers, 1, spare)
    work(chain, 6)
    assert 160 < sum(rows for rows in spare.rows if rows > 4) <= 160 + sum(each - 160 + 16 for each in held)
    run_all(chain)
    assert right(sessions)


def test_who_shares_pages_rebuilds_them_when_the_one_before_it_is_given_up() -> None:
    room, peers = chain_of_three(speculate=0)
    spare = spare_for(room, peers, 1)
    beginning = list(range(1, 1201))
    first, second = (ask(room, [*beginning, 300 + at], max_new=40) for at in range(2))
    work(peers, 25)
    assert second.decoding
    chain = replace(room, peers, 1, spare)
    assert 0 < first.sent < first.whole, "the first chunk is on its way"
    room.close(first)
    third = ask(room, [*beginning, 400], max_new=5)
    run_all(chain)
    assert right([second, third])
    assert room.state().pages_free == room.state().pages


def test_a_second_loss_before_all_is_rebuilt() -> None:
    for at, then in ((0, 1), (1, 0), (1, 2), (2, 1), (1, 1)):
        room, peers = chain_of_three(speculate=0)
        spare = spare_for(room, peers, at)
        session = ask(room, prompt=1500, max_new=30)
        work(peers, 20)
        assert session.decoding
        chain = replace(room, peers, at, spare)
        work(chain, 1)
        assert session.rebuilding
        another = spare_for(room, chain, then, "another")
        chain = replace(room, chain, then, another)
        run_all(chain)
        assert right([session]), (at, then)
        assert session.recoveries == 2


def test_a_spare_with_less_room_means_that_all_begin_anew() -> None:
    room, peers = chain_of_three()
    spare = spare_for(room, peers, 1)
    session = ask(room, prompt=100, max_new=30)
    work(peers, 8)
    chain = [peers[0], spare, peers[2]]
    room.leave(peers[1].member, "killed")
    for peer in chain:
        peer.rows.clear()
        peer.load(pages=64 if peer is spare else 0)
    assert room.state().pages == 64
    run_all(chain)
    assert sum(peers[2].rows) > 100
    assert right([session])


def test_hybrid_models_begin_anew() -> None:
    room, peers = chain_of_three(shape_options={"hybrid": True})
    spare = spare_for(room, peers, 1)
    session = ask(room, prompt=100, max_new=30)
    work(peers, 10)
    chain = replace(room, peers, 1, spare)
    run_all(chain)
    assert sum(peers[2].rows) > 100
    assert right([session])


def test_a_peer_that_leaves_in_good_order_is_replaced_the_same_way() -> None:
    room, peers = chain_of_three()
    session = ask(room, prompt=200, max_new=30)
    work(peers, 8)
    spare = spare_for(room, peers, 1)
    peers[1].ask_to_leave()
    chain = [peers[0], spare, peers[2]]
    for peer in chain:
        peer.rows.clear()
        peer.load()
    run_all(chain)
    assert sum(peers[2].rows) < 60
    assert (right([session]), session.recoveries) == (True, 0)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_and_given_up_answers_stay_right_and_pages_come_back(seed: int) -> None:
    random = Random(seed)
    room, peers = chain_of_three(memory=1 << 19, ctx=256, speculate=random.choice((-1, 0, 3)))
    beginnings = [list(range(at, at + 70)) for at in (1, 200)]
    sessions, given_up = [], []
    straight = random.random() < 0.5
    if straight:
        close_loop(peers)
    for number in range(12):
        for _ in range(random.randrange(3)):
            prompt = [*random.choice(beginnings)[: random.randrange(20, 70)], *random.choices(range(900), k=5)]
            sessions.append(ask(room, prompt, max_new=random.randrange(1, 40), client=str(random.randrange(3))))
        work(peers, random.randrange(6))
        if sessions and random.random() < 0.3:
            given_up.append(sessions.pop(random.randrange(len(sessions))))
            room.close(given_up[-1])
        if random.random() < 0.4:
            at = random.randrange(3)
            spare = FakePeer(room, f"spare {number}", memory=1 << 19)
            if random.random() < 0.7:
                spare.prepared()
            room.leave(peers[at].member, "killed")
            peers[at] = spare
            for peer in peers:
                peer.hear()
                if peer.member.task == "loading":
                    peer.load()
            peers.sort(key=lambda peer: peer.assignment.start if peer.assignment else 0)
            if straight and room.not_ready is None:
                close_loop(peers)
    for session in sessions:
        session.recoveries = 0
    run_all(peers)
    for session in sessions:
        events = told(session)
        if session.recoveries or not session.ended or not session.outbox._error:
            assert text(events) == expected(session.job.prompt, session.job.max_new)
    assert (room.running, len(room.line)) == ([], 0)
    assert room.state().pages_free == room.state().pages
