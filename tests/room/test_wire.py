"""Which form hidden states travel in."""

import pytest

from protos import peer_pb2, room_pb2
from room.config import RoomConfig
from room.errors import StartError
from room.room import Room
from room.wire import AUTO, BF16, INT8, fitting
from tests.room.fakes import FakePeer, open_room, ready_room


def test_the_widest_form_that_crosses_in_time_is_taken() -> None:
    chunk = 512 * 576 / 0.1  # rows of one byte an entry, in the time a chunk may take
    assert fitting(int(chunk * 4.1), 576, 4) == AUTO
    assert fitting(int(chunk * 3.9), 576, 4) == fitting(int(chunk * 2.1), 576, 4) == BF16
    assert fitting(int(chunk * 1.9), 576, 4) == fitting(1, 576, 4) == INT8
    assert fitting(int(chunk * 2.1), 576, 2) == AUTO, "what computes in two bytes gains nothing from bfloat16"
    assert fitting(int(chunk * 1.9), 576, 2) == INT8
    assert fitting(0, 16, 2) == AUTO, "rows this narrow would grow"


def test_an_unknown_form_stops_the_start() -> None:
    with pytest.raises(StartError, match="auto, f32, bf16, int8; got fp8"):
        RoomConfig(model="/model", wire="fp8")


def messages(peer: FakePeer, kind: str) -> list[room_pb2.ToMember]:
    return [message for message in peer.hear() if message.WhichOneof("payload") == kind]


def link(room: Room, bytes_per_second: int, *, epoch: int | None = None, direct: bool = False) -> room_pb2.FromMember:
    state = room_pb2.LinkState(
        epoch=room.chains[0].epoch if epoch is None else epoch, direct=direct, bytes_per_second=bytes_per_second
    )
    return room_pb2.FromMember(link=state)


def chosen(peer: FakePeer) -> list[tuple[int, int]]:
    return [(message.wire.epoch, message.wire.wire) for message in messages(peer, "wire")]


def test_a_slow_link_makes_its_sender_send_less_until_there_is_a_quick_one() -> None:
    room, (first, _) = ready_room(2, shape_options={"hidden_size": 576})
    epoch = room.chains[0].epoch
    room.heard(first.member, link(room, 250_000))
    assert chosen(first) == [(epoch, INT8)]
    room.heard(first.member, link(room, 10**9))
    assert chosen(first) == [(epoch, AUTO)]


def test_prompts_are_read_in_smaller_chunks_over_a_slow_link_whatever_the_form() -> None:
    sizes = {}
    for wire in ("auto", "f32", "bf16", "int8"):
        room, (first, _) = ready_room(2, shape_options={"hidden_size": 576}, wire=wire)
        assert room.chains[0].limits.prefill_tokens == 512
        first.measured(250_000)
        sizes[wire] = room.chains[0].limits.prefill_tokens
        first.measured(10**9)
        assert room.chains[0].limits.prefill_tokens == 512
    assert sizes == {"auto": 204, "f32": 54, "bf16": 108, "int8": 204}


def test_what_is_measured_of_another_deal_or_behind_the_last_peer_changes_nothing() -> None:
    room, (first, second) = ready_room(2, shape_options={"hidden_size": 576})
    room.heard(first.member, link(room, 1, epoch=room.chains[0].epoch + 1))
    room.heard(second.member, link(room, 1))
    assert chosen(first) == chosen(second) == []


def test_what_the_host_chose_stays() -> None:
    room, (first, _) = ready_room(2, wire="int8")
    assert first.assignment is not None
    assert first.assignment.wire == INT8
    room.heard(first.member, link(room, 1))
    assert chosen(first) == []


def test_peers_of_one_machine_that_meet_directly_send_all_they_have() -> None:
    room = open_room(devices=2)
    peers = [FakePeer(room, name) for name in ("a", "b")]
    for peer in peers:
        peer.hear()
    room.heard(peers[0].member, link(room, 1, direct=True))
    assert [wire for _, wire in chosen(peers[0])] == [AUTO]
    assert [(peer.direct, peer.round_trip) for peer in room.state().peers] == [(True, 0), (False, 0)]


def test_a_probe_is_relayed_like_a_frame_and_its_answer_back() -> None:
    room, (first, second) = ready_room(2)
    epoch, lane = room.chains[0].epoch, peer_pb2.LANE_PREFILL
    probe = peer_pb2.Frame(epoch=epoch, lane=lane, probe=peer_pb2.Probe(number=1))
    room.arrived(first.member, peer_pb2.FromPeer(relay=probe))
    assert [message.frame for message in second.take()] == [probe]
    reply = peer_pb2.LinkReply(epoch=epoch, lane=lane, probe=1)
    for sender in (second, first):  # before the first there is the last
        room.arrived(sender.member, peer_pb2.FromPeer(reply=reply))
    assert [message.reply for message in first.take()] == [reply]
    assert [message.reply for message in second.take()] == [reply]
