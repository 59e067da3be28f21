import pytest

from protos import peer_pb2, room_pb2
from room.errors import (
    CancelledByRoom,
    InternalError,
    Loading,
    NoPipeline,
    PipelineLost,
    QueueFull,
    RoomClosed,
    RoomFull,
    ShuttingDown,
    SlowReader,
    TooLittleMemory,
)
from room.faults import MOST_FAULTS
from room.members import BUSY_PATIENCE, LOST_AFTER, SUSPECT_AFTER
from room.room import FAULTY, MOST_PEERS, MOST_UNREAD, RESUMING, WAIT_FOR_CHAIN, Room
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


def failure(session) -> Exception | None:
    return session.outbox._error


# ---------------------------------------------------------------- becoming ready


def test_nobody_is_here() -> None:
    room = open_room()
    assert isinstance(room.not_ready, NoPipeline)
    assert "layers 0 to 3" in str(room.not_ready)
    with pytest.raises(NoPipeline):
        ask(room)


def test_without_devices_the_room_deals_as_soon_as_the_model_fits() -> None:
    room = open_room(shape_options={"params": 10**6})
    small = FakePeer(room, "small", memory=14 << 20)
    assert "more is needed" in str(room.not_ready)
    other = FakePeer(room, "other", memory=14 << 20)
    assert isinstance(room.not_ready, Loading)
    small.load()
    assert isinstance(room.not_ready, Loading)
    other.load()
    assert room.not_ready is None


def test_with_devices_the_room_waits_for_them() -> None:
    room = open_room(devices=2)
    FakePeer(room, "a")
    assert "1 of 2 peers" in str(room.not_ready)
    FakePeer(room, "b")
    assert isinstance(room.not_ready, Loading)


def test_the_hosts_own_peer_is_first() -> None:
    room = open_room(devices=2)
    FakePeer(room, "away", machine="elsewhere")
    FakePeer(room, "home")
    assert [stage.member.name for stage in room.chains[0].stages] == ["home", "away"]
    assert room.chains[0].limits.decode_depth == 2, "two processors: two frames"


def test_a_later_peer_is_a_spare() -> None:
    room, _ = ready_room(1)
    FakePeer(room, "late")
    assert [peer.state for peer in room.state().peers] == ["ready", "spare"]
    assert room.not_ready is None


def test_a_peer_that_cannot_load_is_named_and_left_out() -> None:
    room = open_room(devices=1)
    peer = FakePeer(room, "odd")
    peer.fail("Mamba does not slice")
    assert "odd refused: Mamba does not slice" in str(room.not_ready)
    other = FakePeer(room, "good")
    other.load()
    assert room.not_ready is None


def test_names_are_told_apart() -> None:
    room = open_room(devices=3)
    first = FakePeer(room, "x")
    twin = room_pb2.Hello(peer_id="other", name="x", dtype="float32", memory=1 << 30)
    assert room.join(twin).name == "x-2"
    assert first.member.name == "x"


# ---------------------------------------------------------------- answering


@pytest.mark.parametrize("peers", [1, 2, 3])
def test_an_answer_comes_back_token_by_token(peers: int) -> None:
    room, made = ready_room(peers)
    session = ask(room, prompt=600, max_new=7)
    run_all(made)
    events = told(session)
    assert kinds(events) == ["queued", "prefill", *["text"] * 7, "finish", "usage"]
    assert events[0].queued.ahead == 0
    assert text(events) == expected(session.job.prompt, 7)
    assert (events[-1].usage.prompt_tokens, events[-1].usage.completion_tokens) == (600, 7)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_answers_side_by_side_equal_answers_alone() -> None:
    room, made = ready_room(2)
    sessions = [ask(room, prompt=20 * at + 1, max_new=9, first=at) for at in range(8)]
    frames = run_all(made)
    for session in sessions:
        assert text(told(session)) == expected(session.job.prompt, 9)
    assert frames < 30, "they share frames"


