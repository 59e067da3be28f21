"""A room whose peers hold the model more than once."""

from collections.abc import Sequence
from random import Random

import pytest

from room.config import RoomConfig
from room.deal import LEAST_TOKENS, USABLE
from room.dealer import RETURN_WITHIN
from room.errors import NoPipeline, StartError
from room.forms import Forms
from room.regroup import AT_REST
from room.room import MOVING, RESUMING, Room
from tests.room.fakes import (
    MACHINE,
    Clock,
    FakePeer,
    ask,
    drain,
    expected,
    model,
    open_room,
    pass_time,
    run_all,
    states,
    text,
    told,
)


def two_chains(peers: int = 4, **options: object) -> tuple[Room, list[FakePeer]]:
    """A room with chains of two peers each, as many as the peers make."""
    room = open_room(**{"chains": None, "devices": 2, **options})
    made = [FakePeer(room, f"p{number}") for number in range(peers)]
    for peer in made[: peers // 2 * 2]:
        peer.load()
    return room, made


def chains(room: Room) -> list[list[str]]:
    return [[stage.member.name for stage in chain.stages] for chain in room.chains]


def reload(peers: Sequence[FakePeer]) -> None:
    for peer in peers:
        peer.hear()
        if peer.assignment and peer.member.task == "loading":
            peer.load()


def finished(session: object, peers: Sequence[FakePeer]) -> list[int]:
    run_all(peers)
    return text(told(session))


def test_peers_that_are_left_over_make_a_second_chain_where_they_hold_the_model() -> None:
    room, _ = two_chains(5)
    assert chains(room) == [["p0", "p1"], ["p2", "p3"]]
    assert [peer.chain for peer in room.peers()] == [1, 1, 2, 2, 0]
    assert states(room)["p4"] == "spare"
    pool = room.chains[0].cache.pool.pages
    assert (room.state().pages, room.state().pages_free) == (2 * pool, 2 * pool)


def test_as_few_peers_as_hold_the_model_make_a_chain_and_a_host_may_want_one_only() -> None:
    for most, dealt in ((None, [["a"], ["b"], ["c"]]), (2, [["a"], ["b"]]), (1, [["a"]])):
        room = open_room(chains=most)
        for name in "abc":
            FakePeer(room, name)
        assert chains(room) == dealt
    with pytest.raises(StartError, match="--chains"):
        RoomConfig(model="/model", chains=0)


def test_peers_are_divided_so_that_they_make_as_many_chains_as_possible() -> None:
    """The two that lend most would make the first chain, and leave nobody who could make another."""
    for most, dealt in ((None, [["a", "c"], ["b", "d"]]), (1, [["a", "b"]])):
        room = open_room(chains=most)
        whole = Forms().weight_bytes(room.model.shape, 0, 4, 4) + 4 * 16 * 4 * LEAST_TOKENS
        for name in "abcd":
            FakePeer(room, name, memory=int(whole * (0.95 if name in "ab" else 0.5)))
        assert chains(room) == [["a", "b"]], "as soon as there are enough"
        room.redeal()
        assert sorted(map(sorted, chains(room))) == dealt


def test_requests_spread_over_the_chains_and_are_answered_alike() -> None:
    room, peers = two_chains()
    sessions = [ask(room, first=20 * at, max_new=9) for at in range(6)]
    assert [len(chain.sessions) for chain in room.chains] == [3, 3]
    run_all(peers)
    assert [text(told(session)) for session in sessions] == [expected(each.job.prompt, 9) for each in sessions]
    assert room.state().pages_free == room.state().pages


def test_a_slower_chain_gets_fewer_requests() -> None:
    room, peers = two_chains()
    for at, peer in enumerate(peers):
        peer.member.place.took(0.01 if at < 2 else 0.03)
    for at in range(8):
        ask(room, first=20 * at)
    assert [len(chain.sessions) for chain in room.chains] == [6, 2]


def test_a_request_goes_where_its_beginning_lives_unless_too_many_are_there() -> None:
    room, peers = two_chains()
    talk = list(range(1, 101))
    finished(ask(room, talk), peers)
    other = ask(room, first=300, max_new=50)
    assert other in room.chains[0].sessions
    again = ask(room, [*talk, 7, 8, 9], max_new=50)
    assert again in room.chains[0].sessions
    assert again.cached >= 96
    for at in range(4):
        ask(room, first=400 + 20 * at, max_new=50)
    assert [len(chain.sessions) for chain in room.chains] == [3, 3]
    busy = [ask(room, [*talk, 20 + at], max_new=50) for at in range(9)]
    assert {session in room.chains[0].sessions for session in busy} == {True, False}
    run_all(peers)


def test_answers_of_a_lost_chain_go_on_in_the_other() -> None:
    room, peers = two_chains()
    sessions = [ask(room, first=20 * at, max_new=30) for at in range(4)]
    for _ in range(5):
        for peer in peers:
            peer.work()
    before = [len(session.tokens) for session in sessions]
    room.leave(peers[1].member, "killed")
    assert chains(room) == [["p2", "p3"]]
    assert len(room.running) == 4
    run_all(peers[2:])
    for session, tokens in zip(sessions, before, strict=True):
        events = told(session)
        assert text(events) == expected(session.job.prompt, 30)
        notices = [event.notice.text for event in events if event.HasField("notice")]
        assert notices in ([], [RESUMING])
        assert tokens > len(session.job.prompt)
    assert states(room) == {"p0": "spare", "p2": "ready", "p3": "ready"}
    assert room.state().pages_free == room.state().pages


def test_a_broken_chain_is_whole_again_when_its_peer_is_back_or_another_stands_in() -> None:
    for name in ("p1", "new"):
        room, peers = two_chains()
        room.leave(peers[1].member, "killed")
        peers[1] = FakePeer(room, name)
        assert chains(room) == [["p0", name], ["p2", "p3"]]
        reload(peers)
        assert [chain.ready for chain in room.chains] == [True, True]


def test_the_last_chain_to_go_leaves_answers_waiting() -> None:
    room, peers = two_chains()
    session = ask(room, max_new=20)
    for peer in peers:
        room.leave(peer.member, "killed")
    assert isinstance(room.not_ready, NoPipeline)
    assert session in room.line
    back = [FakePeer(room, f"p{at}") for at in range(4)]
    reload(back)
    assert finished(session, back) == expected(session.job.prompt, 20)


def test_a_redeal_takes_all_chains_apart() -> None:
    room, peers = two_chains()
    sessions = [ask(room, first=20 * at, max_new=20) for at in range(2)]
    for peer in peers:
        peer.work()
    before = [chain.epoch for chain in room.chains]
    room.redeal()
    assert min(chain.epoch for chain in room.chains) > max(before)
    reload(peers)
    run_all(peers)
    for session in sessions:
        events = told(session)
        assert MOVING in [event.notice.text for event in events]
        assert text(events) == expected(session.job.prompt, 20)


def test_a_spare_takes_over_in_whichever_chain_a_peer_leaves() -> None:
    room, peers = two_chains(5)
    peers[2].member.weight_bytes = 9
    spare = peers[4]
    peers[3].ask_to_leave()
    spare.prepared()
    assert (spare.prepare.start, spare.prepare.end) == (2, 4)
    assert chains(room) == [["p0", "p1"], ["p2", "p4"]]


def test_a_much_slower_chain_is_not_worth_it_unless_the_host_says_so() -> None:
    for most, count in ((None, 1), (2, 2)):
        room = open_room(chains=most)
        quick = FakePeer(room, "quick")
        quick.member.place.took(0.01)
        quick.load()
        slow = FakePeer(room, "slow").member

        slow.place.took(0.1)
        room.redeal()
        assert len(room.chains) == count


def test_a_restarted_room_gives_all_chains_their_peers_back() -> None:
    clock = Clock()
    before, _ = two_chains(clock=clock)
    room = Room(RoomConfig(model="/model"), model(4), "ABC234", MACHINE, kept=before.kept, clock=clock)
    for name in ("p3", "p1", "p0"):
        FakePeer(room, name)
    assert chains(room) == [["p0", "p1"]], "p3 alone would hold the model, but its chain may still come back"
    FakePeer(room, "p2")
    assert chains(room) == [["p0", "p1"], ["p2", "p3"]]


def test_who_does_not_come_back_is_waited_for_only_so_long_beside_another_chain() -> None:
    clock = Clock()
    before, _ = two_chains(clock=clock)
    room = Room(RoomConfig(model="/model"), model(4), "ABC234", MACHINE, kept=before.kept, clock=clock)
    back = [FakePeer(room, name) for name in ("p0", "p1", "p3")]
    reload(back)
    pass_time(room, clock, RETURN_WITHIN + 1, back)
    assert chains(room) == [["p0", "p1"], ["p3"]]


def test_what_a_peer_says_of_a_deal_that_is_over_changes_nothing_of_its_next_chain() -> None:
    room, peers = two_chains()
    session = ask(room, max_new=20)
    late = [frame for peer in peers for frame in peer.frames()]
    assert late
    room.redeal()
    reload(peers)
    for frame in late:
        for peer in peers:
            room.arrived(peer.member, peer.compute(frame))
    for peer in peers:
        list(drain(peer.member.outbox))
    assert finished(session, peers) == expected(session.job.prompt, 20)


def test_answers_move_back_into_a_chain_that_is_whole_again() -> None:
    room, peers = two_chains()
    sessions = [ask(room, first=20 * at, max_new=60) for at in range(6)]
    room.leave(peers[1].member, "killed")
    for peer in peers[2:] * 5:
        peer.work()
    assert [len(chain.sessions) for chain in room.chains] == [6]
    peers[1] = FakePeer(room, "p1")
    reload(peers[:2])
    for peer in peers[2:] * 2:
        peer.work()  # what is on its way ends where it began
    assert [len(chain.sessions) for chain in room.chains] == [3, 3]
    run_all(peers)
    for session in sessions:
        events = told(session)
        assert text(events) == expected(session.job.prompt, 60)
        notices = [event.notice.text for event in events if event.HasField("notice")]
        assert notices in ([], [MOVING], [RESUMING], [RESUMING, MOVING])
    assert [session.recoveries for session in sessions] == [1, 0] * 3, "a move of the room's own counts as no loss"
    assert room.state().pages_free == room.state().pages


def test_answers_that_are_about_to_end_or_long_to_read_stay_where_they_are() -> None:
    for prompt, max_new in ((10, 3), (2000, 60)):
        room, peers = two_chains()
        room.leave(peers[1].member, "killed")
        sessions = [ask(room, prompt, first=at, max_new=max_new) for at in range(3)]
        while not all(session.decoding for session in sessions):
            for peer in peers[2:]:
                peer.work()
        peers[1] = FakePeer(room, "p1")
        reload(peers[:2])
        assert [len(chain.sessions) for chain in room.chains] == [0, 3]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_to_chains_answers_stay_right_and_pages_come_back(seed: int) -> None:
    random = Random(seed)
    shape_options = {"hybrid": random.random() < 0.3}
    room, peers = two_chains(
        max_running=random.choice((3, 32)), speculate=random.choice((-1, 3)), ctx=256, shape_options=shape_options
    )
    beginnings = [list(range(at, at + 70)) for at in (1, 200)]
    sessions = []
    for _ in range(15):
        for _ in range(random.randrange(4)):
            prompt = [*random.choice(beginnings)[: random.randrange(20, 70)], *random.choices(range(900), k=5)]
            sessions.append(ask(room, prompt, max_new=random.randrange(1, 60), client=str(random.randrange(3))))
        for peer in peers * random.randrange(8):
            peer.work()
        if sessions and random.random() < 0.2:
            room.close(sessions.pop(random.randrange(len(sessions))))
        if random.random() < 0.5:
            at = random.randrange(4)
            room.leave(peers[at].member, "killed")
            for peer in [*peers[:at], *peers[at + 1 :]] * random.randrange(3):
                peer.work()
            peers[at] = FakePeer(room, f"p{at}")
        elif random.random() < 0.1:
            room.redeal()
        reload(peers)
    run_all(peers)
    for session in sessions:
        if not session.outbox._error:  # its chain was not lost once too often
            assert text(told(session)) == expected(session.job.prompt, session.job.max_new)
    assert (room.running, len(room.line)) == ([], 0)
    assert room.state().pages_free == room.state().pages


def parts(room: Room, *shares: float) -> list[FakePeer]:
    """Peers that lend such parts of what the whole model takes, each loaded as it is told."""
    layers = room.model.shape.layers
    whole = (Forms().weight_bytes(room.model.shape, 0, layers, 4) + layers * 16 * 4 * LEAST_TOKENS) / USABLE
    peers: list[FakePeer] = []
    for share in shares:
        peers.append(FakePeer(room, f"p{len(room.roster)}", memory=int(whole * share)))
        reload(peers)
        prepare(peers)
        reload(peers)
    return peers


def prepare(peers: Sequence[FakePeer]) -> None:
    """Have spares load what they hold in reserve."""
    for peer in peers:
        peer.hear()
        if peer.member.preparing:
            peer.prepared()


def test_peers_that_join_later_make_a_further_chain_beside_running_answers() -> None:
    room, peers = two_chains(2)
    sessions = [ask(room, first=20 * at, max_new=30) for at in range(4)]
    for peer in peers * 3:
        peer.work()
    epoch = room.chains[0].epoch
    peers += [FakePeer(room, name) for name in ("p2", "p3")]
    for peer in peers[:2] * 2:
        peer.work()
    reload(peers[2:])
    assert (chains(room), room.chains[0].epoch) == ([["p0", "p1"], ["p2", "p3"]], epoch)
    run_all(peers)
    for session in sessions:
        events = told(session)
        assert text(events) == expected(session.job.prompt, 30)
        assert [event.notice.text for event in events if event.HasField("notice")] in ([], [MOVING])
    assert [session.recoveries for session in sessions] == [0] * 4


def test_a_spare_with_the_same_layers_sets_free_who_is_needed_for_a_further_chain() -> None:
    """The two spares lack something that each peer at work has more of than it needs."""
    room = open_room(chains=None, layers=8, ctx=LEAST_TOKENS)
    peers = parts(room, 0.95, 0.95, 0.65)
    sessions = [ask(room, first=20 * at, max_new=60) for at in range(3)]
    for peer in peers * 4:
        peer.work()
    peers += [FakePeer(room, "small", memory=int(peers[0].hello.memory * 0.3))]
    prepare(peers)
    assert len(room.chains) == 2, "as soon as the spares have loaded what they hold in reserve"
    assert "p2" in chains(room)[0]
    assert "small" in chains(room)[1]
    reload(peers)
    run_all(peers)
    for session in sessions:
        events = told(session)
        assert text(events) == expected(session.job.prompt, 60)
        assert {event.notice.text for event in events if event.HasField("notice")} == {MOVING}
        assert session.recoveries == 0
    assert room.state().pages_free == room.state().pages


def test_a_room_at_rest_deals_anew_where_that_makes_more_chains() -> None:
    clock = Clock()
    room = open_room(chains=None, layers=8, ctx=LEAST_TOKENS, clock=clock)
    peers = parts(room, 0.95, 0.95, 0.45, 0.45)
    before = chains(room)
    session = ask(room, max_new=5)
    pass_time(room, clock, AT_REST + 1, peers)
    assert chains(room) == before == [["p0", "p1"]], "not while it answers"
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 5)
    pass_time(room, clock, AT_REST + 1, peers)
    assert sorted(map(len, chains(room))) == [2, 2]
    reload(peers)
    epochs = [chain.epoch for chain in room.chains]
    pass_time(room, clock, 3 * AT_REST, peers)
    assert [chain.epoch for chain in room.chains] == epochs, "once"


