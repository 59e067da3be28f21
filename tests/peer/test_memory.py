from types import SimpleNamespace

import pytest
import torch

from peer import memory
from peer.errors import DeviceUnavailable, InvalidOption, NotEnoughMemory
from peer.memory import (
    GB,
    Lendable,
    Share,
    check_size,
    fitting_pages,
    lendable,
    offered,
    pick_device,
    pick_devices,
    pick_dtype,
    shared_share,
    tried,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda:0"), torch.device("mps")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine with one discrete CUDA GPU, as far as torch tells."""
    facts = SimpleNamespace(count=1, bf16=True, integrated=False, free=24 * GB)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: facts.count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: facts.count)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: facts.bf16)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(is_integrated=facts.integrated))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (facts.free, 25 * GB))
    return facts


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without any GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(memory, "_has_mps", lambda: False)


def test_the_best_device_is_taken(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pick_device(None) == CUDA
    gpu.count = 0
    monkeypatch.setattr(memory, "_has_mps", lambda: True)
    assert pick_device(None) == MPS
    monkeypatch.setattr(memory, "_has_mps", lambda: False)
    assert pick_device(None) == CPU


def test_a_device_can_be_chosen(gpu: SimpleNamespace) -> None:
    assert pick_device("cpu") == CPU
    assert pick_device("cuda") == pick_device("cuda:0") == CUDA


class TestSeveral:
    """A machine with two GPUs, the second of which has half as much to lend as the first."""

    @pytest.fixture(autouse=True)
    def two(self, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu.count = 2
        free = {0: 21.5 * GB, 1: 11.5 * GB}
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free[device.index]), 25 * GB))
        monkeypatch.setattr(memory, "tried", lambda wanted, device: wanted)

    SECOND = torch.device("cuda:1")

    def test_cuda_means_all_of_them_and_else_one_is_taken(self) -> None:
        assert pick_devices("cuda") == (CUDA, self.SECOND)
        assert pick_devices("cuda:1") == (self.SECOND,)
        assert pick_devices(None) == (CUDA,)

    def test_the_sum_of_what_each_lends_is_lent(self) -> None:
        offer = offered("cuda")
        assert offer.shares == (Share(CUDA, 20 * GB), Share(self.SECOND, 10 * GB))
        assert offer.bytes == 30 * GB
        assert offer.text.startswith("30.0 GB of cuda:0 to cuda:1 (21.5 GB are free on cuda:0, less 1.5 GB; 11.5 GB")
        assert offered("cuda:1").shares == (Share(self.SECOND, 10 * GB),)

    def test_what_is_asked_for_is_divided_as_they_have_it(self) -> None:
        offer = offered("cuda", memory=15 * GB)
        assert offer.shares == (Share(CUDA, 10 * GB), Share(self.SECOND, 5 * GB))
        assert offer.reason == "as --memory asks"
        with pytest.raises(InvalidOption, match=r"51\.0 GB is more than the 50\.0 GB of cuda:0 to cuda:1 here"):
            offered("cuda", memory=51 * GB)

    def test_full_ones_are_asked_for_the_same(self, gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (GB, 25 * GB))
        assert [share.bytes for share in offered("cuda", memory=2 * GB).shares] == [GB, GB]


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("option", ["cuda", "cuda:0", "mps"])
def test_a_device_that_is_not_there_is_named(option: str) -> None:
    with pytest.raises(DeviceUnavailable, match="there is no"):
        pick_device(option)


def test_a_second_gpu_that_is_not_there_is_named(gpu: SimpleNamespace) -> None:
    with pytest.raises(DeviceUnavailable, match=r"no cuda:1: this machine shows 1 CUDA GPU"):
        pick_device("cuda:1")


@pytest.mark.parametrize("option", ["gpu", "", "cuda:x", "meta", "xpu"])
def test_what_is_no_device_is_refused(option: str) -> None:
    with pytest.raises(InvalidOption, match="use cpu, cuda:0 or mps"):
        pick_device(option)


def test_the_dtype_suits_the_device(gpu: SimpleNamespace) -> None:
    assert pick_dtype(None, CPU) == torch.float32
    assert pick_dtype(None, MPS) == torch.float16
    assert pick_dtype(None, CUDA) == torch.bfloat16
    gpu.bf16 = False
    assert pick_dtype(None, CUDA) == torch.float16
    with pytest.raises(DeviceUnavailable, match="--dtype float16"):
        pick_dtype("bf16", CUDA)


def test_a_dtype_can_be_chosen() -> None:
    assert [pick_dtype(name, CPU) for name in ("f32", "BF16", "float16")] == [
        torch.float32,
        torch.bfloat16,
        torch.float16,
    ]
    with pytest.raises(InvalidOption, match="float32, bfloat16 or float16"):
        pick_dtype("int8", CPU)


