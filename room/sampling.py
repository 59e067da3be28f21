"""From what a caller asks of sampling to what the last peer is told."""

import math
import secrets
from dataclasses import replace

from protos import peer_pb2, room_pb2
from room.config import RoomConfig
from room.errors import InvalidValue
from room.text.tokenizer import SamplingDefaults

MAX_LOGPROBS = 20
MAX_BIASES = 1024
GREEDY = SamplingDefaults()


def room_setting(config: RoomConfig, model: SamplingDefaults) -> SamplingDefaults:
    """The room's own setting: the host's flags, else the model's generation_config, else greedy."""
    if config.temperature is None and config.top_k is None:
        return model
    return replace(
        model,
        temperature=config.temperature if config.temperature is not None else model.temperature or 0.8,
        top_k=config.top_k if config.top_k is not None else model.top_k,
    )


def resolve(asked: room_pb2.Sampling, own: SamplingDefaults, vocab_size: int) -> peer_pb2.SamplingParams:
    """Every value written out. A caller that sets temperature or top_k gets none of the room's own narrowing.

    Raises InvalidValue naming the field.
    """
    base = own
    if asked.HasField("temperature") or asked.HasField("top_k"):
        base = replace(GREEDY, temperature=0.8)
    params = peer_pb2.SamplingParams(
        temperature=_in(asked, "temperature", base.temperature, 0, 2),
        top_k=int(_in(asked, "top_k", base.top_k, 0, 1 << 20)),
        top_p=_in(asked, "top_p", base.top_p, 0, 1),
        min_p=_in(asked, "min_p", base.min_p, 0, 1),
        repetition_penalty=_in(asked, "repetition_penalty", base.repetition_penalty, 0.01, 10),
        presence_penalty=_in(asked, "presence_penalty", 0, -2, 2),
        frequency_penalty=_in(asked, "frequency_penalty", 0, -2, 2),
        seed=asked.seed if asked.HasField("seed") else secrets.randbits(64),
        logprobs=asked.logprobs,
        top_logprobs=asked.top_logprobs if asked.logprobs else 0,
    )
    if asked.top_logprobs > MAX_LOGPROBS:
        raise InvalidValue("top_logprobs", f"top_logprobs is at most {MAX_LOGPROBS}, got {asked.top_logprobs}")
    if len(asked.logit_bias) > MAX_BIASES:
        raise InvalidValue("logit_bias", f"logit_bias has at most {MAX_BIASES} entries, got {len(asked.logit_bias)}")
    for entry in asked.logit_bias:
        if entry.id >= vocab_size or not -100 <= entry.bias <= 100:
            raise InvalidValue("logit_bias", f"logit_bias maps token ids below {vocab_size} to -100..100")
        params.logit_bias.append(entry)
    return params


def _in(asked: room_pb2.Sampling, name: str, default: float, low: float, high: float) -> float:
    """The asked value of a field, checked, or its default."""
    if not asked.HasField(name):  # type: ignore[arg-type]
        return default
    value: float = getattr(asked, name)
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(name, f"{name} is between {low:g} and {high:g}, got {value:g}")
    return value
