"""What a volunteer may not ask for, told before anything else happens."""

from pathlib import Path

import pytest

from peer.config import PeerConfig
from peer.errors import InvalidOption


def test_a_rate_that_lets_nothing_through_is_refused() -> None:
    with pytest.raises(InvalidOption, match="--max-upload"):
        PeerConfig(max_upload=5)


def test_an_advertised_address_leads_to_one_that_is_named() -> None:
    with pytest.raises(InvalidOption, match="--listen"):
        PeerConfig(advertise="home.example:7071")


def test_a_folder_of_models_that_is_not_there_is_no_copy(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=f"--models names {tmp_path}/nope"):
        PeerConfig(models=(tmp_path, tmp_path / "nope"))
