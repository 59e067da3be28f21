"""Invites: for whom, for how long, for how many."""

import pytest

from protos import room_pb2
from room.border import checked_hello
from room.errors import InvalidValue, InviteExpired, InviteRevoked, InviteUsedUp, TooManyInvites, UnknownInvite
from room.invites import CLIENTS, MOST_INVITES, OWN, PEERS, Invitation, InviteBook, Side, side_named
from tests.room.fakes import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> InviteBook:
    return InviteBook((), clock)


def test_every_room_has_one_for_each_side_and_its_own(book: InviteBook) -> None:
    assert {each.name: each.side for each in book} == {OWN: Side.PEER, PEERS: Side.PEER, CLIENTS: Side.CLIENT}
    assert len({each.key for each in book}) == 3
    assert book.named_by(book[CLIENTS].key) is book[CLIENTS]
    assert book[CLIENTS].opens_to(book[CLIENTS].key)
    assert book.named_by("") is book.named_by(book[CLIENTS].key[1:]) is None
    assert not book[CLIENTS].opens_to(book[CLIENTS].key[:-1])
    assert book[CLIENTS].key not in repr(book[CLIENTS])


def test_it_lets_in_so_many_who_may_come_back(book: InviteBook, clock: Clock) -> None:
    invite = book.issue(Side.PEER, uses=2)
    for guest in ("a", "b", "a"):
        invite.admit(guest, clock())
    with pytest.raises(InviteUsedUp):
        invite.admit("c", clock())
    assert invite.state(clock()) == "used up"


def test_it_expires_for_those_who_were_not_in(book: InviteBook, clock: Clock) -> None:
    invite = book.issue(Side.CLIENT, lifetime=60)
    invite.admit("early", clock())
    clock.now += 60
    assert invite.state(clock()) == "expired"
    with pytest.raises(InviteExpired):
        invite.check("late", clock())
    invite.check("early", clock())
    book.revoke(invite.name)
    with pytest.raises(InviteRevoked):
        invite.check("early", clock())


def test_the_hosts_own_cannot_be_revoked_nor_one_there_is_not(book: InviteBook) -> None:
    with pytest.raises(InvalidValue, match="stop the room"):
        book.revoke(OWN)
    with pytest.raises(UnknownInvite):
        book.revoke("attic")


def test_names_are_made_unique_and_are_short(book: InviteBook) -> None:
    assert [book.issue(Side.PEER, name).name for name in ("", "", "attic", "attic")] == [
        "peer",
        "peer-2",
        "attic",
        "attic-2",
    ]
    with pytest.raises(InvalidValue):
        book.issue(Side.PEER, "x" * 65)
    with pytest.raises(InvalidValue):
        side_named("host")


def test_the_book_is_bounded_and_forgets_what_is_of_no_use_first(book: InviteBook, clock: Clock) -> None:
    first = book.issue(Side.PEER, "first", lifetime=1)
    used = book.issue(Side.PEER, "used", lifetime=1)
    used.admit("a", clock())
    while len(list(book)) < MOST_INVITES:
        book.issue(Side.PEER)
    with pytest.raises(TooManyInvites):
        book.issue(Side.PEER)
    clock.now += 1
    book.issue(Side.PEER)
    assert book.named_by(first.key) is None
    assert book.named_by(used.key) is used, "who came in by it may come back"
    with pytest.raises(TooManyInvites):
        book.issue(Side.PEER)
    book.revoke("used")
    book.issue(Side.PEER)


def test_a_kept_book_opens_as_before_and_a_revoked_usual_invite_is_made_anew(book: InviteBook, clock: Clock) -> None:
    book.issue(Side.CLIENT, "phone", lifetime=60, uses=3).admit("a", clock())
    revoked = book.revoke(PEERS)
    again = InviteBook([Invitation(**each) for each in book.kept], clock)
    assert again.kept[3:] == book.kept[3:]
    assert again.named_by(book[CLIENTS].key) is again[CLIENTS]
    assert again.named_by(revoked.key) is None
    assert not again[PEERS].revoked


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a" * 65])
def test_names_that_would_break_a_table_are_refused(book: InviteBook, name: str) -> None:
    with pytest.raises(InvalidValue, match="a name has"):
        book.issue(Side.PEER, name)
    hello = room_pb2.Hello(peer_id="p", name=name, dtype="float32")
    with pytest.raises(InvalidValue, match="a name has"):
        checked_hello(room_pb2.FromMember(hello=hello))
