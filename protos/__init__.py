"""What the room, its peers and its bridges say to each other, and how they dial."""

PROTOCOL = 2
"""Raised with every change that an older side cannot follow; both sides must agree on it."""
