"""transformers' own `generate` in a process by itself: a batch of prompts in, all answers out at its end.

    python -m bench.generate DIRECTORY

reads one JSON object a line on stdin, {"conversations": [...], "tokens": 48}, and answers each with one on stdout.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.asking import TOKENS, Answer, Messages, Together


class Generate:
    """Asks the process. Its answers come whole, so there is no pace of a single token."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def ask(self, *conversations: Messages, tokens: int = TOKENS) -> Together:
        """Have all conversations answered as one batch."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"conversations": conversations, "tokens": tokens}) + "\n")
        self._process.stdin.flush()
        done = json.loads(self._process.stdout.readline())
        took = done["took"]
        answers = (
            Answer(text="", tokens=n, prompt_tokens=0, cached_tokens=0, first=took, last=took) for n in done["tokens"]
        )
        return Together(tuple(answers), took)


@contextmanager
def transformers_generate(directory: Path, threads: int) -> Iterator[Generate]:
    """The process, once it has loaded the model."""
    with subprocess.Popen(
        [sys.executable, "-m", "bench.generate", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        text=True,
    ) as process:
        try:
            yield Generate(process)
        finally:
            process.terminate()


def main() -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], padding_side="left")
    for line in sys.stdin:
        asked = json.loads(line)
        began = time.perf_counter()
        prompts = tokenizer.apply_chat_template(
            asked["conversations"], add_generation_prompt=True, padding=True, return_dict=True, return_tensors="pt"
        )
        with torch.inference_mode():
            out = model.generate(**prompts, max_new_tokens=asked["tokens"], do_sample=False)
        answers = out[:, prompts["input_ids"].shape[1] :]
        tokens = (answers != tokenizer.pad_token_id).sum(dim=1).tolist()
        print(json.dumps({"took": time.perf_counter() - began, "tokens": tokens}), flush=True)


if __name__ == "__main__":
    main()