def test_all_advance_together() -> None:
    room, made = ready_room(1)
    sessions = [ask(room, max_new=50) for _ in range(8)]
    for _ in range(20):
        made[0].work()
    lengths = [len(text(told(session))) for session in sessions]
    assert max(lengths) - min(lengths) <= 3, "the first was alone for a frame or two, and one that was sent ahead"
    assert min(lengths) > 10


def test_a_hybrid_models_sessions_go_on_from_the_states_they_wrote() -> None:
    room, (peer,) = ready_room(1, shape_options={"hybrid": True}, max_running=2)
    for first in (1, 100, 200):
        ask(room, max_new=2, first=first)
    assert len(room.line) == 1
    last: dict[int, int] = {}
    while frames := [message.frame for message in peer.take() if message.HasField("frame")]:
        for frame in frames:
            for segment in frame.segments:
                assert segment.state.read == last.get(segment.session, 0)
                last[segment.session] = segment.state.write
            room.arrived(peer.member, peer.compute(frame))
            if len(last) == 2:
                assert last[1] != last[2]


def test_penalties_get_the_counts_they_need() -> None:
    room, (peer,) = ready_room(1)
    session = ask(room, prompt=3)
    session.job.params.presence_penalty = 1.0
    peer.work()
    plan = next(message.plan for message in peer.take() if message.HasField("plan"))
    answer = session.tokens[3]
    assert {count.id: count.answer for count in plan.specs[0].counts} == {1: 0, 2: 0, 3: 0, answer: 1}


# ---------------------------------------------------------------- waiting


def test_everyone_who_waits_knows_their_place() -> None:
    room, made = ready_room(1, max_running=1)
    first, second, third = ask(room), ask(room), ask(room)
    assert [[event.queued.ahead for event in told(each)] for each in (first, second, third)] == [[0], [1], [2]]
    run_all(made)
    places = [event.queued.ahead for event in told(third) if event.HasField("queued")]
    assert places[-1] == 0
    assert failure(third) is None


def test_the_line_moves_up_when_someone_gives_up() -> None:
    room, _ = ready_room(1, max_running=1)
    _, second, third = ask(room), ask(room), ask(room)
    told(third)
    room.close(second)
    assert [event.queued.ahead for event in told(third)] == [1]


def test_what_does_not_fit_waits_until_pages_are_free() -> None:
    room, made = ready_room(1, ctx=160, max_running=4, memory=int((6 * 4000 + 4 * 16 * 4 * 160) / 0.9) + 64)
    assert room.chains[0].cache.pool.pages == 10
    big, small = ask(room, prompt=100, max_new=40), ask(room, prompt=20, max_new=20)
    assert small in room.line
    run_all(made)
    assert text(told(big)) == expected(big.job.prompt, 40)
    assert text(told(small)) == expected(small.job.prompt, 20)


def test_the_line_has_an_end() -> None:
    room, _ = ready_room(1, max_running=1, max_waiting=2)
    for _ in range(3):
        ask(room)
    with pytest.raises(QueueFull) as refused:
        ask(room)
    assert refused.value.retry_after == 5
    assert len(room.line) == 2


def test_a_client_may_limit_its_own_line() -> None:
    room, _ = ready_room(1, max_running=1)
    ask(room, client="a", max_waiting=1)
    ask(room, client="a", max_waiting=1)
    ask(room, client="b", max_waiting=1)
    with pytest.raises(QueueFull):
        ask(room, client="a", max_waiting=1)


def test_who_waits_is_told_for_how_long_by_the_pace_of_the_latest_answers() -> None:
    clock = Clock()
    room, (peer,) = ready_room(1, clock=clock, max_running=2, max_waiting=2)
    for number in range(2):
        ask(room, max_new=1, first=number + 1)
    clock.now += 8
    peer.beat()
    run_all([peer])
    sessions = [ask(room, first=number + 40) for number in range(4)]
    waits = [[(event.queued.ahead, event.queued.eta) for event in told(session)] for session in sessions]
    assert waits == [[(0, 0)], [(0, 0)], [(1, 4)], [(2, 8)]], "8 s each, two at a time"
    with pytest.raises(QueueFull) as refused:
        ask(room)
    assert refused.value.retry_after == 4


