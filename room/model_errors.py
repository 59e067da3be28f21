"""Why a model cannot be served.

    ModelError
    ├── ModelNotFound      nothing of that name, here or on the hub
    ├── HubUnreachable
    ├── NotACausalLM       it does not continue text
    ├── UnsupportedModel   it does, in a way that cannot be cut into slices or read
    ├── UnusableWeights    no safetensors, or not all of them
    │   └── DamagedFile    cut off, or not what its name says
    ├── NoTokenizer
    └── WrongManifest      it is of another model, or cannot be read

Each message is one sentence for people: what is wrong, and what to do next.
"""

from pathlib import Path


class ModelError(ValueError):
    """Base of this tree."""


class ModelNotFound(ModelError):
    pass


class HubUnreachable(ModelError):
    pass


class NotACausalLM(ModelError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not a causal language model; choose one made for text generation")


class UnsupportedModel(ModelError):
    pass


class UnusableWeights(ModelError):
    pass


class DamagedFile(UnusableWeights):
    def __init__(self, path: Path | str, why: str) -> None:
        super().__init__(f"{path} {why}; download it again")


class NoTokenizer(ModelError):
    pass


class WrongManifest(ModelError):
    pass
