"""The shelf of algorithms, and the registry that everything else reads."""

from kinfolk.algorithms.registry import REGISTRY, Entry

__all__ = ["REGISTRY", "Entry"]
