"""A frame through one engine: what is refused before anything is written, and what comes out."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
import torch

from peer.codec import from_wire, to_wire
from peer.errors import BadFrame, BadInput, NotEnoughMemory, NumericFault
from peer.kv import KvPool
from peer.slice import Slice
from peer.step import Engine
from peer.worker import Task
from protos import peer_pb2, tensor_pb2
from tests.peer.chains import GREEDY, Chain, Session

CPU = torch.device("cpu")
PAGES, SLOTS = 6, 3


def load(directory: Path, start: int, end: int) -> Engine:
    slice = Slice.load(str(directory), start, end, dtype=torch.float32, device=CPU)
    return Engine(slice, KvPool(slice, PAGES, SLOTS))


@pytest.fixture(scope="module")
def whole(tiny: Callable[[str], Path]) -> Engine:
    return load(tiny("llama"), 0, 4)


@pytest.fixture(scope="module")
def tail(tiny: Callable[[str], Path]) -> Engine:
    return load(tiny("llama"), 2, 4)


@pytest.fixture(scope="module")
def hybrid(tiny: Callable[[str], Path]) -> Engine:
    return load(tiny("qwen3_5"), 0, 4)


def segment(**fields: object) -> peer_pb2.Segment:
    """A good segment of one session's first two tokens, but for `fields`."""
    good: dict[str, object] = {"session": 7, "start": 0, "ids": [8, 9], "pages": [peer_pb2.PageRun(first=1, count=2)]}
    return peer_pb2.Segment(**{**good, **fields})


def frame(*segments: peer_pb2.Segment, hidden: tensor_pb2.Tensor | None = None) -> peer_pb2.Frame:
    return peer_pb2.Frame(epoch=4, step=5, lane=peer_pb2.LANE_PREFILL, segments=segments, hidden=hidden)


def plan(count: int, **fields: object) -> peer_pb2.SamplingPlan:
    good: dict[str, object] = {"epoch": 4, "step": 5, "specs": [GREEDY] * count}
    return peer_pb2.SamplingPlan(**{**good, **fields})


def hidden(rows: int, width: int = 64) -> tensor_pb2.Tensor:
    return to_wire(torch.zeros(rows, width))


def slots(read: int, write: int) -> peer_pb2.StateSlots:
    return peer_pb2.StateSlots(read=read, write=write)


def run(first: int, count: int) -> peer_pb2.PageRun:
    return peer_pb2.PageRun(first=first, count=count)


def page_copy(source: int, target: int) -> peer_pb2.PageCopy:
    return peer_pb2.PageCopy(source=source, target=target)


def test_a_frame_that_rebuilds_ends_at_the_slice_it_names(tiny: Callable[[str], Path]) -> None:
    head = load(tiny("llama"), 0, 2)
    rebuilds = frame(segment())
    for until, kind in ((2, peer_pb2.FrameResult), (4, peer_pb2.Frame), (0, peer_pb2.Frame)):
        rebuilds.until = until
        out = head.run(rebuilds, None, {})
        assert isinstance(out, kind)
        assert len(out.stages) == 1
        assert (len(out.segments), getattr(out, "until", until)) == (int(kind is peer_pb2.Frame), until)


