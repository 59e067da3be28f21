"""What `--json` prints: milestones as JSON objects, one a line, on stdout. Parents read their children's this way."""

import json
import sys

from google.protobuf.message import Message


def print_event(event: str, **fields: object) -> None:
    """Print one milestone, at once: whoever reads it waits for it."""
    json.dump({"event": event, **fields}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()


def fields(message: Message) -> dict[str, object]:
    """A message's plain fields by name, with numbers as numbers: protobuf's own JSON makes strings of long integers."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields if not field.message_type}
