from peer.joiner import MOST_WAITING, Joiner
from protos import peer_pb2


def frame(step: int, sampled: int = 1) -> peer_pb2.Frame:
    return peer_pb2.Frame(epoch=1, step=step, segments=[peer_pb2.Segment(ids=[5], sampled=sampled)])


def plan(step: int) -> peer_pb2.SamplingPlan:
    return peer_pb2.SamplingPlan(epoch=1, step=step)


def test_a_frame_that_samples_nothing_waits_for_nothing() -> None:
    task = Joiner().frame(frame(1, sampled=0))
    assert task is not None
    assert task.plan is None


def test_frame_and_plan_meet_in_either_order() -> None:
    joiner = Joiner()
    assert joiner.frame(frame(1)) is None
    assert joiner.plan(plan(2)) is None
    first, second = joiner.plan(plan(1)), joiner.frame(frame(2))
    assert first is not None
    assert second is not None
    assert (first.frame.step, first.plan.step) == (1, 1)
    assert (second.frame.step, second.plan.step) == (2, 2)


def test_halves_whose_other_half_never_comes_are_forgotten() -> None:
    joiner = Joiner()
    for step in range(MOST_WAITING + 1):
        joiner.plan(plan(step))
    assert joiner.frame(frame(0)) is None
    assert joiner.frame(frame(MOST_WAITING)) is not None
