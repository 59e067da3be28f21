"""What a room deals by what it has measured."""

from tests.room.fakes import Clock, FakePeer, ask, expected, open_room, pass_time, run_all, text, told


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