def test_one_client_with_fifty_waiting_does_not_hold_up_another_with_one() -> None:
    room, (peer,) = ready_room(1, max_running=1)
    many = [ask(room, client="many", first=number, max_new=3) for number in range(50)]
    one = ask(room, client="one", first=80, max_new=3)
    while "usage" not in kinds(told(one)):
        assert peer.work()
    finished = sum(session.ended for session in many)
    assert finished <= 2


def test_a_reader_that_leaves_everything_unread_is_dropped_and_nobody_else() -> None:
    room, (peer,) = ready_room(1, ctx=MOST_UNREAD + 100, shape_options={"ctx": MOST_UNREAD + 100})
    slow = ask(room, max_new=MOST_UNREAD + 50)
    slow.outbox._items.extend(told(slow) * MOST_UNREAD)
    quick = ask(room, first=60)
    run_all([peer])
    assert isinstance(failure(slow), SlowReader)
    assert text(told(quick)) == expected(quick.job.prompt, 5)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_a_room_takes_only_so_many_peers() -> None:
    room = open_room()
    for number in range(MOST_PEERS):
        FakePeer(room, f"p{number}")
    with pytest.raises(RoomFull):
        FakePeer(room, "one too many")
    FakePeer(room, "p0")


# ---------------------------------------------------------------- giving up


@pytest.mark.parametrize("progress", [0, 1, 2, 5])
def test_a_cancelled_request_leaves_nothing_behind(progress: int) -> None:
    room, made = ready_room(2, max_running=2)
    sessions = [ask(room, prompt=300, max_new=50) for _ in range(4)]
    for _ in range(progress):
        for peer in made:
            peer.work()
    for session in sessions:
        room.close(session)
    run_all(made)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages
    assert (len(room.line), room.running, room.chains[0].leaving) == (0, [], [])
    after = ask(room, prompt=30)
    run_all(made)
    assert text(told(after)) == expected(after.job.prompt, 5)


def test_pages_named_by_a_frame_on_its_way_are_not_given_out() -> None:
    room, (peer,) = ready_room(1)
    session = ask(room, prompt=600, max_new=9)
    late = [message.frame for message in peer.take() if message.HasField("frame")]
    held = set(session.pages)
    room.close(session)
    assert room.chains[0].cache.free_pages < room.chains[0].cache.pool.pages
    other = ask(room, prompt=600, max_new=9, first=300)
    assert not held & set(other.pages)
    for frame in late:  # written after the other session's first pages were reserved
        peer.room.arrived(peer.member, peer.compute(frame))
    run_all([peer])
    assert text(told(other)) == expected(other.job.prompt, 9)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def test_closing_twice_and_after_the_end_is_fine() -> None:
    room, made = ready_room(1)
    session = ask(room)
    run_all(made)
    room.close(session)
    room.close(session)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


# ---------------------------------------------------------------- peers leave


def test_an_answer_goes_on_when_a_peer_leaves_and_another_comes() -> None:
    room, (first, second) = ready_room(2)
    session = ask(room, prompt=40, max_new=30)
    for _ in range(8):
        first.work(), second.work()
    room.leave(second.member, "test")
    first.hear()
    assert isinstance(room.not_ready, Loading), "the one that is left can hold all layers"
    first.load()
    run_all([first])
    events = told(session)
    assert [event.notice.text for event in events if event.HasField("notice")] == [RESUMING]
    assert text(events) == expected(session.job.prompt, 30)


def test_without_a_whole_chain_the_answer_waits_and_then_fails() -> None:
    clock = Clock()
    room, (peer,) = ready_room(1, clock=clock)
    session = ask(room, max_new=50)
    peer.work()
    room.leave(peer.member, "test")
    assert isinstance(room.not_ready, NoPipeline)
    pass_time(room, clock, WAIT_FOR_CHAIN - 1)
    assert failure(session) is None
    pass_time(room, clock, 2)
    assert isinstance(failure(session), PipelineLost)
    assert len(room.line) == 0


