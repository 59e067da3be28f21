"""A draft model has to know the tokens of the model it guesses for."""

import json
from pathlib import Path

import pytest

from room.config import RoomConfig
from room.draft_model import check_draft
from room.errors import StartError
from room.text.tokenizer import TextModel
from tests.room.checkpoints import save_checkpoint


def test_equal_tokens_are_what_counts(tmp_path: Path) -> None:
    model, draft = (save_checkpoint(tmp_path / name) for name in ("model", "draft"))
    text = TextModel.load(model)
    check_draft(str(draft), text, tmp_path)
    file = draft / "tokenizer.json"
    other = json.loads(file.read_text())
    other["model"]["vocab"]["none of ours"] = len(other["model"]["vocab"])
    file.write_text(json.dumps(other))
    with pytest.raises(StartError, match=r"--draft: .*draft knows other tokens"):
        check_draft(str(draft), text, tmp_path)


def test_what_is_no_model_of_this_machine(tmp_path: Path) -> None:
    text = TextModel.load(save_checkpoint(tmp_path / "model"))
    with pytest.raises(StartError, match="--draft: there is no model at some/model"):
        check_draft("some/model", text, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StartError, match=r"--draft: .*no config.json"):
        check_draft(str(tmp_path / "empty"), text, tmp_path)


@pytest.mark.parametrize("contrary", [{"speculate": 0}, {"scripted": Path("script")}])
def test_options_that_leave_it_nothing_to_do(contrary: dict) -> None:
    with pytest.raises(StartError, match="--draft"):
        RoomConfig(model="model", draft="draft", **contrary)
