"""How much faster a room is at many streams than at one, and what its peers hold.

    python -m bench.streams [--peers 2] [--streams 8] [--rounds 5] [--json FILE]

Runs one stream and many in turn, on the embedded model in float32 and real processes, and prints medians and their
ratio. Ratios within one run are what counts: absolute figures are those of one machine on one day.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from openai import AsyncOpenAI

from cli.embedded import embedded_model
from tests.cluster import Cluster
from tests.e2e.rpc import Caller

TOKENS = 48


@dataclass(frozen=True)
class Round:
    one: float
    """Tokens per second of a single stream."""
    many: float
    """Of all streams together."""
    slowest: float
    """Tokens per second of the stream that came last, first token to last."""
    quickest: float


async def answer(client: AsyncOpenAI, number: int) -> tuple[int, float]:
    """One streamed answer: its tokens, and its tokens per second between the first and the last."""
    first = last = 0.0
    tokens = 0
    stream = await client.chat.completions.create(
        model="pooled",
        messages=[{"role": "user", "content": f"Write a long story about the number {number} and its friends."}],
        max_tokens=TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            last = time.perf_counter()
            first = first or last
        if chunk.usage:
            tokens = chunk.usage.completion_tokens
    return tokens, (tokens - 1) / (last - first)


async def streams(client: AsyncOpenAI, count: int) -> tuple[float, list[float]]:
    """Tokens per second of `count` streams together, and of each."""
    began = time.perf_counter()
    done = await asyncio.gather(*(answer(client, number) for number in range(count)))
    took = time.perf_counter() - began
    return sum(tokens for tokens, _ in done) / took, [pace for _, pace in done]


async def rounds(base_url: str, count: int, repeats: int) -> list[Round]:
    async with AsyncOpenAI(base_url=base_url, api_key="any", max_retries=0, timeout=300) as client:
        await streams(client, count)
        done = []
        for _ in range(repeats):
            one, _ = await streams(client, 1)
            many, each = await streams(client, count)
            done.append(Round(one, many, min(each), max(each)))
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(
            embedded_model(), Path(folder), peers=asked.peers, serve=["--max-queue", "64"], join=["--dtype", "float32"]
        ) as cluster,
        Caller(cluster.invite) as caller,
    ):
        peers = [
            {"layers": f"{peer.start}-{peer.end - 1}", "weights": peer.weight_bytes, "rss": peer.rss}
            for peer in caller.state().peers
        ]
        measured = asyncio.run(rounds(cluster.base_url, asked.streams, asked.rounds))
    one = statistics.median(each.one for each in measured)
    many = statistics.median(each.many for each in measured)
    ratio = statistics.median(each.many / each.one for each in measured)
    fairness = statistics.median(each.slowest / each.quickest for each in measured)
    print(f"{asked.peers} peers on one machine, float32, {TOKENS}-token answers, medians of {asked.rounds} rounds")
    for peer in peers:
        print(
            f"  layers {peer['layers']}: {peer['weights'] / 1e6:.0f} MB of weights, {peer['rss'] / 1e6:.0f} MB resident"
        )
    print(f"  1 stream                {one:6.1f} tok/s")
    print(f"  {asked.streams} streams together      {many:6.1f} tok/s   {ratio:.2f}x")
    print(f"  slowest / quickest stream      {fairness:.2f}")
    if asked.json:
        figures = {"peers": peers, "rounds": [asdict(each) for each in measured], "ratio": ratio}
        asked.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
