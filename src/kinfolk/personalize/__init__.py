"""What a client does alone after training, and the registry of it. Free at client level, refused at example level."""

from kinfolk.personalize.registry import AFTERWARDS

__all__ = ["AFTERWARDS"]
