import subprocess
import sys
from pathlib import Path

from tests.tiny_model import save_tiny_tokenizer

# None in sys.modules is what an absent package looks like to import and to importlib.util.find_spec.
PROGRAM = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from protos import peer_pb2, room_pb2
from room.text.answer import Answer
from room.text.tokenizer import TextModel

text = TextModel.load(Path(sys.argv[1]))
prompt = text.render([room_pb2.Turn(role=room_pb2.ROLE_USER, text="hi")], thinking=False, effort="")
answer = Answer(text, [], 100, False)
events = answer.feed([peer_pb2.SampledToken(id=token) for token in [*prompt, *text.eos_ids]])
print("".join(event.text.text for event in events), answer.completion_tokens)
"""


def test_the_text_side_works_where_torch_is_not_installed(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.startswith("user\nhi "), done.stderr
