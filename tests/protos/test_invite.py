from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.invite import CODE_ALPHABET, InvalidInvite, Invite

FINGERPRINT = "0123456789abcdef" * 4
PUBLIC = Invite("room.example", 443, "ABC234", "k", FINGERPRINT)

INVITES = st.builds(
    Invite,
    host=st.sampled_from(["room.example", "192.0.2.7", "2001:db8::7"]),
    port=st.integers(1, 65535),
    code=st.text(CODE_ALPHABET, min_size=6, max_size=6),
    key=st.text(max_size=40).filter(lambda text: text.isprintable()),
    fingerprint=st.text("0123456789abcdef", min_size=64, max_size=64),
    path=st.sampled_from([None, "/", "/pooled", "/a/b"]),
    outer_tls=st.just(True),
)


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
    for public in (PUBLIC, replace(PUBLIC, path="/ws")):
        here = public.from_here(listen)
        assert here.address == address
        assert here.path is None


@given(INVITES)
def test_what_is_written_is_read_again(invite: Invite) -> None:
    assert Invite.parse(f"  {invite}\n") == invite


@given(INVITES.filter(lambda invite: invite.path is not None))
def test_a_websocket_within_plain_http(invite: Invite) -> None:
    plain = replace(invite, outer_tls=False)
    assert str(plain).startswith("ws://")
    assert Invite.parse(str(plain)) == plain
    assert (
        replace(PUBLIC, key=invite.key, code=invite.code, fingerprint=invite.fingerprint).by_websocket(plain.url)
        == plain
    )


@pytest.mark.parametrize("url", ["https://room.example/", "wss:///path", "wss://room.example/#k=x", "ws://h:70700/"])
def test_what_is_no_websocket(url: str) -> None:
    with pytest.raises(InvalidInvite, match="wss://HOST/PATH"):
        PUBLIC.by_websocket(url)


def test_both_forms() -> None:
    assert str(PUBLIC) == f"pooled://room.example:443/ABC234#k=k&f={FINGERPRINT}"
    by_socket = f"wss://room.example/pooled#c=ABC234&k=k&f={FINGERPRINT}"
    assert Invite.parse(by_socket) == replace(PUBLIC, path="/pooled")
    assert str(Invite.parse(by_socket)) == by_socket
    assert Invite.parse(f"wss://room.example#c=abc234&k=k&f={FINGERPRINT.upper()}") == replace(PUBLIC, path="/")


def test_an_invite_may_lack_its_key() -> None:
    assert str(replace(PUBLIC, key="")) == f"pooled://room.example:443/ABC234#f={FINGERPRINT}"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_plain_text_stays_on_the_machine(host: str) -> None:
    invite = Invite(host, 7070, "ABC234", "k")
    assert str(invite).endswith("&f=none")
    assert Invite.parse(str(invite)) == invite


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("https://room.example/ABC234#k=k", "start with pooled://"),
        (f"pooled://room.example/ABC234#k=k&f={FINGERPRINT}", "HOST:PORT"),
        (f"pooled://room.example:70700/ABC234#k=k&f={FINGERPRINT}", "port"),
        (f"pooled://room.example:7070/ABC23#k=k&f={FINGERPRINT}", "CODE"),
        (f"wss://room.example/ABC234#k=k&f={FINGERPRINT}", "CODE"),
        ("pooled://127.0.0.1:7070/ABC234#k=k", "FINGERPRINT"),
        (f"pooled://room.example:7070/ABC234#k=k&f={FINGERPRINT[:-1]}", "FINGERPRINT"),
        ("pooled://room.example:7070/ABC234#k=k&f=none", "plain text"),
        ("pooled://127.0.0.1.example:7070/ABC234#k=k&f=none", "plain text"),
    ],
)
def test_what_is_no_invite(text: str, wrong: str) -> None:
    with pytest.raises(InvalidInvite, match=wrong):
        Invite.parse(text)