def test_an_answer_survives_only_so_many_losses() -> None:
    room, (peer,) = ready_room(1)
    session = ask(room, max_new=500)
    for loss in range(4):
        peer.work()
        assert failure(session) is None, loss
        room.leave(peer.member, "test")
        peer = FakePeer(room, f"next{loss}")
        peer.load()
    assert isinstance(failure(session), PipelineLost)


def test_late_foreign_and_repeated_results_change_nothing() -> None:
    room, (peer,) = ready_room(1)
    session = ask(room)
    frame = next(message.frame for message in peer.take() if message.HasField("frame"))
    answer = peer.compute(frame)
    for epoch, step in ((frame.epoch + 1, frame.step), (frame.epoch, frame.step + 5)):
        strange = peer_pb2.FromPeer(
            result=peer_pb2.FrameResult(epoch=epoch, step=step, segments=answer.result.segments)
        )
        room.arrived(peer.member, strange)
    room.arrived(peer.member, answer)
    room.arrived(peer.member, answer)
    run_all([peer])
    assert text(told(session)) == expected(session.job.prompt, 5)


def test_a_silent_peer_is_suspect_and_then_lost() -> None:
    clock = Clock()
    room, peers = ready_room(2, clock=clock)
    session = ask(room, max_new=20)
    peers[0].work(), peers[1].work()
    pass_time(room, clock, SUSPECT_AFTER + 1, peers[:1])
    assert [peer.state for peer in room.state().peers] == ["ready", "suspect"]
    assert room.not_ready is None, "the line stays open"
    pass_time(room, clock, LOST_AFTER, peers[:1])
    assert [peer.name for peer in room.state().peers] == ["p0"]
    peers[0].load()
    run_all(peers[:1])
    assert text(told(session)) == expected(session.job.prompt, 20)


def test_nothing_new_goes_through_a_suspect_peer_and_all_goes_on_when_it_speaks() -> None:
    clock = Clock()
    room, peers = ready_room(2, clock=clock)
    first = ask(room, max_new=9)
    held = [message for peer in peers for message in peer.take()]
    pass_time(room, clock, SUSPECT_AFTER + 1, peers[:1])
    second = ask(room, first=70)
    assert not any(peer.take() for peer in peers)
    assert len(room.line) == 1
    for message in held:
        if message.HasField("frame"):
            room.arrived(peers[0].member, peers[0].compute(message.frame))
    peers[1].beat()
    run_all(peers)
    for session, count in ((first, 9), (second, 5)):
        events = told(session)
        assert "notice" not in kinds(events)
        assert text(events) == expected(session.job.prompt, count)


def test_a_peer_that_was_lost_comes_back_as_a_spare_and_its_late_frames_change_nothing() -> None:
    clock = Clock()
    room, (first, second) = ready_room(2, clock=clock)
    session = ask(room, max_new=20)
    first.work()
    frames = [message.frame for message in second.take() if message.HasField("frame")]
    pass_time(room, clock, LOST_AFTER + 1, [first])
    first.load()
    for frame in frames:
        room.arrived(second.member, second.compute(frame))
    back = FakePeer(room, "p1")
    run_all([first])
    assert text(told(session)) == expected(session.job.prompt, 20)
    assert [(peer.name, peer.state) for peer in room.state().peers] == [("p0", "ready"), ("p1", "spare")]
    assert back.hear()[0].welcome.name == "p1"


def test_a_loading_peer_may_be_silent_for_longer() -> None:
    clock = Clock()
    room = open_room(clock=clock)
    FakePeer(room, "slow")
    pass_time(room, clock, LOST_AFTER * BUSY_PATIENCE - 1)
    assert len(room.roster) == 1
    pass_time(room, clock, 2)
    assert len(room.roster) == 0


def test_a_room_that_stood_still_blames_nobody() -> None:
    clock = Clock()
    room, _ = ready_room(1, clock=clock)
    clock.now += 30
    room.tick()
    assert [peer.state for peer in room.state().peers] == ["ready"]


