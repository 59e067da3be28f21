"""Make Wren from nothing: tokenizer, conversations, training, export, figures.

    python -m scripts.wren                 write models/wren
    python -m scripts.wren --second        do the second part of the training once more, on the weights that are there
    python -m scripts.wren --evaluate 200  measure models/wren on 200 held-out conversations of each skill

Everything follows from --seed; only the chat template and the README in models/wren are written by hand.
"""

import argparse
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from scripts.wren.batches import Rows
from scripts.wren.measure import evaluate, load
from scripts.wren.model import new_model
from scripts.wren.tokenizer import make_tokenizer
from scripts.wren.tools import Scope
from scripts.wren.train import FIRST, SECOND, train
from scripts.wren.words import Dice

HOME = Path(__file__).resolve().parents[2] / "models" / "wren"
TOKENS, SECOND_TOKENS = 5_000_000, 2_500_000


def export(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config.update(do_sample=False, eos_token_id=model.config.eos_token_id)
    stored = Qwen3ForCausalLM(model.config).to(torch.bfloat16)
    stored.load_state_dict(model.state_dict())
    stored.generation_config = model.generation_config
    stored.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The library writes weights for their owner only; these are for everyone who has the repository.
    (folder / "model.safetensors").chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HOME)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="how many tokens to train on in the first part")
    parser.add_argument("--second", action="store_true", help="only the second part")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--checkpoints", type=Path, help="where to keep the weights of every 500,000 tokens")
    parser.add_argument("--evaluate", type=int, metavar="N", help="measure on N conversations of each skill")
    parser.add_argument("--tools", type=int, default=3, help="the most tools of a prompt, when measuring")
    parser.add_argument("--params", type=int, default=3, help="the most parameters of a tool, when measuring")
    parser.add_argument("--show", type=int, default=0, help="how many wrong answers to print")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.evaluate:
        evaluate(args.out, args.evaluate, Scope(1, args.tools, args.params, held_out=True), args.show)
        return
    if not args.second:
        first(args)
    # From the weights as they are stored, so that this part alone gives the same.
    model, tokenizer = load(args.out)
    train(model, SECOND, Rows(tokenizer), Dice(args.seed + 1), SECOND_TOKENS, lambda seen: None, SECOND_TOKENS)
    export(model, tokenizer, args.out)


def first(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    dice = Dice(args.seed)
    tokenizer = make_tokenizer(HOME / "chat_template.jinja", dice)
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens", flush=True)

    def keep(seen: int) -> None:
        if args.checkpoints:
            export(model, tokenizer, args.checkpoints / str(seen))

    train(model, FIRST, Rows(tokenizer), dice, args.tokens, keep, 500_000)
    export(model, tokenizer, args.out)


if __name__ == "__main__":
    main()
