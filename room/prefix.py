"""What the chain's pages still hold: a tree of token prefixes, one page a node, for running and later requests."""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from room.pages import PAGE, PagePool, as_runs
from room.states import Snapshot, StateSlots

Ids = tuple[int, ...]


class Node:
    """One page: these tokens, after all tokens of the nodes above. Pinned while sessions use it.

    A page that is not full has no children. The session that fills it may go on behind `ids` while it pins it.
    """

    __slots__ = ("children", "ids", "order", "page", "parent", "pins", "states", "used")

    def __init__(self, page: int, ids: Ids, parent: "Node | None") -> None:
        self.page = page
        self.ids = ids
        self.parent = parent
        self.children: dict[Ids, Node] = {}
        self.order: list[Ids] = []
        """The keys of `children`, sorted: those that have most in common are neighbours."""
        self.states: dict[Ids, Snapshot] = {}
        """Of a hybrid model: states after these tokens of the next page, whichever child has it."""
        self.pins = 0
        self.used = 0
        """When a session last let go of it; a node is used whenever a child of it is."""

    @property
    def full(self) -> bool:
        return len(self.ids) == PAGE


class Found(NamedTuple):
    """What the tree holds of some tokens."""

    path: list[Node]
    """Full pages, all of whose tokens match."""
    partial: Node | None = None
    """The page behind them whose first `tokens` tokens match too."""
    tokens: int = 0
    snapshot: Snapshot | None = None
    """The recurrent state after all that."""

    @property
    def length(self) -> int:
        return len(self.path) * PAGE + self.tokens


