"""Which form hidden states travel in."""

import pytest

from protos import peer_pb2, room_pb2
from room.config import RoomConfig
from room.errors import StartError
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


def test_a_slow_link_makes_its_sender_send_less() -> None:
    room, (first, second) = ready_room(2, shape_options={"hidden_size": 576})
    epoch = room.chains[0].epoch
    assert [message.measure.epoch for message in messages(first, "measure")] == [epoch]
    assert not messages(second, "measure"), "nobody comes after the last"
    slow = room_pb2.LinkRate(epoch=epoch, bytes_per_second=250_000)
    room.heard(second.member, room_pb2.FromMember(link=slow))
    assert [(message.wire.epoch, message.wire.wire) for message in messages(first, "wire")] == [(epoch, INT8)]


def test_what_is_measured_of_another_deal_or_before_the_first_peer_changes_nothing() -> None:
    room, (first, second) = ready_room(2, shape_options={"hidden_size": 576})
    for member, epoch in ((second.member, room.chains[0].epoch + 1), (first.member, room.chains[0].epoch)):
        room.heard(member, room_pb2.FromMember(link=room_pb2.LinkRate(epoch=epoch, bytes_per_second=1)))
    assert not messages(first, "wire")
    assert not messages(second, "wire")


def test_what_the_host_chose_is_not_measured() -> None:
    room, (first, second) = ready_room(2, wire="int8")
    assert not messages(first, "measure")
    assert first.assignment is not None
    assert first.assignment.wire == INT8
    room.heard(
        second.member, room_pb2.FromMember(link=room_pb2.LinkRate(epoch=room.chains[0].epoch, bytes_per_second=1))
    )
    assert not messages(first, "wire")


def test_peers_of_one_machine_that_meet_directly_are_not_measured() -> None:
    room = open_room(devices=2)
    peers = [FakePeer(room, name) for name in ("a", "b")]
    for peer in peers:
        peer.hear()
        ready = room_pb2.SliceReady(epoch=room.chains[0].epoch, direct=True, pages=99)
        room.heard(peer.member, room_pb2.FromMember(ready=ready))
    assert not messages(peers[0], "measure")


def test_a_probe_is_relayed_like_a_frame() -> None:
    room, (first, second) = ready_room(2)
    probe = peer_pb2.Frame(epoch=room.chains[0].epoch, lane=peer_pb2.LANE_PREFILL, probe=peer_pb2.Probe(at=1, last=2))
    room.arrived(first.member, peer_pb2.FromPeer(relay=probe))
    assert [message.frame for message in second.take()] == [probe]
