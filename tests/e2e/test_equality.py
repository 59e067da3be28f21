"""A pooled model answers as the whole model does, however it is cut and whoever is answered beside."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.e2e.rpc import Caller

pytestmark = [pytest.mark.e2e, pytest.mark.model, pytest.mark.timeout(600)]

PROMPTS = (
    "What is a KV cache?",
    "Write a short story about a fox.",
    "List five facts about Mars.",
    "Give me a recipe for tomato soup.",
    "Describe the sea at night.",
    "Explain how a pipeline works, in simple words.",
    "Who wrote Hamlet, and when?",
    "Translate 'good morning' into French, Spanish and German.",
    "Write a Python function that reverses a string.",
    "Why is the sky blue? Antworte bitte auf Deutsch. 🦊",
)
SOAK = "POOLED_SOAK" in os.environ
ASKED = PROMPTS if SOAK else PROMPTS[-3:]
NEW = 64 if SOAK else 24
"""Tokens of each answer. `make soak` asks all and lets them write on; `make test` a sample."""

SHARED = "15,15"
"""The room that other tests ask too."""

SAMPLED = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "seed": 1234}


@pytest.fixture(scope="module")
def greedy(gguf: Path) -> list[list[bytes]]:
    """The whole model's own greedy answers, token by token, by transformers' generate in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()
    answers = []
    for prompt in ASKED:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True
        )["input_ids"]
        made = model.generate(ids, max_new_tokens=NEW, do_sample=False)[0, ids.shape[1] :].tolist()
        visible = [token for token in made if token not in tokenizer.all_special_ids]
        answers.append([_bytes_of(tokenizer, token) for token in visible])
    return answers


def _bytes_of(tokenizer, token: int) -> bytes:
    """Of a byte-level BPE token, by the decoder's own table."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    table = {character: byte for byte, character in bytes_to_unicode().items()}
    return bytes(table[character] for character in tokenizer.convert_ids_to_tokens(token))


@pytest.fixture(scope="module")
def sampled() -> dict[str, list[bytes]]:
    """The first room's sampled answers, for the other rooms to equal."""
    return {}


@pytest.fixture(scope="module", params=["30", SHARED, "10,10,10", "3,26,1"] if SOAK else [SHARED, "3,26,1"])
def caller(
    request: pytest.FixtureRequest, gguf: Path, gguf_room: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caller]:
    layers = request.param
    with ExitStack() as stack:
        if layers == SHARED:
            cluster = gguf_room
        else:
            host = ["--layers", layers, "--ctx", "1024", "--wire", "f32"]
            folder, peers = tmp_path_factory.mktemp("room"), layers.count(",") + 1
            cluster = stack.enter_context(Cluster(gguf, folder, peers=peers, host=host, threads=1))
        made = stack.enter_context(Caller(cluster.client_invite))
        assert ",".join(str(peer.end - peer.start) for peer in made.state().peers) == layers
        yield made


def test_greedy_answers_equal_transformers_generate_token_by_token(caller: Caller, greedy: list[list[bytes]]) -> None:
    with ThreadPoolExecutor(len(ASKED)) as pool:
        answers = list(pool.map(lambda prompt: caller.tokens(prompt, NEW, temperature=0.0), ASKED))
    assert answers == greedy


def test_same_seed_same_answer_alone_beside_others_and_on_any_peers(
    caller: Caller, sampled: dict[str, list[bytes]]
) -> None:
    alone = caller.tokens(PROMPTS[0], NEW, **SAMPLED)
    with ThreadPoolExecutor(8) as pool:
        beside = pool.submit(caller.tokens, PROMPTS[0], NEW, **SAMPLED)
        others = [pool.submit(caller.tokens, prompt, NEW, temperature=1.0) for prompt in PROMPTS[1:8]]
        assert beside.result() == alone
        assert all(other.result() for other in others)
    assert caller.tokens(PROMPTS[0], NEW, **{**SAMPLED, "seed": 4321}) != alone
    assert sampled.setdefault("answer", alone) == alone
