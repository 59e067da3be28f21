"""A room that starts again takes back its door, its peers' places and its deal."""

import os
import stat
from pathlib import Path

import pytest

from room.config import RoomConfig
from room.deal import Slice
from room.dealer import RETURN_WITHIN
from room.errors import Loading, NoPipeline, RemovedPeer, StartError
from room.room import Room
from room.store import Kept, KeptPlace, Store
from tests.room.fakes import MACHINE, Clock, FakePeer, model, pass_time, ready_room

KEPT = Kept("ABC234", "/model", (KeptPlace("1", "attic", 1, False, True),), ((Slice("1", 0, 4),),))


def test_what_is_saved_is_loaded_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    assert store.load() is None
    for kept in (Kept("ABC234", "/model"), KEPT):
        store.save(kept)
        assert store.load() == kept
    (file,) = (tmp_path / "state").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_directory_is_one_rooms(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    for _ in range(2):  # what the former one left does not count
        with (
            Store.opened(folder),
            pytest.raises(StartError, match=rf"a room that is running \(process {os.getpid()}\)"),
            Store.opened(folder),
        ):
            pass


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"code": 1}'])
def test_a_file_that_is_no_state_stops_the_start(tmp_path: Path, text: str) -> None:
    (tmp_path / "room.json").write_text(text)
    with pytest.raises(StartError, match="move it away"):
        Store(tmp_path).load()


def test_a_directory_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match="cannot write the room's state"):
        Store(tmp_path / "file").save(KEPT)


def again(before: Room, clock: Clock) -> Room:
    return Room(RoomConfig(model="/model"), model(4), "ABC234", MACHINE, kept=before.kept, clock=clock)


def spans(room: Room) -> dict[str, tuple[int, int]]:
    return {stage.member.name: (stage.slice.start, stage.slice.end) for stage in room.chains[0].stages}


def test_the_same_peers_get_the_same_slices_in_whatever_order_they_come_back() -> None:
    clock = Clock()
    before, _ = ready_room(3, clock=clock)
    FakePeer(before, "spare")
    room = again(before, clock)
    for name in ("p2", "spare", "p1"):
        FakePeer(room, name)
        assert isinstance(room.not_ready, Loading)
    assert "2 of its 3 peers are back" in str(room.not_ready)
    FakePeer(room, "p0")
    assert spans(room) == spans(before)
    assert [peer.name for peer in room.peers()] == ["p0", "p1", "p2", "spare"]


def test_who_does_not_come_back_is_waited_for_only_so_long() -> None:
    clock = Clock()
    before, _ = ready_room(2, clock=clock)
    room = again(before, clock)
    pass_time(room, clock, 1)
    peer = FakePeer(room, "p1")
    pass_time(room, clock, RETURN_WITHIN, [peer])
    assert spans(room) == {"p1": (0, 4)}


def test_with_nobody_back_it_says_what_is_missing() -> None:
    clock = Clock()
    before, _ = ready_room(2, clock=clock)
    room = again(before, clock)
    pass_time(room, clock, RETURN_WITHIN + 1)
    assert isinstance(room.not_ready, NoPipeline)


def test_pauses_and_removals_are_kept() -> None:
    clock = Clock()
    before, _ = ready_room(3, clock=clock)
    before.pause("p1")
    before.remove("p2")
    room = again(before, clock)
    assert FakePeer(room, "p1").member.state == "paused"
    with pytest.raises(RemovedPeer):
        FakePeer(room, "p2")


def test_a_deal_of_another_model_is_not_taken_over() -> None:
    kept = Kept("ABC234", "/elsewhere", KEPT.places, KEPT.deals)
    room = Room(RoomConfig(model="/model"), model(4), "ABC234", MACHINE, kept=kept, clock=Clock())
    assert isinstance(room.not_ready, NoPipeline), "its peers are not waited for"