BAD = {
    "no segments": ("whole", frame(), plan(0), "no segments"),
    "no tokens": ("whole", frame(segment(ids=[])), plan(0), "no tokens"),
    "an id outside the vocabulary": ("whole", frame(segment(ids=[8, 256])), plan(0), "token id 256"),
    "more samples than tokens": ("whole", frame(segment(sampled=3)), plan(1), "3 samples from 2"),
    "no pages": ("whole", frame(segment(pages=[])), plan(0), "takes 1 pages"),
    "too few pages": ("whole", frame(segment(start=15, pages=[run(1, 1)])), plan(0), "takes 2 pages"),
    "a page outside the pool": ("whole", frame(segment(pages=[run(PAGES - 1, 2)])), plan(0), "beyond the pool's 6"),
    "a page far outside the pool": ("whole", frame(segment(pages=[run(2**32 - 1, 2**32 - 1)])), plan(0), "more pages"),
    "a start far outside the pages": ("whole", frame(segment(start=2**32 - 2)), plan(0), "names fewer"),
    "two segments in one place": ("whole", frame(segment(), segment(session=8)), plan(0), "same place"),
    "a copy from outside the pool": (
        "whole",
        frame(segment(copy=page_copy(PAGES, 1))),
        plan(0),
        "copies a page beyond",
    ),
    "a copy to outside the pool": ("whole", frame(segment(copy=page_copy(1, PAGES))), plan(0), "copies a page beyond"),
    "a page twice in one segment": (
        "whole",
        frame(segment(start=15, pages=[run(1, 1), run(1, 1)], ids=[8] * 17)),
        plan(0),
        "same place",
    ),
    "hidden states for the first slice": ("whole", frame(segment(), hidden=hidden(2)), plan(0), "layer 0"),
    "no hidden states for a later slice": ("tail", frame(segment()), plan(0), "starts at layer 2"),
    "hidden states of too few rows": ("tail", frame(segment(), hidden=hidden(1)), plan(0), "[1, 64]"),
    "hidden states of another width": ("tail", frame(segment(), hidden=hidden(2, 32)), plan(0), "[2, 32]"),
    "hidden states cut off": (
        "tail",
        frame(segment(), hidden=tensor_pb2.Tensor(dtype=tensor_pb2.DTYPE_F32, rows=2, width=64, data=b"\0" * 511)),
        plan(0),
        "512 bytes but 511 came",
    ),
    "hidden states of no dtype": (
        "tail",
        frame(segment(), hidden=tensor_pb2.Tensor(rows=2, width=64, data=b"\0" * 512)),
        plan(0),
        "dtype 0 is unknown",
    ),
    "no plan": ("whole", frame(segment(sampled=1)), None, "no sampling plan"),
    "the plan of another step": ("whole", frame(segment(sampled=1)), plan(1, step=6), "no sampling plan"),
    "the plan of another epoch": ("whole", frame(segment(sampled=1)), plan(1, epoch=3), "no sampling plan"),
    "too few specs": ("whole", frame(segment(sampled=1)), plan(0), "0 specs for 1"),
    "too many specs": ("whole", frame(segment(sampled=1)), plan(2), "2 specs for 1"),
    "fewer masks than positions": (
        "whole",
        frame(segment(sampled=2)),
        plan(1, specs=[peer_pb2.SamplingSpec(params=GREEDY.params, masks=[b"x"])]),
        "1 masks for 2",
    ),
    "a mask that has not come": (
        "whole",
        frame(segment(sampled=1)),
        plan(1, specs=[peer_pb2.SamplingSpec(params=GREEDY.params, masks=[b"x"])]),
        "has not come",
    ),
    "no state slots": ("hybrid", frame(segment()), plan(0), "no state slots"),
    "a state slot to read outside the pool": ("hybrid", frame(segment(state=slots(SLOTS + 1, 1))), plan(0), "beyond"),
    "a state slot to write outside the pool": ("hybrid", frame(segment(state=slots(1, SLOTS + 1))), plan(0), "beyond"),
    "a fresh state in the middle": ("hybrid", frame(segment(start=3, state=slots(0, 1))), plan(0), "a fresh state"),
    "one state slot for two": (
        "hybrid",
        frame(segment(state=slots(0, 2)), segment(session=8, pages=[run(4, 1)], state=slots(0, 2))),
        plan(0),
        "same state slot",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_frame_is_refused_and_writes_nothing(case: str, request: pytest.FixtureRequest) -> None:
    name, bad, its_plan, says = BAD[case]
    engine: Engine = request.getfixturevalue(name)
    pools = [*engine.pools[0].keys.values(), *engine.pools[0].values.values()]
    pools += [state for states in engine.pools[0].states.values() for state in states.values()]
    for pool in pools:
        pool.fill_(0.25)
    with pytest.raises(BadFrame) as refusal:
        engine.run(bad, its_plan, {})
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert all((pool == 0.25).all() for pool in pools)
    for states in engine.pools[0].states.values():
        for state in states.values():
            state.zero_()


def test_a_position_beyond_the_models_table_is_refused(tiny: Callable[[str], Path]) -> None:
    engine = load(tiny("gpt2"), 0, 2)
    engine.slice.position_limit = 20
    with pytest.raises(BadFrame, match="positions end at 20"):
        engine.run(frame(segment(ids=[5] * 21)), plan(0), {})


def test_a_frame_that_is_passed_on_keeps_what_it_says(tiny: Callable[[str], Path]) -> None:
    engine = load(tiny("llama"), 0, 2)
    sent = frame(segment(sampled=1), segment(session=8, pages=[run(4, 1)], ids=[3]))
    sent.stages.add(waited_us=11, computed_us=22)
    passed = engine.run(sent, None, {})
    assert isinstance(passed, peer_pb2.Frame)
    assert (passed.epoch, passed.step, passed.lane) == (4, 5, peer_pb2.LANE_PREFILL)
    assert list(passed.segments) == list(sent.segments)
    assert (passed.hidden.rows, passed.hidden.width, passed.hidden.dtype) == (3, 64, tensor_pb2.DTYPE_F32)
    assert [stage.waited_us for stage in passed.stages][:1] == [11]
    assert passed.stages[1].computed_us > 0
    assert len(sent.stages) == 1


def test_tokens_come_back_for_the_sampled_segments_in_order(whole: Engine) -> None:
    result = whole.run(
        frame(
            segment(ids=[8, 9, 10], sampled=2),
            segment(session=8, pages=[run(4, 1)], ids=[3]),
            segment(session=9, pages=[run(5, 1)], ids=[4], sampled=1),
        ),
        plan(2),
        {},
    )
    assert isinstance(result, peer_pb2.FrameResult)
    assert (result.epoch, result.step) == (4, 5)
    assert [len(tokens.tokens) for tokens in result.segments] == [2, 1]
    assert len(result.stages) == 1


def test_a_chunk_that_samples_nothing_gives_no_segments(whole: Engine) -> None:
    result = whole.run(frame(segment()), None, {})
    assert isinstance(result, peer_pb2.FrameResult)
    assert not result.segments


def test_a_mask_is_looked_up_by_its_hash(whole: Engine) -> None:
    bits = bytearray(32)
    bits[40 // 8] |= 1 << (40 % 8)
    name = sha256(bits).digest()
    spec = peer_pb2.SamplingSpec(params=GREEDY.params, masks=[b"", name])
    result = whole.run(frame(segment(sampled=2)), plan(1, specs=[spec]), {name: bytes(bits)})
    free, held = result.segments[0].tokens
    assert held.id == 40
    assert free.id != 40


def test_a_mask_that_allows_nothing_ends_the_frame_with_a_reason(whole: Engine) -> None:
    spec = peer_pb2.SamplingSpec(params=GREEDY.params, masks=[b"none"])
    with pytest.raises(BadFrame, match="cannot be drawn"):
        whole.run(frame(segment(sampled=1)), plan(1, specs=[spec]), {b"none": bytes(32)})


def test_a_draft_counts_as_answer_for_the_positions_after_it(whole: Engine) -> None:
    """The presence penalty of position 2 knows the drafted tokens before it, as plain decoding would."""
    params = peer_pb2.SamplingParams(top_p=1, repetition_penalty=1, presence_penalty=2)
    spec = peer_pb2.SamplingSpec(params=params)
    plain = [
        t.id for t in whole.run(frame(segment(ids=[8, 9], sampled=1)), plan(1, specs=[spec]), {}).segments[0].tokens
    ]
    drafted = whole.run(frame(segment(ids=[8, 9, plain[0]], sampled=2)), plan(1, specs=[spec]), {})
    counted = peer_pb2.SamplingSpec(params=params, counts=[peer_pb2.TokenCount(id=plain[0], answer=1)])
    alone = whole.run(frame(segment(start=2, ids=plain, sampled=1)), plan(1, specs=[counted]), {})
    assert [t.id for t in drafted.segments[0].tokens] == plain + [t.id for t in alone.segments[0].tokens]


def test_sessions_do_not_see_each_other(tiny: Callable[[str], Path]) -> None:
    """What a session gets is the same alone, beside others, and after others have written all around its pages."""
    for name in ("gemma2", "gpt_oss", "qwen3_5"):
        ids = list(range(20, 40))
        alone = Chain.load(tiny(name), (0, 2, 4))
        session = Session(0, [(2, 1), (6, 1)])
        alone.run([session.segment(ids[:17], sampled=1)])
        alone.run([session.segment(ids[17:18], sampled=1)])
        expected = alone.logits[-1]

        crowd = Chain.load(tiny(name), (0, 2, 4))
        session, other, third = Session(0, [(2, 1), (6, 1)]), Session(1, [(3, 3)]), Session(2, [(0, 2), (7, 1)])
        crowd.run([other.segment([9] * 30), session.segment(ids[:17]), third.segment([200] * 40)])
        crowd.run([third.segment([201], sampled=1), session.segment(ids[17:18], sampled=1), other.segment([10] * 5)])
        assert torch.allclose(crowd.logits[1], expected, atol=1e-5), name


def test_a_page_can_be_given_to_another_session(tiny: Callable[[str], Path]) -> None:
    chain = Chain.load(tiny("llama"), (0, 2, 4))
    chain.run([Session(0, [(1, 2)]).segment([5] * 30)])
    chain.run([Session(1, [(1, 2)]).segment([8, 9, 10], sampled=1)])
    reused = chain.logits.clone()
    chain.run([Session(2, [(5, 1)]).segment([8, 9, 10], sampled=1)])
    assert torch.equal(reused, chain.logits)


def test_a_session_goes_on_from_a_copy_of_the_start_of_anothers_page(tiny: Callable[[str], Path]) -> None:
    chain = Chain.load(tiny("llama"), [0, 1, 4])
    alone, first, second = Session(1, [(0, 2)]), Session(2, [(2, 2)]), Session(3, [(4, 2)])
    chain.run([alone.segment([*range(30, 50), 7, 8], sampled=1)])
    wanted = chain.logits
    chain.run([first.segment([*range(30, 50), 1, 2, 3])])
    branch = [run(2, 1), run(4, 1)]
    second.done = 20
    going_on = second.segment([7, 8], sampled=1)
    del going_on.pages[:]
    going_on.pages.extend(branch)
    going_on.copy.CopyFrom(page_copy(3, 4))
    chain.run([first.segment([4]), going_on])
    assert torch.allclose(chain.logits, wanted, atol=1e-5)


def test_a_rejected_draft_is_overwritten(tiny: Callable[[str], Path]) -> None:
    """The room steps back by naming an earlier start; what was written beyond it is not seen."""
    chain = Chain.load(tiny("llama"), (0, 2, 4))
    session = Session(0, [(1, 2)])
    chain.run([session.segment([8, 9, 10, 77, 78], sampled=3)])
    session.done = 3
    chain.run([session.segment([11], sampled=1)])
    after = chain.logits.clone()
    chain.run([Session(1, [(5, 1)]).segment([8, 9, 10, 11], sampled=1)])
    assert torch.allclose(after, chain.logits, atol=1e-5)


def test_state_slots_can_be_kept_and_branched_from(tiny: Callable[[str], Path]) -> None:
    """A snapshot written by one chunk serves two continuations; a slot of 0 to write keeps nothing."""
    chain = Chain.load(tiny("qwen3_5"), (0, 1, 4))
    session = Session(0, [(0, 1)])
    chain.run([session.segment([8, 9, 10], state=(0, 2))])
    chain.run([session.segment([11], sampled=1, state=(2, 3))])
    once = chain.logits.clone()
    session.done = 3
    chain.run([session.segment([11], sampled=1, state=(2, 0))])
    assert torch.equal(once, chain.logits)
    session.done = 3
    chain.run([session.segment([11, 12], sampled=2, state=(2, 1))])
    assert torch.allclose(once[0], chain.logits[0], atol=1e-5)
    session.done = 4
    chain.run([session.segment([12], sampled=1, state=(3, 3))])
    chunked = chain.logits.clone()
    chain.run([Session(1, [(4, 1)]).segment([8, 9, 10, 11, 12], sampled=1, state=(0, 4))])
    assert torch.allclose(chunked, chain.logits, atol=1e-5)


def test_a_reused_state_slot_starts_fresh(tiny: Callable[[str], Path]) -> None:
    chain = Chain.load(tiny("qwen3_next"), (0, 2, 4))
    results = []
    for _ in range(2):
        chain.run([Session(0, [(0, 1)]).segment([8], sampled=1, state=(0, 1))])
        results.append(chain.logits.clone())
    assert torch.equal(*results)


def test_numbers_that_are_none_name_the_layers(tiny: Callable[[str], Path]) -> None:
    for start, end, states in ((0, 2, None), (2, 4, hidden(2))):
        engine = load(tiny("qwen2"), start, end)
        broken = next(p for n, p in engine.slice._model.named_parameters() if f"layers.{start}." in n)
        broken.fill_(float("nan"))
        for sampled in (0, 1):
            with pytest.raises(NumericFault, match=f"layers {start} to {end - 1} gave NaN"):
                engine.run(frame(segment(sampled=sampled), hidden=states), plan(sampled), {})


def test_nan_that_came_is_blamed_on_who_sent_it(tail: Engine) -> None:
    broken = torch.full((2, 64), float("nan"))
    with pytest.raises(BadInput, match="came to the peer that starts at layer 2"):
        tail.run(frame(segment(), hidden=to_wire(broken)), plan(0), {})


class TestTogether:
    """Frames computed in one forward: to each what it would have got alone."""

    @staticmethod
    def tasks(**fields: object) -> list[Task]:
        """A decode frame, a chunk that samples nothing, and a frame of two segments; `fields` change the second."""
        frames = [
            frame(segment(sampled=1)),
            frame(segment(**{"session": 8, "ids": [3, 4, 5], "pages": [run(3, 1)], **fields})),
            frame(
                segment(session=9, ids=[20], pages=[run(4, 1)], sampled=1),
                segment(session=10, ids=[30, 31, 32], pages=[run(5, 1)], sampled=2),
            ),
        ]
        for step, one in enumerate(frames):
            one.step = step
        return [Task(one, plan(sum(1 for s in one.segments if s.sampled), step=one.step)) for one in frames]

    @pytest.mark.parametrize("name", ["llama", "qwen3_5"])
    def test_results_are_those_of_each_alone(self, name: str, tiny: Callable[[str], Path]) -> None:
        lanes = {peer_pb2.LANE_PREFILL: {}}
        tasks = self.tasks()
        for number, part in enumerate(part for task in tasks for part in task.frame.segments):
            part.state.CopyFrom(slots(0, number))
        apart, joined = load(tiny(name), 0, 4), load(tiny(name), 0, 4)
        expected = [apart.run(task.frame, task.plan, {}) for task in tasks]
        found = joined.run_together(tasks, lanes)
        for alone, together in zip(expected, found, strict=True):
            assert isinstance(together, peer_pb2.FrameResult)
            assert (together.step, list(together.segments)) == (alone.step, list(alone.segments))

    def test_hidden_states_are_passed_on_frame_by_frame(self, tiny: Callable[[str], Path]) -> None:
        apart, joined = load(tiny("llama"), 0, 2), load(tiny("llama"), 0, 2)
        tasks = self.tasks()
        found = joined.run_together(tasks, {})
        for task, together in zip(tasks, found, strict=True):
            alone = apart.run(task.frame, None, {})
            assert isinstance(together, peer_pb2.Frame)
            assert isinstance(alone, peer_pb2.Frame)
            assert list(together.segments) == list(task.frame.segments)
            states = (from_wire(each.hidden, torch.float32, CPU) for each in (together, alone))
            assert torch.allclose(*states, atol=1e-5)

    def test_a_bad_frame_costs_no_other(self, whole: Engine) -> None:
        found = whole.run_together(self.tasks(ids=[8, 256]), {peer_pb2.LANE_PREFILL: {}})
        assert [type(each) for each in found] == [peer_pb2.FrameResult, BadFrame, peer_pb2.FrameResult]

    def test_a_frame_whose_numbers_are_none_costs_no_other(self, tiny: Callable[[str], Path]) -> None:
        engine = load(tiny("llama"), 2, 4)
        tasks = self.tasks(sampled=1)
        for task, states in zip(
            tasks, (torch.zeros(2, 64), torch.full((3, 64), float("nan")), torch.ones(4, 64)), strict=True
        ):
            task.frame.hidden.CopyFrom(to_wire(states))
        found = engine.run_together(tasks, {peer_pb2.LANE_PREFILL: {}})
        assert [type(each) for each in found] == [peer_pb2.FrameResult, BadInput, peer_pb2.FrameResult]

    def test_a_frame_that_breaks_the_forward_costs_no_other(
        self, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = load(tiny("llama"), 0, 4)
        inner = engine.slice.logits

        def breaking(run: object, ids: torch.Tensor, *args: object) -> torch.Tensor:
            if 77 in ids:
                raise RuntimeError("out of something")
            return inner(run, ids, *args)

        monkeypatch.setattr(engine.slice, "logits", breaking)
        found = engine.run_together(self.tasks(ids=[77], sampled=1), {peer_pb2.LANE_PREFILL: {}})
        assert [type(each) for each in found] == [peer_pb2.FrameResult, RuntimeError, peer_pb2.FrameResult]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_costs_that_frame_only(
    error: Exception, tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = load(tiny("llama"), 0, 4)
    one, other = segment(sampled=1), segment(session=8, pages=[run(4, 1)], ids=[3], sampled=1)
    expected = engine.run(frame(other), plan(1), {})
    logits = engine.slice.logits

    def too_much(run: object, ids: torch.Tensor, *rest: object) -> torch.Tensor:
        if 9 in ids:
            raise error
        return logits(run, ids, *rest)

    monkeypatch.setattr(engine.slice, "logits", too_much)
    outs = engine.run_together([Task(frame(one), plan(1)), Task(frame(other), plan(1))], {peer_pb2.LANE_PREFILL: {}})
    assert isinstance(outs[0], NotEnoughMemory)
    assert "lend less" in str(outs[0])
    assert isinstance(outs[1], peer_pb2.FrameResult)
    assert outs[1].segments == expected.segments
