"""Peers that leave in good order, and what the host may do to them."""

import pytest

from protos import room_pb2
from room.errors import InvalidValue, NoPipeline, RemovedPeer, UnknownPeer
from room.handover import HANDOVER
from room.room import MOVING, RESUMING
from tests.room.fakes import (
    Clock,
    FakePeer,
    ask,
    drain,
    expected,
    kinds,
    open_room,
    pass_time,
    ready_room,
    run_all,
    states,
    text,
    told,
)


def notices(events) -> list[str]:
    return [event.notice.text for event in events if event.HasField("notice")]


def work(peers: list[FakePeer], rounds: int) -> None:
    for _ in range(rounds):
        for peer in peers:
            peer.work()


@pytest.mark.parametrize("ask_out", ["leave", "pause"])
def test_a_spare_takes_over_while_the_chain_runs_on(ask_out: str) -> None:
    room, peers = ready_room(2)
    spare = FakePeer(room, "spare")
    session = ask(room, prompt=40, max_new=30)
    work(peers, 8)
    peers[1].ask_to_leave() if ask_out == "leave" else room.pause("p1")
    assert states(room)["p1"] == "draining"
    before = len(session.tokens)
    work(peers, 8)
    assert len(session.tokens) > before, "the old chain answers on"
    other = ask(room, first=60)
    assert other in room.running
    spare.prepared()
    assert (spare.prepare.start, spare.prepare.end) == (2, 4)
    peers[0].load()
    spare.load()
    run_all([peers[0], spare])
    events = told(session)
    assert notices(events) == [MOVING]
    assert text(events) == expected(session.job.prompt, 30)
    assert session.recoveries == 0
    assert peers[1].member.outbox._closed == (ask_out == "leave")
    assert states(room).get("p1") == (None if ask_out == "leave" else "paused")


def test_without_a_spare_running_answers_end_and_others_wait_for_the_new_deal() -> None:
    room, peers = ready_room(2)
    running = ask(room, max_new=9)
    peers[1].ask_to_leave()
    waiting = ask(room, first=60)
    assert waiting in room.line
    run_all(peers)
    assert kinds(told(running))[-1] == "usage"
    assert states(room) == {"p0": "loading"}
    peers[0].load()
    run_all(peers[:1])
    assert text(told(waiting)) == expected(waiting.job.prompt, 5)


def test_handing_over_has_an_end() -> None:
    clock = Clock()
    room, peers = ready_room(2, clock=clock)
    session = ask(room, max_new=30)
    work(peers, 5)
    peers[1].ask_to_leave()
    pass_time(room, clock, HANDOVER - 1, peers)
    assert states(room)["p1"] == "draining"
    pass_time(room, clock, 2, peers)
    assert states(room) == {"p0": "loading"}
    peers[0].load()
    run_all(peers[:1])
    assert text(told(session)) == expected(session.job.prompt, 30)


def test_who_holds_nothing_goes_at_once() -> None:
    room, _ = ready_room(1)
    spare = FakePeer(room, "spare")
    spare.ask_to_leave()
    assert spare.member.outbox._closed
    assert states(room) == {"p0": "ready"}


def test_a_spare_that_cannot_load_the_slice_is_not_waited_for() -> None:
    room, peers = ready_room(2)
    spare = FakePeer(room, "spare")
    session = ask(room, max_new=20)
    peers[1].ask_to_leave()
    spare.hear()
    failed = room_pb2.SliceFailed(reason="no space left")
    room.heard(spare.member, room_pb2.FromMember(failed=failed))
    assert states(room)["spare"] == "failed"
    run_all(peers)
    assert kinds(told(session))[-1] == "usage"
    assert "p1" not in states(room)


def test_a_peer_that_dies_while_it_hands_over_is_replaced_as_any_other() -> None:
    room, peers = ready_room(2)
    spare = FakePeer(room, "spare")
    session = ask(room, max_new=20)
    work(peers, 5)
    peers[1].ask_to_leave()
    room.leave(peers[1].member, "killed")
    for peer in (peers[0], spare):
        peer.hear()
        if peer.assignment:
            peer.load()
    run_all([peer for peer in (peers[0], spare) if peer.assignment])
    assert text(told(session)) == expected(session.job.prompt, 20)


def test_a_resting_peer_is_dealt_nothing_until_its_volunteer_says_so() -> None:
    room, peers = ready_room(2)
    spare = FakePeer(room, "spare")
    rest = room_pb2.FromMember(resting=room_pb2.Resting(resting=True))
    room.heard(spare.member, rest)
    assert [peer.state for peer in room.peers() if peer.name == "spare"] == ["paused"]
    assert not spare.member.dealable
    room.heard(spare.member, room_pb2.FromMember(resting=room_pb2.Resting(resting=False)))
    assert [peer.state for peer in room.peers() if peer.name == "spare"] == ["spare"]
    room.heard(peers[0].member, rest)
    assert [peer.state for peer in room.peers() if peer.name == peers[0].member.name] == ["draining"]


