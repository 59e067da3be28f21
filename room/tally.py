"""How often each token has come: what the penalties count."""

from collections.abc import Sequence

from protos import peer_pb2


class Tally:
    """Of one request. Only what is new since the last look is counted."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._counts = {token: peer_pb2.TokenCount(id=token) for token in prompt}
        self._counted = len(prompt)

    def of(self, tokens: Sequence[int]) -> list[peer_pb2.TokenCount]:
        """Every token of `tokens`, the prompt and the answer so far, with its occurrences in the answer."""
        for token in tokens[self._counted :]:
            if token not in self._counts:
                self._counts[token] = peer_pb2.TokenCount(id=token)
            self._counts[token].answer += 1
        self._counted = len(tokens)
        return list(self._counts.values())