def test_peers_that_hold_the_model_in_another_order_than_they_came_in_are_dealt_to() -> None:
    room = open_room(chains=None, ctx=LEAST_TOKENS)
    parts(room, 0.27, 0.47, 1.06, 0.6)
    room.redeal()
    assert len(room.chains) == 2
    assert sorted(len(chain.stages) for chain in room.chains) == [1, 3]


def test_no_chain_is_added_by_which_conversations_would_have_to_be_shorter() -> None:
    clock = Clock()
    room = open_room(chains=None, layers=8, ctx=2 * LEAST_TOKENS, clock=clock)
    peers = parts(room, 0.95, 0.95, 0.45, 0.45)
    longest = room.effective_ctx
    pass_time(room, clock, 3 * AT_REST, peers)
    assert len(room.chains) == 1
    room.redeal()
    assert len(room.chains) == 2, "it is for the host to say so"
    assert room.effective_ctx < longest


@pytest.mark.parametrize("seed", range(12))
def test_a_room_at_rest_comes_by_itself_to_as_many_chains_as_a_redeal_makes(seed: int) -> None:
    random, clock = Random(seed), Clock()
    room = open_room(chains=None, layers=12, ctx=LEAST_TOKENS, clock=clock)
    peers = parts(room, *(random.uniform(0.25, 1.1) for _ in range(random.randint(3, 7))))
    pass_time(room, clock, AT_REST + 1, peers)
    found = len(room.chains)
    room.redeal()
    assert len(room.chains) == found