def test_new_requests_are_refused_with_the_layers_that_are_missing() -> None:
    room, (first, second) = ready_room(2, memory=int((3 * 4000 + 16 * 2 * 4 * 4096) / 0.9), max_running=1)
    running, waiting = ask(room, max_new=20), ask(room, first=40)
    first.work(), second.work()
    room.leave(second.member, "test")
    with pytest.raises(NoPipeline, match=r"^layers 2 to 3 have no holder: the peers lend too little memory"):
        ask(room)
    notices = [event.notice.text for event in told(waiting) if event.HasField("notice")]
    assert notices == ["waiting for peers: layers 2 to 3 have no holder"]
    third = FakePeer(room, "p2", memory=first.hello.memory)
    first.load(), third.load()
    run_all([first, third])
    assert failure(running) is failure(waiting) is None
    assert text(told(waiting)) == expected(waiting.job.prompt, 5)


def test_a_peer_seen_twice_is_one_peer() -> None:
    room, (peer,) = ready_room(1)
    again = FakePeer(room, "p0")
    assert len(room.roster) == 1
    assert peer.member.outbox._closed
    again.load()
    assert room.not_ready is None
    room.leave(peer.member, "the old stream ends at last")
    assert room.not_ready is None, "the new membership is not touched"


def test_C14_P108_a_long_prompt_tells_how_far_it_is_read() -> None:
    room, peers = ready_room(2)
    session = ask(room, list(range(1200)))
    heard = []
    while failure(session) is None and session.answer.finished is None:
        peers[0].work(), peers[1].work()
        heard += told(session)
    reading = [event.prefill for event in heard if event.HasField("prefill")]
    assert [(each.done, each.total) for each in reading] == [(512, 1200), (1024, 1200)]
    assert kinds(heard)[: len(reading) + 2] == ["queued", *["prefill"] * len(reading), "text"]
    again = ask(room, list(range(1200)))
    run_all(peers)
    assert "prefill" not in kinds(told(again)), "the rest is read at once"


def test_an_unread_word_of_how_far_it_is_is_replaced() -> None:
    room, peers = ready_room(1)
    session = ask(room, list(range(1200)))
    run_all(peers)
    assert [event.prefill.done for event in told(session) if event.HasField("prefill")] == [1024]


# ---------------------------------------------------------------- faults


def test_a_frame_that_a_peer_cannot_compute_costs_its_own_requests_only() -> None:
    room, (peer,) = ready_room(1)
    bad = ask(room)
    frame = next(message.frame for message in peer.take() if message.HasField("frame"))
    good = ask(room, first=50)
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="NaN in layers 0 to 3")
    room.arrived(peer.member, peer_pb2.FromPeer(fault=fault))
    assert isinstance(failure(bad), InternalError)
    assert "p0" in str(failure(bad))
    run_all([peer])
    assert text(told(good)) == expected(good.job.prompt, 5)
    assert room.chains[0].cache.free_pages == room.chains[0].cache.pool.pages


def out_of_memory(room: Room, peer: FakePeer) -> None:
    frame = first_frame(peer)
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="no memory", out_of_memory=True)
    room.arrived(peer.member, peer_pb2.FromPeer(fault=fault))


def test_a_peer_whose_memory_runs_out_is_dealt_fewer_layers_and_stays() -> None:
    room, peers = ready_room(2, layers=16)
    first, second = peers
    session = ask(room)
    out_of_memory(room, first)
    load_all(peers)
    assert [(peer.assignment.start, peer.assignment.end) for peer in peers] == [(0, 7), (7, 16)]
    run_all(peers)
    events = told(session)
    assert "a peer ran out of memory, resuming" in [event.notice.text for event in events]
    assert text(events) == expected(session.job.prompt, 5)
    assert first.member.place.faults == 0

    session = ask(room, first=50)
    out_of_memory(room, first)
    load_all(peers)
    assert [(peer.assignment.start, peer.assignment.end) for peer in peers] == [(0, 6), (6, 16)]
    out_of_memory(room, first)  # over the same request: it is no matter of layers
    assert first.member.place.faults == 1
    assert load_all(peers) == [second]
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 5)


