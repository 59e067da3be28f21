"""Peers whose work other holders of their layers compute too."""

import pytest

from protos import room_pb2
from room.audit import CLOSE, TOKENS
from room.config import RoomConfig
from room.errors import StartError
from room.faults import MOST_FAULTS
from room.room import Room
from tests.room.fakes import FakePeer, ask, expected, ready_room, run_all, states, text, told


def audited_room(**options: object) -> tuple[Room, list[FakePeer], FakePeer]:
    """Three peers in a chain, and a spare that holds the slice of the heaviest."""
    room, peers = ready_room(3, layers=6, **{"audit": 1.0, **options})
    peers[1].member.weight_bytes = 9
    spare = FakePeer(room, "spare")
    spare.prepared()
    return room, peers, spare


def answer(room: Room, auditor: FakePeer, difference: float, *, computed: bool = True) -> None:
    auditor.hear()
    number = auditor.audits[-1].number
    audited = room_pb2.Audited(number=number, computed=computed, difference=difference)
    room.heard(auditor.member, room_pb2.FromMember(audited=audited))


def tallies(room: Room) -> dict[str, tuple[int, int]]:
    return {peer.name: (peer.agreed, peer.differed) for peer in room.peers() if peer.agreed or peer.differed}


def test_a_prompts_beginning_goes_to_another_holder_with_what_the_stage_got_and_gave() -> None:
    room, peers, spare = audited_room()
    session = ask(room, prompt=100, max_new=9)
    run_all(peers)
    spare.hear()
    (audit,) = spare.audits
    assert (audit.start, audit.end) == room.chains[0].spans[1]
    assert list(audit.ids) == session.tokens[:TOKENS]
    assert (audit.came.data, audit.gave.data) == (b"p0", b"p1")
    assert text(told(session)) == expected(session.job.prompt, 9)
    answer(room, spare, CLOSE / 2)
    assert tallies(room) == {"p1": (1, 0)}
    assert states(room)["p1"] == "ready"


@pytest.mark.parametrize("at", [0, 2])
def test_the_first_and_the_last_stage_are_audited_too(at: int) -> None:
    room, peers = ready_room(3, layers=6, audit=1.0)
    peers[at].member.weight_bytes = 9
    spare = FakePeer(room, "spare")
    spare.prepared()
    ask(room, prompt=100)
    run_all(peers)
    spare.hear()
    (audit,) = spare.audits
    assert audit.HasField("came") is (at > 0)
    assert audit.gave.data == peers[at].hello.peer_id.encode()


def test_a_peer_of_another_chain_audits_as_well() -> None:
    room, peers = ready_room(2, audit=1.0, chains=None)
    peers += [FakePeer(room, name) for name in ("p2", "p3")]
    for peer in peers[2:]:
        peer.load()
    ask(room, prompt=100)
    run_all(peers)
    for peer in peers:
        peer.hear()
    assert sum(len(peer.audits) for peer in peers) == 1


def test_who_differs_again_and_again_is_put_out_and_answers_go_on() -> None:
    room, peers, spare = audited_room()
    for number in range(MOST_FAULTS):
        ask(room, prompt=100, first=200 * number)
        run_all(peers)
        answer(room, spare, 0.5)
    assert states(room)["p1"] == "removed"
    chain = [peers[0], spare, peers[2]]
    for peer in chain:
        peer.load()
    session = ask(room, prompt=100, first=50)
    run_all(chain)
    assert text(told(session)) == expected(session.job.prompt, 5)


def test_what_nobody_asked_or_could_not_be_computed_counts_for_nothing() -> None:
    room, peers, spare = audited_room()
    ask(room, prompt=100)
    run_all(peers)
    spare.hear()
    foreign = room_pb2.Audited(number=spare.audits[0].number, computed=True, difference=9)
    room.heard(peers[0].member, room_pb2.FromMember(audited=foreign))
    room.heard(spare.member, room_pb2.FromMember(audited=room_pb2.Audited(number=77, computed=True)))
    answer(room, spare, 0.0, computed=False)
    answer(room, spare, 9.0)
    assert tallies(room) == {}


def test_short_prompts_and_rooms_without_audits_or_other_holders_are_left_alone() -> None:
    for prompt, options in ((TOKENS, {}), (100, {"audit": 0.0})):
        room, peers, spare = audited_room(**options)
        ask(room, prompt=prompt)
        run_all(peers)
        spare.hear()
        assert not spare.audits
    room, peers = ready_room(3, layers=6, audit=1.0)
    session = ask(room, prompt=100)
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 5)


def test_a_rate_is_a_share() -> None:
    with pytest.raises(StartError, match="--audit"):
        RoomConfig(model="/model", audit=1.5)
