"""What the chain's pages still hold: a tree of token prefixes, one page a node, for running and later requests."""

from collections.abc import Iterator, Sequence

from room.pages import PAGE, PagePool, as_runs

Ids = tuple[int, ...]


class Node:
    """One full page: these 16 tokens, after all tokens of the nodes above. Pinned while sessions use it."""

    __slots__ = ("children", "depth", "ids", "page", "parent", "pins", "used")

    def __init__(self, page: int, ids: Ids, parent: "Node | None") -> None:
        self.page = page
        self.ids = ids
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent else 0
        self.children: dict[Ids, Node] = {}
        self.pins = 0
        self.used = 0
        """When it was used last; a node is used whenever a child of it is."""


class PrefixTree:
    """Keeps the pages that sessions fill, and gives back the least recently used ones when the pool runs dry.

    Sessions pin whole paths from the root, so what hangs on an unpinned node is unpinned too.
    """

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._root = Node(-1, (), None)
        self._now = 0
        self._nodes = 0
        self._pinned = 0

    def __repr__(self) -> str:
        return f"<PrefixTree [{self._nodes} pages, {self._pinned} pinned]>"

    @property
    def unpinned(self) -> int:
        """Pages that can be had back at any time."""
        return self._nodes - self._pinned

    def match(self, tokens: Sequence[int]) -> list[Node]:
        """The path that holds the start of `tokens`, pinned. At least the last token is left to compute."""
        return self._pin(list(self._walk(tokens[:-1])))

    def adopt(self, tokens: Sequence[int], pages: Sequence[int]) -> list[Node]:
        """Keep those full pages of `pages`, which hold `tokens`, whose tokens no node holds yet.

        The path of all full pages comes back, pinned. A page that is not on it stays the caller's.
        """
        node, path = self._root, []
        for at, page in zip(range(0, len(tokens) - PAGE + 1, PAGE), pages, strict=False):
            ids = tuple(tokens[at : at + PAGE])
            if ids not in node.children:
                node.children[ids] = Node(page, ids, node)
                self._nodes += 1
            node = node.children[ids]
            path.append(node)
        return self._pin(path)

    def unpin(self, path: Sequence[Node]) -> None:
        for node in path:
            node.pins -= 1
            self._pinned -= not node.pins

    def evict(self, count: int) -> None:
        """Give `count` pages back to the pool, or all unpinned ones if those are fewer."""
        unpinned = (node for node in self._all() if not node.pins)
        # Used no later than what it hangs on, and deeper: a leaf goes before its parent.
        gone = sorted(unpinned, key=lambda node: (node.used, -node.depth))[:count]
        for node in gone:
            assert node.parent is not None
            assert not node.children
            del node.parent.children[node.ids]
        self._nodes -= len(gone)
        self._pool.release(as_runs(sorted(node.page for node in gone)))

    def _pin(self, path: list[Node]) -> list[Node]:
        self._now += 1
        for node in path:
            self._pinned += not node.pins
            node.pins += 1
            node.used = self._now
        return path

    def _walk(self, tokens: Sequence[int]) -> Iterator[Node]:
        node = self._root
        for at in range(0, len(tokens) - PAGE + 1, PAGE):
            child = node.children.get(tuple(tokens[at : at + PAGE]))
            if child is None:
                return
            yield child
            node = child

    def _all(self) -> Iterator[Node]:
        waiting = list(self._root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())
