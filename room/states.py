"""The slots for a hybrid model's recurrent states: one of each running session, and snapshots to go on from.

Such a state cannot be cut back to an earlier position as a list of pages can, so it is kept where later requests are
likely to part from this one.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from room.prefix import Ids


class Snapshot:
    """The state after the tokens of a node and some of the next page, in a slot that nobody writes."""

    __slots__ = ("ids", "pins", "shelf", "slot")

    def __init__(self, slot: int, shelf: "dict[Ids, Snapshot]", ids: "Ids") -> None:
        self.slot = slot
        self.shelf = shelf
        """Where it can be found, by `ids`."""
        self.ids = ids
        self.pins = 0


class StateSlots:
    """Slots 1 to `count`. Snapshots live in those that no session needs; the one used longest ago goes first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count, 0, -1))
        self._kept: OrderedDict[Snapshot, None] = OrderedDict()

    def __repr__(self) -> str:
        return f"<StateSlots [{len(self._free)} of {self.count} free, {len(self._kept)} snapshots]>"

    @property
    def available(self) -> int:
        """Slots that can be had: free ones, and those of snapshots that nobody reads."""
        return len(self._free) + sum(not snapshot.pins for snapshot in self._kept)

    def take(self) -> int | None:
        """A slot to write; None when sessions have or read them all."""
        if not self._free:
            oldest = next((snapshot for snapshot in self._kept if not snapshot.pins), None)
            if oldest is None:
                return None
            self.drop(oldest)
        return self._free.pop()

    def give(self, slot: int) -> None:
        self._free.append(slot)

    def keep(self, slot: int, shelf: "dict[Ids, Snapshot]", ids: "Ids") -> None:
        """Make a snapshot of what is in the slot, unless there is one of the same tokens."""
        if ids in shelf:
            self._kept.move_to_end(shelf[ids])
            self.give(slot)
            return
        shelf[ids] = Snapshot(slot, shelf, ids)
        self._kept[shelf[ids]] = None

    def pin(self, snapshot: Snapshot) -> None:
        snapshot.pins += 1
        self._kept.move_to_end(snapshot)

    def unpin(self, snapshot: Snapshot) -> None:
        snapshot.pins -= 1

    def drop(self, snapshot: Snapshot) -> None:
        """Forget a snapshot that nobody reads."""
        del self._kept[snapshot]
        del snapshot.shelf[snapshot.ids]
        self.give(snapshot.slot)
