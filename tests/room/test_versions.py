"""Peers with other libraries than the room's."""

from array import array

from protos import room_pb2
from room.config import RoomConfig
from room.errors import Loading, NoPipeline
from room.room import Room
from tests.room.fakes import MACHINE, Clock, FakePeer, model, states

VALUES = [1.0, -20.0, 3.0]


def open_room() -> Room:
    return Room(RoomConfig(model="/model", chains=1), model(4), "ABC234", MACHINE, library="5.24.1", clock=Clock())


def asked(peer: FakePeer) -> bool:
    return any(message.HasField("test") for message in peer.hear())


def answer(peer: FakePeer, values: list[float]) -> None:
    tested = room_pb2.Tested(values=array("f", values).tobytes())
    peer.room.heard(peer.member, room_pb2.FromMember(tested=tested))


def test_another_patch_release_is_the_same_version() -> None:
    room = open_room()
    peer = FakePeer(room, "a", transformers="5.24.9")
    assert isinstance(room.not_ready, Loading)
    assert not asked(peer)


def test_another_version_is_taken_once_it_computes_as_one_of_ours_does() -> None:
    room = open_room()
    stranger = FakePeer(room, "new", transformers="5.25.0")
    assert isinstance(room.not_ready, NoPipeline)
    assert asked(stranger)
    answer(stranger, [value * 1.0001 for value in VALUES])
    assert states(room) == {"new": "joining"}, "there is nobody to compare it with"
    ours = FakePeer(room, "ours", transformers="5.24.0")
    assert asked(ours)
    answer(ours, VALUES)
    room.leave(ours.member, "test")
    assert states(room) == {"new": "loading"}
    later = FakePeer(room, "later", transformers="5.26.0")
    assert asked(later)
    assert not asked(stranger)
    answer(later, VALUES)
    assert states(room)["later"] == "spare"


def test_another_version_that_computes_otherwise_is_refused_and_told_which_to_install() -> None:
    for values in ([1.0, -20.0, 3.1], [1.0, -20.0], [1.0, float("nan"), 3.0], []):
        room = open_room()
        ours, stranger = FakePeer(room, "ours"), FakePeer(room, "new", transformers="6.0.0")
        answer(ours, VALUES)
        answer(stranger, values)
        (told,) = [peer for peer in room.peers() if peer.name == "new"]
        assert told.state == "failed", values
        assert "pip install 'transformers==5.24.*'" in told.why
        again = FakePeer(room, "new", transformers="5.24.1")
        assert states(room)["new"] == "spare"
        assert not asked(again)
