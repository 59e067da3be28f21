import pytest

from protos.invite import Invite


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("127.0.0.1:7070", "127.0.0.1:7070"),
        ("0.0.0.0:7070", "127.0.0.1:7070"),
        ("[::]:7070", "[::1]:7070"),
        ("192.0.2.7:7070", "192.0.2.7:7070"),
        ("127.0.0.1:0", "127.0.0.1:443"),
    ],
)
def test_this_machine_is_dialled_directly(listen: str, address: str) -> None:
    public = Invite("room.example", 443, "ABC234", "k")
    assert public.from_here(listen).address == address
