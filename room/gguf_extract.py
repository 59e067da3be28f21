"""Write what a GGUF file holds besides weights as plain files: config, tokenizer, chat template.

    python -m room.gguf_extract SOURCE.gguf DIRECTORY

A process of its own, since transformers can read a GGUF only where torch is installed, and the room does without.
Failure is one sentence on stderr and exit code 1.
"""

import functools
import importlib.util
import sys
from pathlib import Path

MISSING = (
    "reading a GGUF file needs torch and gguf on the host's machine; in the clone of Pooled: "
    "pip install -c constraints.txt '.[host]'"
)


def main() -> None:
    source, directory = Path(sys.argv[1]), Path(sys.argv[2])
    if any(importlib.util.find_spec(name) is None for name in ("torch", "gguf")):
        sys.exit(MISSING)
    try:
        extract(source, directory)
    except Exception as error:
        # Whatever the libraries stumbled over, the room shows it as the reason why this file is refused.
        sys.exit(" ".join(str(error).split()) or type(error).__name__)


def extract(source: Path, directory: Path) -> None:
    """Write config.json, the tokenizer's files and the chat template of `source` into `directory`."""
    import gguf

    # Config and tokenizer each read the file anew, for seconds.
    gguf.GGUFReader = functools.lru_cache(maxsize=1)(gguf.GGUFReader)

    from transformers import AutoConfig, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    where = {"gguf_file": source.name, "local_files_only": True, "trust_remote_code": False}
    AutoConfig.from_pretrained(str(source.parent), **where).save_pretrained(directory)
    AutoTokenizer.from_pretrained(str(source.parent), **where).save_pretrained(directory)


if __name__ == "__main__":
    main()
