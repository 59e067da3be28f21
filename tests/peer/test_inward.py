from hypothesis import given
from hypothesis import strategies as st

from peer.inward import MOST_EARLY, Inward, may_come
from protos import peer_pb2
from protos.lanes import DECODE, LANES, PREFILL


def frame(hop: int, lane: int = DECODE, epoch: int = 1) -> peer_pb2.Frame:
    return peer_pb2.Frame(epoch=epoch, lane=lane, hop=hop)


@given(st.permutations(range(1, 9)), st.lists(st.integers(1, 8), max_size=8), st.randoms(use_true_random=False))
def test_each_frame_once_and_in_order_whatever_the_way(order: list[int], again: list[int], random) -> None:
    came = [*order, *again]
    random.shuffle(came)
    inward = Inward()
    inward.begin(1)
    for lane in LANES:
        taken = [each.hop for hop in came for each in inward.take(frame(hop, lane))]
        assert taken == list(range(1, 9))
        assert inward.came(lane) == 8


def test_lanes_do_not_wait_for_each_other() -> None:
    inward = Inward()
    inward.begin(1)
    assert inward.take(frame(2, PREFILL)) == []
    assert inward.take(frame(1, DECODE)) == [frame(1, DECODE)]


def test_frames_of_the_room_itself_do_not_wait() -> None:
    inward = Inward()
    assert inward.take(frame(0, epoch=7)) == [frame(0, epoch=7)]


def test_frames_of_another_deal_are_dropped() -> None:
    inward = Inward()
    inward.begin(2)
    assert inward.take(frame(1, epoch=1)) == []
    assert inward.take(frame(1, epoch=2)) == [frame(1, epoch=2)]
    inward.begin(3)
    assert inward.take(frame(1, epoch=3)) == [frame(1, epoch=3)]


def test_who_sends_only_what_is_too_early_fills_no_memory() -> None:
    inward = Inward()
    inward.begin(1)
    for hop in range(2, 2 * MOST_EARLY):
        inward.take(frame(hop))
    assert len(inward.take(frame(1))) == MOST_EARLY


def test_the_last_peer_sends_the_first_tokens_and_nothing_else() -> None:
    computed = peer_pb2.Frame(epoch=1, lane=DECODE, segments=[peer_pb2.Segment(ids=[5])])
    tokens = peer_pb2.Frame(epoch=1, lane=DECODE, drawn=peer_pb2.Drawn(ids=[5]))
    probe, empty = peer_pb2.Frame(epoch=1, lane=DECODE, probe=peer_pb2.Probe(number=1)), peer_pb2.Frame(epoch=1, step=5)
    assert [may_come(each, first=True) for each in (computed, tokens, probe, empty)] == [False, True, True, False]
    assert [may_come(each, first=False) for each in (computed, tokens, probe)] == [True, False, True]