def test_a_peer_whose_layers_nobody_else_can_hold_keeps_them_when_its_memory_runs_out() -> None:
    room, (peer,) = ready_room(1)
    session = ask(room)
    out_of_memory(room, peer)
    assert "no memory" in str(failure(session))
    assert peer.member.place.withheld == 0
    good = ask(room, first=50)
    run_all([peer])
    assert text(told(good)) == expected(good.job.prompt, 5)


def first_frame(peer: FakePeer) -> peer_pb2.Frame:
    return next(message.frame for message in peer.take() if message.HasField("frame"))


def fail(room: Room, peer: FakePeer, frame: peer_pb2.Frame, *, upstream: bool = False) -> None:
    fault = peer_pb2.FrameFault(epoch=frame.epoch, step=frame.step, reason="NaN", upstream=upstream)
    room.arrived(peer.member, peer_pb2.FromPeer(fault=fault))


def load_all(peers: list[FakePeer]) -> list[FakePeer]:
    """Those that are dealt something, once they have loaded it."""
    for peer in peers:
        peer.hear()
        if peer.assignment is not None:
            peer.load()
    return [peer for peer in peers if peer.assignment is not None]


def test_a_frame_that_a_peer_cannot_compute_is_computed_elsewhere() -> None:
    room, peers = ready_room(2)
    session = ask(room, max_new=9)
    fail(room, peers[0], first_frame(peers[0]))
    assert states(room)["p0"] == "failed"
    run_all(load_all(peers))
    events = told(session)
    assert [event.notice.text for event in events if event.HasField("notice")] == [FAULTY]
    assert text(events) == expected(session.job.prompt, 9)


def test_what_came_wrong_is_blamed_on_who_sent_it() -> None:
    room, peers = ready_room(2)
    ask(room)
    fail(room, peers[1], first_frame(peers[0]), upstream=True)
    assert states(room) == {"p0": "failed", "p1": "loading"}


def test_a_peer_set_aside_serves_again_when_nobody_else_can() -> None:
    room, peers = ready_room(2)
    session = ask(room, max_new=9)
    fail(room, peers[0], first_frame(peers[0]))
    load_all(peers)
    room.leave(peers[1].member, "test")
    assert states(room) == {"p0": "loading"}
    run_all(load_all(peers[:1]))
    assert text(told(session)) == expected(session.job.prompt, 9)


def test_a_request_that_fails_everywhere_is_to_blame_itself_and_harms_no_other() -> None:
    room, peers = ready_room(2)
    poison, good = ask(room, max_new=9), ask(room, max_new=9, first=50)
    serving = peers
    for _ in range(200):
        for peer in serving:
            for frame in peer.frames():
                if peer.assignment is None or frame.epoch != peer.assignment.epoch:
                    continue
                if any(segment.session == poison.number for segment in frame.segments):
                    fail(room, peer, frame)
                    serving = load_all(peers)
                else:
                    room.arrived(peer.member, peer.compute(frame))
    assert isinstance(failure(poison), InternalError)
    assert text(told(good)) == expected(good.job.prompt, 9)
    assert "failed" not in states(room).values()
    assert [peer.member.place.faults for peer in peers] == [0, 0]


def test_nothing_is_kept_of_a_frame_that_failed_after_its_request_was_given_up() -> None:
    room, peers = ready_room(2)
    session = ask(room, prompt=60, max_new=5)
    frame = first_frame(peers[0])
    room.close(session)
    fail(room, peers[0], frame)
    again = ask(room, prompt=60, max_new=5)
    run_all(load_all(peers))
    assert again.cached == 0
    assert text(told(again)) == expected(again.job.prompt, 5)


def test_a_peer_that_fails_again_and_again_is_put_out() -> None:
    room, peers = ready_room(2)
    other = FakePeer(room, "p2")
    peers[0].member.place.faults = MOST_FAULTS - 1
    session = ask(room, max_new=9)
    fail(room, peers[0], first_frame(peers[0]))
    assert states(room)["p0"] == "removed"
    run_all(load_all([peers[1], other]))
    assert text(told(session)) == expected(session.job.prompt, 9)