def test_a_paused_peer_is_dealt_nothing_until_it_is_resumed() -> None:
    room = open_room()
    FakePeer(room, "a")
    room.pause("a")
    assert isinstance(room.not_ready, NoPipeline)
    assert states(room) == {"a": "paused"}
    again = FakePeer(room, "a")
    assert states(room) == {"a": "paused"}, "the pause outlives the membership"
    room.resume("a")
    again.load()
    assert room.not_ready is None


def test_a_removed_peer_is_told_and_stays_out_until_it_is_resumed() -> None:
    room, (peer, other) = ready_room(2)
    session = ask(room, max_new=9)
    room.remove("p1")
    said = list(drain(other.member.outbox))
    assert "pooled peers resume p1" in next(each.refused.reason for each in said if each.HasField("refused"))
    assert states(room) == {"p0": "loading", "p1": "removed"}
    with pytest.raises(RemovedPeer):
        FakePeer(room, "p1")
    room.resume("p1")
    FakePeer(room, "p1")
    peer.load()
    run_all([peer])
    assert text(told(session)) == expected(session.job.prompt, 9)
    assert states(room) == {"p0": "ready", "p1": "spare"}


def test_the_hosts_own_peer_is_not_removed_by_hand_or_for_its_faults() -> None:
    room, _ = ready_room(1)
    hello = room_pb2.Hello(peer_id="own", name="own", dtype="float32", memory=1 << 30)
    member = room.join(hello, own=True)
    with pytest.raises(InvalidValue, match="pause it instead: pooled peers pause own"):
        room.remove("own")
    for _ in range(99):
        room._at_fault(member, "it made something up")
    assert member in room.roster
    assert member.place.aside
    member.place.removed = True  # as a room did that knew no better
    assert not room.join(hello, own=True).place.removed


def test_why_nobody_serves() -> None:
    room, (peer, other) = ready_room(2)
    room.pause("p0")
    room.leave(other.member, "test")
    assert "p0 is paused" in str(room.not_ready)
    room.leave(peer.member, "test")
    assert "no peer is here any more" in str(room.not_ready)
    assert "no peer has joined" in str(open_room().not_ready)


def test_a_redeal_moves_running_answers() -> None:
    room, peers = ready_room(2)
    session = ask(room, max_new=20)
    work(peers, 5)
    room.redeal()
    for peer in peers:
        peer.load()
    run_all(peers)
    events = told(session)
    assert notices(events) == [MOVING]
    assert text(events) == expected(session.job.prompt, 20)


def test_a_name_that_nobody_has() -> None:
    room = open_room()
    for act in (room.pause, room.resume, room.remove):
        with pytest.raises(UnknownPeer, match="pooled peers lists"):
            act("nobody")


def slices_of(peers: list[FakePeer]) -> list[tuple[int, int]]:
    found = []
    for peer in peers:
        peer.hear()
        assert peer.assignment is not None
        found.append((peer.assignment.start, peer.assignment.end))
    return found


def test_a_spare_that_holds_the_lost_slice_takes_over_and_others_keep_theirs() -> None:
    room, peers = ready_room(3, layers=6)
    spares = [FakePeer(room, name) for name in ("empty", "middle")]
    for spare, at in zip(spares, (0, 1), strict=True):
        spare.prepared()
        assert (spare.prepare.start, spare.prepare.end) == slices_of(peers)[at], "none twice before all are covered"
    session = ask(room, prompt=40, max_new=30)
    work(peers, 10)
    before = slices_of(peers)
    room.leave(peers[1].member, "killed")
    chain = [peers[0], spares[1], peers[2]]
    assert slices_of(chain) == before
    for peer in chain:
        peer.load()
    assert [peer.reserve_end for peer in room.peers()] == [0, 0, before[0][1], 0]
    run_all(chain)
    events = told(session)
    assert notices(events) == [RESUMING]
    assert text(events) == expected(session.job.prompt, 30)


def test_who_joins_a_broken_room_gets_the_lost_slice() -> None:
    room, peers = ready_room(3, layers=6, memory=int((3 * 4000 + 3 * 64 * 64) / 0.9) + 2, ctx=64)
    before = slices_of(peers)
    room.leave(peers[0].member, "killed")
    assert isinstance(room.not_ready, NoPipeline)
    joiner = FakePeer(room, "joiner", memory=peers[0].hello.memory)
    assert slices_of([joiner, *peers[1:]]) == before


def test_the_heaviest_slice_is_held_in_reserve() -> None:
    room, peers = ready_room(3, layers=6)
    peers[2].member.weight_bytes = 5
    spare = FakePeer(room, "spare")
    spare.hear()
    assert (spare.prepare.start, spare.prepare.end) == slices_of(peers)[2]
