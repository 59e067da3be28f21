from room.admission import MOST_REMEMBERED, Line
from room.session import Session
from tests.room.fakes import CountingAnswer, job


def session(number: int, client: str, *, started: bool = False) -> Session:
    made = Session(number, job(client=client), CountingAnswer(1))
    made.started = started
    return made


def line(*clients: str) -> Line:
    made = Line()
    for number, client in enumerate(clients):
        made.join(session(number, client))
    return made


def order(made: Line, *running: Session) -> list[tuple[str, int]]:
    return [(each.job.client, each.number) for each in made.order(running)]


def test_one_client_is_served_first_come_first() -> None:
    assert order(line("a", "a", "a")) == [("a", 0), ("a", 1), ("a", 2)]


def test_a_single_request_does_not_wait_behind_fifty_of_another_client() -> None:
    assert order(line(*"a" * 50, "b"))[:3] == [("a", 0), ("b", 50), ("a", 1)]


def test_running_requests_count_for_their_client() -> None:
    running = [session(100, "a"), session(101, "a")]
    assert order(line("a", "b", "b", "b"), *running) == [("b", 1), ("b", 2), ("a", 0), ("b", 3)]


def test_answers_that_had_begun_go_first() -> None:
    made = line("a", "b")
    made.join(session(9, "a", started=True))
    assert order(made)[0] == ("a", 9)


def test_leaving() -> None:
    made = line("a", "b")
    first = made.order(())[0]
    made.leave(first)
    made.leave(first)
    assert len(made) == 1
    assert first not in made
    assert made.waiting_of("a") == 0
    assert made.waiting_of("b") == 1


def test_clients_take_turns_also_when_nothing_runs() -> None:
    made = line("a", "a", "a", "b", "b")
    served = []
    while len(made):
        first = made.order(())[0]
        made.admit(first)
        served.append(first.job.client)
    assert served == ["a", "b", "a", "b", "a"]


def test_a_client_that_asks_one_after_the_other_does_not_go_first_for_ever() -> None:
    made = line("many", "many", "many")
    served = []
    for number in range(10, 15):
        made.join(session(number, "one"))
        first = made.order(())[0]
        made.admit(first)
        served.append(first.job.client)
    assert served == ["many", "one", "many", "one", "many"]


def test_only_so_many_clients_are_remembered() -> None:
    made = Line()
    for number in range(MOST_REMEMBERED + 9):
        made.join(session(number, f"c{number}"))
        made.admit(made.order(())[0])
    assert len(made._turns) == MOST_REMEMBERED
