"""Stop strings, found in text that comes in pieces."""

from collections.abc import Sequence


class StopScanner:
    """Ends a text before the first stop string in it: the one that is complete first, whichever it is.

    Of several that are complete at the same character the longest counts. Characters are compared as they are. Only
    what can still become a stop string is held back.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [stop for stop in stops if stop]
        self._beginnings = {stop[:length] for stop in self._stops for length in range(1, len(stop))}
        self._longest = max(map(len, self._beginnings), default=0)
        self.held = ""
        """Text that may yet become one."""

    def feed(self, text: str) -> tuple[str, bool]:
        """What can be released now that `text` has come, and whether a stop string is complete.

        After a hit the text before it is all there is: feed no more.
        """
        if not self._stops:
            return text, False
        text = self.held + text
        found = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.held = ""
            return text[: min(found)[1]], True
        cut = len(text) - self._holdable(text)
        self.held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """The text ends here: release what was held back."""
        held, self.held = self.held, ""
        return held

    def _holdable(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        lengths = range(min(self._longest, len(text)), 0, -1)
        return next((length for length in lengths if text[-length:] in self._beginnings), 0)
