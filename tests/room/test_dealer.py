"""What a room deals by what it has measured."""

import pytest

from tests.room.fakes import Clock, FakePeer, ask, expected, open_room, pass_time, ready_room, run_all, text, told


def split(peers: list[FakePeer]) -> list[tuple[int, int]]:
    found = []
    for peer in peers:
        peer.hear()
        assert peer.assignment is not None
        found.append((peer.assignment.start, peer.assignment.end))
    return found


def test_speed_gives_the_quicker_peer_as_much_as_it_can_hold() -> None:
    room = open_room(layers=8, devices=2, deal="speed")
    peers = [FakePeer(room, name) for name in ("slow", "quick")]
    assert split(peers) == [(0, 4), (4, 8)], "nothing is measured yet: as by memory"
    peers[0].time, peers[1].time = lambda rows: 0.4, lambda rows: 0.04
    for peer in peers:
        peer.load()
    ask(room, max_new=5)
    run_all(peers)
    assert [round(peer.member.place.layer_seconds or 0, 3) for peer in peers] == [0.1, 0.01]
    room.redeal()
    assert sorted(split(peers)) in ([(0, 1), (1, 8)], [(0, 7), (7, 8)])
    assert {end - start for start, end in split(peers[1:])} == {7}
    for peer in peers:
        peer.load()
    session = ask(room, first=50)
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 5)


def test_memory_does_not_ask_for_speed() -> None:
    room = open_room(layers=8, devices=2)
    peers = [FakePeer(room, name) for name in ("slow", "quick")]
    peers[0].member.place.layer_times.append(1.0)
    peers[1].member.place.layer_times.append(0.1)
    room.redeal()
    assert split(peers) == [(0, 4), (4, 8)]


def test_a_heartbeat_tells_how_far_a_peer_is() -> None:
    clock = Clock()
    room = open_room(clock=clock)
    peer = FakePeer(room, "p")
    pass_time(room, clock, 0.5, [peer])
    (sent,) = [each.heartbeat.sent for each in peer.hear() if each.HasField("heartbeat")]
    clock.now += 0.3
    peer.beat(echo=sent, since=0.2)
    assert abs(peer.member.place.hop_seconds - 0.05) < 1e-9


@pytest.mark.parametrize(
    ("seconds", "quickest"),
    [
        pytest.param(0.1, 7 * 0.01 + 0.1, id="slow: as little of it as possible"),
        pytest.param(0.001, 3 * 0.01 + 5 * 0.001, id="quick: as much as it can hold, between the others"),
    ],
)
def test_a_spare_and_the_host_are_told_what_it_would_change(seconds: float, quickest: float) -> None:
    # A peer holds five of the eight layers, or four and the embedding or head.
    room, peers = ready_room(2, layers=8, memory=int((5 * 4000 + 5 * 64 * 64) / 0.9) + 2, ctx=64)
    for peer in peers:
        peer.member.place.took(0.01)
    spare = FakePeer(room, "spare", memory=peers[0].hello.memory)
    spare.prepared(seconds)
    (outlook,) = [each.outlook for each in spare.hear() if each.HasField("outlook")]
    assert outlook.without_it == pytest.approx(1 / (8 * 0.01))
    assert outlook.with_it == pytest.approx(1 / quickest)
    shown = room.peers()[-1]
    assert (shown.state, shown.with_it, shown.without_it) == ("spare", outlook.with_it, outlook.without_it)


def test_figures_of_all_spares_are_of_the_moment_they_are_shown() -> None:
    room, peers = ready_room(2, layers=8)
    for peer in peers:
        peer.member.place.took(0.1)
    early = FakePeer(room, "early", memory=peers[0].hello.memory)
    early.prepared(0.1)
    early.hear()
    for peer in peers:
        peer.member.place.layer_times.clear()
        peer.member.place.took(0.01)
    late = FakePeer(room, "late", memory=peers[0].hello.memory)
    late.prepared(0.02)
    shown = {each.name: each for each in room.peers() if each.state == "spare"}
    assert shown["early"].without_it == shown["late"].without_it == pytest.approx(1 / (8 * 0.01))
    before = shown["early"].with_it
    room.tick()
    (told_anew,) = [each.outlook for each in early.hear() if each.HasField("outlook")]
    assert told_anew.without_it == shown["late"].without_it
    now = next(each for each in room.peers() if each.name == "early")
    assert now.with_it == told_anew.with_it > before, "another deal is the quickest by now"
    room.tick()
    assert not any(each.HasField("outlook") for each in early.hear()), "nothing has changed since"


def memory_for(layers: int) -> int:
    """Bytes for so many of the model's layers, or one less and the embedding or the head."""
    return int(layers * (4000 + 64 * 64) / 0.9) + 2


def test_memory_picks_the_fewest_peers_and_of_these_those_that_are_least_full() -> None:
    room = open_room(layers=8, ctx=64)
    lent = {"a": 3, "b": 4, "c": 3, "d": 8, "e": 7}
    for name, layers in lent.items():
        FakePeer(room, name, memory=memory_for(layers))
    room.redeal()
    assert [stage.member.name for stage in room.chains[0].stages] == ["d", "e"]


def test_of_peers_that_lend_alike_those_that_came_first_are_dealt_to() -> None:
    room = open_room(layers=8, ctx=64)
    for name in "abcd":
        FakePeer(room, name, memory=memory_for(6))
    room.redeal()
    assert [stage.member.name for stage in room.chains[0].stages] == ["a", "b"]
