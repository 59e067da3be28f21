"""Membership as a state machine: what silence means, and whose place is whose."""

from hypothesis import given
from hypothesis import strategies as st

from protos import room_pb2
from room.members import BUSY_PATIENCE, LONG_STEP, LOST_AFTER, MOST_KNOWN, SUSPECT_AFTER, Member, Place, Roster, State


def hello(peer: str, name: str = "", machine: str = "there") -> room_pb2.Hello:
    return room_pb2.Hello(peer_id=peer, name=name or peer, dtype="float32", memory=1 << 30, machine=machine)


def member(task: State = State.READY) -> Member:
    return Member(hello("a"), Place("a", 1), heard_at=0.0, task=task)


def test_silence_makes_suspect_and_then_lost() -> None:
    peer = member()
    assert peer.look(SUSPECT_AFTER) is State.READY
    assert peer.look(SUSPECT_AFTER + 0.1) is State.SUSPECT
    assert not peer.dealable
    assert peer.look(LOST_AFTER) is State.SUSPECT
    assert peer.look(LOST_AFTER + 0.1) is State.LOST


def test_a_word_in_time_restores_what_it_was() -> None:
    peer = member()
    assert not peer.heard(1.0)
    peer.look(5.0)
    assert peer.heard(5.0)
    assert peer.state is State.READY
    assert peer.dealable


def test_a_word_after_the_loss_changes_nothing() -> None:
    peer = member()
    peer.look(LOST_AFTER + 1)
    assert not peer.heard(LOST_AFTER + 2)
    assert peer.look(LOST_AFTER + 2) is State.LOST


def test_who_loads_or_told_of_a_long_step_may_be_silent_for_longer() -> None:
    loading, computing = member(State.LOADING), member()
    computing.step_seconds = LONG_STEP + 0.1
    for peer, state in ((loading, State.LOADING), (computing, State.READY)):
        assert peer.look(LOST_AFTER + 1) is state
        assert peer.look(LOST_AFTER * BUSY_PATIENCE - 1) is State.SUSPECT
        assert peer.look(LOST_AFTER * BUSY_PATIENCE + 1) is State.LOST


@given(st.lists(st.tuples(st.sampled_from(["heard", "look"]), st.floats(0, 6))))
def test_a_peer_is_what_its_latest_silence_says_and_lost_for_good(steps: list[tuple[str, float]]) -> None:
    peer, now, heard_at, lost = member(), 0.0, 0.0, False
    for step, passed in steps:
        now += passed
        if step == "heard":
            peer.heard(now)
            heard_at = now
        else:
            lost = lost or now - heard_at > LOST_AFTER
            suspect = now - heard_at > SUSPECT_AFTER
            assert peer.look(now) is (State.LOST if lost else State.SUSPECT if suspect else State.READY)


def test_a_peer_that_comes_back_takes_back_its_name_and_rank() -> None:
    roster = Roster("here")
    first, second = roster.add(hello("1", "x"), 0.0), roster.add(hello("2", "x"), 0.0)
    roster.remove(first)
    third = roster.add(hello("3", "x"), 0.0)
    assert (first.name, second.name, third.name) == ("x", "x-2", "x-3"), "a name is kept for who may come back"
    again = roster.add(hello("1", "other"), 1.0)
    assert again.place is first.place
    assert [each.name for each in roster.candidates()] == ["x", "x-2", "x-3"]


def test_places_are_not_kept_for_ever() -> None:
    roster = Roster("here")
    for number in range(MOST_KNOWN + 1):
        roster.remove(roster.add(hello(str(number)), 0.0))
    assert roster.add(hello("0"), 0.0).place.rank > roster.add(hello("1"), 0.0).place.rank


def test_who_is_suspect_or_failed_is_dealt_nothing() -> None:
    roster = Roster("here")
    peers = [roster.add(hello(name), 0.0) for name in "abc"]
    peers[0].task = State.FAILED
    peers[1].look(3.0)
    assert roster.candidates() == [peers[2]]