def test_a_discrete_gpu_lends_what_is_free_less_some(gpu: SimpleNamespace) -> None:
    assert lendable(CUDA).bytes == 22_500_000_000
    gpu.free = GB
    assert lendable(CUDA).bytes == 0
    assert "1.5 GB" in lendable(CUDA).reason


def test_a_gpu_in_the_processor_shares_its_memory(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.integrated = True
    monkeypatch.setattr(memory, "_system_memory", lambda: (64 * GB, 60 * GB))
    assert lendable(CUDA) == lendable(CPU) == shared_share(64 * GB, 60 * GB)


@pytest.mark.parametrize(
    ("total", "available", "lent"),
    [
        (64, 60, 41.6),  # less 35%
        (16, 16, 8),  # less 8 GB
        (8, 7, 4),  # less half
        (64, 30, 28),  # what is available counts, less 2 GB
        (8, 1, 0),
    ],
)
def test_shared_memory_lends_what_nobody_misses(total: int, available: int, lent: float) -> None:
    share = shared_share(total * GB, available * GB)
    assert share.bytes == int(lent * GB)
    assert "GB" in share.reason


def test_a_containers_limit_counts_as_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = SimpleNamespace(total=64 * GB, available=50 * GB)
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: machine)
    limits: dict[str, int | None] = {"memory.max": 8 * GB, "memory.current": 3 * GB}
    monkeypatch.setattr(memory, "_cgroup", limits.get)
    assert memory._system_memory() == (8 * GB, 5 * GB)
    limits["memory.max"] = None
    assert memory._system_memory() == (64 * GB, 50 * GB)


def test_this_machine_can_lend_something() -> None:
    share = lendable(CPU)
    assert 0 <= share.bytes < memory.psutil.virtual_memory().total


def test_more_memory_than_the_machine_has_is_refused(gpu: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_system_memory", lambda: (16 * GB, 1 * GB))
    check_size(16 * GB, [CPU])
    with pytest.raises(InvalidOption, match=r"--memory 17\.0 GB is more than the 16\.0 GB of cpu here"):
        check_size(17 * GB, [CPU])
    check_size(25 * GB, [CUDA])
    with pytest.raises(InvalidOption, match=r"25\.0 GB of cuda:0 here"):
        check_size(26 * GB, [CUDA])


@pytest.mark.parametrize(
    ("lent", "free", "pages"),
    [
        (1000, 1000, 72),  # 90% of what is left of the loan
        (1000, 500, 45),  # less is free
        (9000, 9000, 100),  # no more than are wanted
    ],
)
def test_pages_fit_into_the_loan_and_into_what_is_free(
    lent: int, free: int, pages: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_system_memory", lambda: (10_000, free))
    assert fitting_pages(100, 10, page_bytes=10, lent=lent, fixed=200, device=CPU) == pages


def test_too_few_pages_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_system_memory", lambda: (10_000, 50))
    with pytest.raises(NotEnoughMemory, match="use --kv int8"):
        fitting_pages(100, 10, page_bytes=10, lent=9000, fixed=0, device=CPU)
    with pytest.raises(NotEnoughMemory):
        fitting_pages(100, 10, page_bytes=10, lent=100, fixed=200, device=CPU)
    assert fitting_pages(100, 10, page_bytes=0, lent=100, fixed=0, device=CPU) == 100, "no layer keeps keys"


class TestTried:
    """What a device really gives: here it has room for `most` bytes."""

    @pytest.fixture(autouse=True)
    def device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[int] = []
        self.most = 8 * GB

        def empty(size: int, **_: object) -> None:
            self.asked.append(size)
            if size > self.most:
                raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(torch, "empty", empty)
        monkeypatch.setattr(memory, "give_back", lambda device: None)

    def test_all_that_is_wanted(self) -> None:
        wanted = Lendable(8 * GB, "the rule")
        assert tried(wanted, CUDA) is wanted
        assert self.asked == [8 * GB]

    def test_as_much_as_it_gives(self) -> None:
        found = tried(Lendable(10 * GB, "the rule"), CUDA)
        assert 0.85 * self.most < found.bytes <= self.most
        assert found.reason == "cuda:0 really gave no more; the rule"

    def test_next_to_nothing(self) -> None:
        self.most = 0
        assert tried(Lendable(10 * GB, "the rule"), CPU).bytes < 10**6

    def test_another_failure_is_not_about_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("CUDA driver error")

        monkeypatch.setattr(torch, "empty", broken)
        with pytest.raises(RuntimeError, match="driver"):
            tried(Lendable(GB, "the rule"), CUDA)
