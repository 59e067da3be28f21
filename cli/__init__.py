"""The `pooled` command: starts rooms, peers and bridges."""

import os

# gRPC's core writes lines of its own to stderr about failures that we tell in a sentence. It looks once, when imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
