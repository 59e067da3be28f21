"""What the room needs of a model on the Hugging Face hub: its text files, and its tensors' names and shapes."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from room.headers import TensorInfo, Tensors
from room.model_errors import HubUnreachable, ModelNotFound, UnusableWeights

_TEXT_FILES = ["*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken"]
_IN_FOLDERS = "*/*"
_CHUNK = 1 << 20
"""Bytes taken from a connection at a time."""


def fetch_text(repository: str, revision: str | None) -> Path:
    """Download config, tokenizer and template of `repository` into the hub's own cache.

    The directory's name is the commit that `revision` (a branch, tag or commit; None: the main branch) stands for.
    Without a connection an earlier download does. Raises ModelNotFound, HubUnreachable.
    """
    from huggingface_hub import snapshot_download

    with _told_plainly(repository, revision):
        directory = snapshot_download(
            repository, revision=revision, allow_patterns=_TEXT_FILES, ignore_patterns=_IN_FOLDERS
        )
    return Path(directory)


def read_tensors(repository: str, commit: str) -> dict[str, Tensors]:
    """Read the headers of its safetensors, by file, without downloading them.

    Raises UnusableWeights, HubUnreachable.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        with _told_plainly(repository, commit):
            files = HfApi().get_safetensors_metadata(repository, revision=commit).files_metadata
    except (NotASafetensorsRepoError, SafetensorsParsingError) as error:
        raise UnusableWeights(f"{repository} holds no safetensors weights, the only kind Pooled loads") from error
    return {
        file: {name: _tensor_info(info.shape, info.dtype, *info.data_offsets) for name, info in found.tensors.items()}
        for file, found in files.items()
    }


def _tensor_info(shape: list[int], dtype: str, start: int, end: int) -> TensorInfo:
    return TensorInfo(tuple(shape), dtype, start, end - start)


class Stream:
    """A file on the hub, read from its start to its end and not kept."""

    def __init__(self, chunks: Iterator[bytes], size: int) -> None:
        self._chunks, self._rest = chunks, b""
        self.size = size

    def read(self, size: int, /) -> bytes:
        parts, length = [self._rest], len(self._rest)
        while length < size and (chunk := next(self._chunks, None)) is not None:
            parts.append(chunk)
            length += len(chunk)
        read = b"".join(parts)
        self._rest = read[size:]
        return read[:size]


@contextmanager
def open_stream(repository: str, commit: str, name: str) -> Iterator[Stream]:
    """Raises HubUnreachable, ModelNotFound."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]

    url = hf_hub_url(repository, name, revision=commit)
    with (
        _told_plainly(repository, commit),
        get_session().stream("GET", url, headers=build_hf_headers(), follow_redirects=True) as reply,
    ):
        hf_raise_for_status(reply)
        yield Stream(reply.iter_bytes(_CHUNK), int(reply.headers["Content-Length"]))


@contextmanager
def _told_plainly(repository: str, revision: str | None) -> Iterator[None]:
    """Turn the hub library's errors into ours."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    # The base of its HTTP client's errors; which client that is changes with the library's version.
    transport_error: type[Exception] = HfHubHTTPError.__mro__[1]

    try:
        yield
    except GatedRepoError as error:
        raise ModelNotFound(
            f"{repository} is open only to those its owner lets in; accept its terms on the hub and run hf auth login"
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise ModelNotFound(
            f"there is no directory or file {repository} here, and no model of that name on the Hugging Face hub; "
            "check the name"
        ) from error
    except RevisionNotFoundError as error:
        raise ModelNotFound(f"{repository} has no revision {revision}; name a branch, tag or commit it has") from error
    except (transport_error, ConnectionError, TimeoutError, LocalEntryNotFoundError) as error:
        raise HubUnreachable(
            f"there is no directory or file {repository} here, and the Hugging Face hub cannot be reached to look "
            "there; check the name or the connection"
        ) from error
    except OSError as error:
        raise HubUnreachable(
            f"there is no directory or file {repository} here, and it cannot be downloaded: {error.strerror or error}"
        ) from error
