import pytest
import typer

from cli import values
from cli.values import Memory


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("12GB", Memory(size=12_000_000_000)),
        ("1.5 GiB", Memory(size=1_610_612_736)),
        ("800m", Memory(size=800_000_000)),
        ("4096", Memory(size=4096)),
        ("50%", Memory(share=0.5)),
        ("100 %", Memory(share=1.0)),
    ],
)
def test_memory(text: str, memory: Memory) -> None:
    assert values.memory(text) == memory


@pytest.mark.parametrize("memory", [Memory(size=12_345), Memory(share=0.25)])
def test_memory_reads_back_what_it_writes(memory: Memory) -> None:
    assert values.memory(str(memory)) == memory


@pytest.mark.parametrize("text", ["", "lots", "0", "0%", "101%", "-1GB", "1PB", "12 GB and more", "0.2B"])
def test_what_is_no_memory(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        values.memory(text)


@pytest.mark.parametrize("text", ["127.0.0.1:7071", "[::1]:0", "home.example:65535"])
def test_address(text: str) -> None:
    assert values.address(text) == text


@pytest.mark.parametrize("text", ["", "7071", ":7071", "home.example", "home.example:", "a:65536", "a:-1", "a:x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        values.address(text)


def test_layers() -> None:
    assert values.layers("3, 26,1") == (3, 26, 1)


@pytest.mark.parametrize("text", ["", "3,", "0,30", "a", "-1,31", "1.5"])
def test_what_is_no_list_of_layers(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        values.layers(text)


def test_a_bad_invite_is_not_repeated() -> None:
    with pytest.raises(typer.BadParameter) as caught:
        values.invite("pooled://h:1/short#k=SECRET")
    assert "SECRET" not in str(caught.value.message)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12GB", 12 * 10**9),
        ("800MB", 800 * 10**6),
        ("1.5GiB", 3 * 2**29),
        ("1.5 gib", 3 * 2**29),
        ("64k", 64000),
        ("2T", 2 * 10**12),
        ("1000", 1000),
        ("10B", 10),
        (" 7g ", 7 * 10**9),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert values.memory(text) == Memory(size=size)


@pytest.mark.parametrize("text", ["", "lots", "GB", "-1GB", "1,5GB", "12 PB", "1e9", "12GBs", "1.GB", "i", "5I", "5iB"])
def test_other_sizes_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="12GB"):
        values.memory(text)
