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
