import time

from peer.joiner import MOST_WAITING, Follower, Joiner
from protos import peer_pb2


def frame(step: int, sampled: int = 1) -> peer_pb2.Frame:
    return peer_pb2.Frame(epoch=1, step=step, segments=[peer_pb2.Segment(ids=[5], sampled=sampled)])


def plan(step: int) -> peer_pb2.SamplingPlan:
    return peer_pb2.SamplingPlan(epoch=1, step=step)


def test_a_frame_that_samples_nothing_waits_for_nothing() -> None:
    task = Joiner().frame(frame(1, sampled=0), 1.0)
    assert task is not None
    assert task.plan is None


def test_frame_and_plan_meet_in_either_order() -> None:
    joiner = Joiner()
    assert joiner.frame(frame(1), 1.0) is None
    assert joiner.plan(plan(2)) is None
    first, second = joiner.plan(plan(1)), joiner.frame(frame(2), 2.0)
    assert first is not None
    assert second is not None
    assert (first.frame.step, first.plan.step) == (1, 1)
    assert (second.frame.step, second.plan.step) == (2, 2)
    assert (first.arrived_at, second.arrived_at) == (1.0, 2.0)


def test_halves_whose_other_half_never_comes_are_forgotten() -> None:
    joiner = Joiner()
    for step in range(MOST_WAITING + 1):
        joiner.plan(plan(step))
    assert joiner.frame(frame(0), 1.0) is None
    assert joiner.frame(frame(MOST_WAITING), 1.0) is not None


# ---------------------------------------------------------------- frames sent ahead of their tokens


def ahead(step: int, *drawn: int) -> peer_pb2.Frame:
    """Follows the step before it. Of each segment: which of the tokens drawn there it gets; 0: it has one."""
    segments = [
        peer_pb2.Segment(session=at, ids=[] if number else [7], drawn=number, sampled=1)
        for at, number in enumerate(drawn)
    ]
    return peer_pb2.Frame(epoch=1, step=step, lane=peer_pb2.LANE_DECODE, segments=segments, follows=step - 1)


def drawn(step: int, *ids: int, epoch: int = 1) -> peer_pb2.Frame:
    return peer_pb2.Frame(epoch=epoch, step=step, lane=peer_pb2.LANE_DECODE, drawn=peer_pb2.Drawn(ids=ids))


def test_a_frame_that_lacks_nothing_waits_for_nothing() -> None:
    whole = Follower().take(frame(1))
    assert whole is not None
    assert whole.frame == frame(1)


def test_a_frame_and_its_tokens_meet_in_either_order() -> None:
    follower = Follower()
    assert follower.take(ahead(2, 2, 0, 1)) is None
    assert follower.take(drawn(1, 50, 60, epoch=2)) is None, "of another deal"
    assert follower.take(drawn(3, 70)) is None
    first, second = follower.take(drawn(1, 50, 60)), follower.take(ahead(4, 1))
    assert first is not None
    assert second is not None
    assert [list(segment.ids) for segment in first.frame.segments] == [[60], [7], [50]]
    assert [list(segment.ids) for segment in second.frame.segments] == [[70]]
    assert not any(segment.drawn for whole in (first, second) for segment in whole.frame.segments)


def test_it_waits_since_its_tokens_came() -> None:
    follower = Follower()
    follower.take(drawn(1, 5))
    between = time.perf_counter()
    late = follower.take(ahead(2, 1))
    assert late is not None
    assert late.since < between


def test_a_segment_whose_token_was_not_drawn_stays_without() -> None:
    follower = Follower()
    follower.take(drawn(1, 5))
    whole = follower.take(ahead(2, 1, 2))
    assert whole is not None
    assert [list(segment.ids) for segment in whole.frame.segments] == [[5], []]


def test_frames_whose_tokens_never_come_are_forgotten() -> None:
    follower = Follower()
    for step in range(2, MOST_WAITING + 3):
        follower.take(ahead(step, 1))
    assert follower.take(drawn(1, 5)) is None
    assert follower.take(drawn(2, 5)) is not None
