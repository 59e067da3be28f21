"""What `--json` prints: milestones as JSON objects, one a line, on stdout. Parents read their children's this way."""

import json
import sys


def print_event(event: str, **fields: object) -> None:
    """Print one milestone, at once: whoever reads it waits for it."""
    json.dump({"event": event, **fields}, sys.stdout)
    sys.stdout.write("\n")
    sys.stdout.flush()