class PrefixTree:
    """Keeps the pages that sessions fill, and gives back the least recently used ones when the pool runs dry.

    Sessions pin whole paths from the root, so what hangs on an unpinned node is unpinned too.
    """

    def __init__(self, pool: PagePool, slots: StateSlots) -> None:
        self._pool = pool
        self._slots = slots
        self._root = Node(-1, (), None)
        self._now = 0
        self._nodes = 0
        self._pinned = 0
        self._idle: list[Node] = []  # unpinned and without children: what can go next, the last of them first

    def __repr__(self) -> str:
        return f"<PrefixTree [{self._nodes} pages, {self._pinned} pinned]>"

    @property
    def unpinned(self) -> int:
        """Pages that can be had back at any time."""
        return self._nodes - self._pinned

    def find(self, tokens: Sequence[int]) -> Found:
        """What is held of the start of `tokens`; at least the last token is left to compute. Nothing is pinned."""
        wanted = tokens[:-1]
        path = list(self._walk(wanted))
        rest = tuple(wanted[len(path) * PAGE : (len(path) + 1) * PAGE])
        closest, length = _closest(path[-1] if path else self._root, rest)
        return Found(path, closest, length) if closest else Found(path)

    def find_state(self, tokens: Sequence[int]) -> Found:
        """The longest start of `tokens` that is held and whose recurrent state is too, as in `find`."""
        found = self.find(tokens)
        pages = [*found.path, found.partial] if found.partial else found.path
        for at in reversed(range(len(pages))):
            states = (pages[at - 1] if at else self._root).states
            rest = tuple(tokens[at * PAGE : (at + 1) * PAGE])
            most = PAGE if at < len(found.path) else found.tokens
            for length in range(most if states else 0, 0, -1):
                if snapshot := states.get(rest[:length]):
                    whole = length == PAGE
                    return Found(pages[: at + whole], None if whole else pages[at], 0 if whole else length, snapshot)
        return Found([])

    def keep_state(self, tokens: Sequence[int], slot: int) -> None:
        """The slot holds the recurrent state after `tokens`: a snapshot, if their full pages are held."""
        before = (len(tokens) - 1) // PAGE
        path = list(self._walk(tokens[: before * PAGE]))
        if not tokens or len(path) < before:
            self._slots.give(slot)
            return
        self._slots.keep(slot, (path[-1] if path else self._root).states, tuple(tokens[before * PAGE :]))

    def pin(self, path: Sequence[Node]) -> None:
        for node in path:
            if not node.pins:
                self._pinned += 1
                if not node.children:
                    del self._idle[self._rank(node)]
            node.pins += 1

    def unpin(self, path: Sequence[Node]) -> None:
        """To be called with whole paths, or with a node below a path that is pinned still."""
        self._now += 1
        for node in path:
            node.pins -= 1
            node.used = self._now
            if not node.pins:
                self._pinned -= 1
                if not node.children:
                    self._idle.insert(0, node)

    def adopt(self, tokens: Sequence[int], pages: Sequence[int], path: Sequence[Node]) -> list[Node]:
        """Keep `pages`, which hold `tokens`: they are the tree's from now on, but for those whose tokens it has.

        `path` is what of them is the tree's already. The new path comes back, pinned in place of `path`. Where a node
        of it has another page, that page holds the same tokens. A last page that is not full is on the path only
        if it is there already, or no page holds its tokens and more.
        """
        node = self._root
        adopted: list[Node] = []
        for at, page in zip(range(0, len(tokens), PAGE), pages, strict=False):
            ids = tuple(tokens[at : at + PAGE])
            mine = path[len(adopted)] if len(adopted) < len(path) else None
            child = node.children.get(ids)
            if mine is not None and (mine.parent is not node or mine.page != page):
                mine = None
            if child is None and mine is not None:
                child = self._extend(mine, ids)
            elif len(ids) < PAGE and (mine is None or child is not mine) and _closest(node, ids)[1] == len(ids):
                if mine is None:
                    break  # the page that holds as much may be another session's to write on in
                child = mine  # it says less than is on its page by now, and stays this session's
            elif child is None:
                child = self._add(Node(page, ids, node))
            node = child
            adopted.append(node)
        self.pin(adopted)
        self.unpin(path)
        return adopted

    def evict(self, count: int) -> None:
        """Give `count` pages back to the pool, or all unpinned ones if those are fewer."""
        gone: list[int] = []
        while self._idle and len(gone) < count:
            gone.append(self._drop(self._idle.pop()))
        self._pool.release(as_runs(sorted(gone)))

    def _add(self, node: Node) -> Node:
        parent = node.parent
        assert parent is not None
        if not parent.pins and not parent.children and parent is not self._root:
            del self._idle[self._rank(parent)]
        parent.children[node.ids] = node
        insort(parent.order, node.ids)
        self._nodes += 1
        node.used = self._now = self._now + 1
        self._idle.insert(0, node)
        return node

    def _extend(self, node: Node, ids: Ids) -> Node:
        """The page of a node that was not full holds more by now."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.ids]
        del parent.order[bisect_left(parent.order, node.ids)]
        node.ids = ids
        parent.children[ids] = node
        insort(parent.order, ids)
        return node

    def _drop(self, node: Node) -> int:
        """Forget a node that nothing hangs on, which is no longer among the idle; its page."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.ids]
        del parent.order[bisect_left(parent.order, node.ids)]
        self._nodes -= 1
        for snapshot in list(node.states.values()):
            self._slots.drop(snapshot)
        if parent is not self._root and not parent.children and not parent.pins:
            insort(self._idle, parent, key=_idle_for)
        return node.page

    def _rank(self, node: Node) -> int:
        """Where an idle node stands. No two idle ones were let go of at once: of a path only the end is idle."""
        at = bisect_left(self._idle, _idle_for(node), key=_idle_for)
        assert self._idle[at] is node
        return at

    def _walk(self, tokens: Sequence[int]) -> Iterator[Node]:
        node = self._root
        for at in range(0, len(tokens) - PAGE + 1, PAGE):
            child = node.children.get(tuple(tokens[at : at + PAGE]))
            if child is None:
                return
            yield child
            node = child


def _idle_for(node: Node) -> int:
    return -node.used


def _closest(node: Node, ids: Ids) -> tuple[Node | None, int]:
    """The child of `node` that begins most like `ids`, and how many tokens they have in common; None: no token."""
    at = bisect_left(node.order, ids)
    length, closest = max(((common(key, ids), key) for key in node.order[max(at - 1, 0) : at + 1]), default=(0, ()))
    return (node.children[closest], length) if length else (None, 0)


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two lists begin with alike."""
    for at, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return at
    return min(len(a), len(b))