def test_results_that_come_twice_change_nothing_and_are_counted() -> None:
    room, peers = ready_room(2)
    session = ask(room, max_new=9)
    peers[0].work()
    answer = peers[1].compute(first_frame(peers[1]))
    for _ in range(3):
        room.arrived(peers[1].member, answer)
    assert peers[1].member.place.faults == 2
    run_all(peers)
    assert text(told(session)) == expected(session.job.prompt, 9)


@pytest.mark.parametrize("tokens", [[], [5, 6], [10**6]])
def test_a_result_that_does_not_fit_its_frame_is_refused(tokens: list[int]) -> None:
    room, (peer,) = ready_room(1)
    session = ask(room)
    frame = next(message.frame for message in peer.take() if message.HasField("frame"))
    result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step)
    result.segments.add(tokens=[peer_pb2.SampledToken(id=token) for token in tokens])
    room.arrived(peer.member, peer_pb2.FromPeer(result=result))
    assert isinstance(failure(session), InternalError)


def test_only_the_last_peer_may_report_results() -> None:
    room, (first, _) = ready_room(2)
    session = ask(room)
    frame = next(message.frame for message in first.take() if message.HasField("frame"))
    result = peer_pb2.FrameResult(epoch=frame.epoch, step=frame.step)
    result.segments.add().tokens.add(id=1)
    room.arrived(first.member, peer_pb2.FromPeer(result=result))
    assert kinds(told(session)) == ["queued"]


def test_shutting_down_ends_everything_with_a_reason() -> None:
    room, (peer,) = ready_room(1, max_running=1)
    running, waiting = ask(room), ask(room)
    room.shut_down()
    assert isinstance(failure(running), RoomClosed)
    assert isinstance(failure(waiting), RoomClosed)
    assert peer.member.outbox._closed
    with pytest.raises(ShuttingDown):
        ask(room)


def test_the_rooms_repr_is_a_dashboard() -> None:
    room, _ = ready_room(2, max_running=1)
    ask(room), ask(room)
    FakePeer(room, "spare")
    assert repr(room) == "<Room ABC234 [peers: 1 joining, 2 ready | requests: 1 running, 1 waiting]>"


def test_the_state_tells_clients_what_they_need() -> None:
    room, made = ready_room(2, model_name="my-model", name="The Attic")
    ask(room)
    run_all(made)
    state = room.state()
    assert (state.model, state.name, state.ready, state.ctx, state.served) == (
        "pooled/my-model",
        "The Attic",
        True,
        4096,
        1,
    )
    assert [(peer.start, peer.end) for peer in state.peers] == [(0, 2), (2, 4)]
    assert state.tokens_per_second > 0
    list(drain(made[0].member.outbox))


def test_cancelled_by_room_is_a_code_of_its_own() -> None:
    assert CancelledByRoom().code == "cancelled_by_room"


def test_a_peer_that_cannot_hold_one_layer_is_not_taken_in() -> None:
    room = open_room(shape_options={"params": 10**6})
    with pytest.raises(TooLittleMemory, match=r"one layer of this room's model takes 4\.0 MB and 4\.0 MB is lent"):
        FakePeer(room, "tiny", memory=4 * 10**6)
    assert len(room.roster) == 0


def test_the_pool_is_what_the_peers_really_have_room_for() -> None:
    room = open_room(devices=2)
    first, second = (FakePeer(room, name) for name in ("a", "b"))
    first.load(pages=40)
    second.load(pages=30)
    assert room.state().pages == 30
    assert room.effective_ctx == 30 * 16
    session = ask(room, prompt=100, max_new=100)
    run_all([first, second])
    assert text(told(session)) == expected(range(1, 101), 100)


def test_a_slice_that_places_fewer_positions_caps_the_context() -> None:
    room = open_room(devices=2)
    first, second = (FakePeer(room, name) for name in ("a", "b"))
    first.load(limit=128)
    second.load()
    assert room.effective_ctx == room.state().ctx == 128
