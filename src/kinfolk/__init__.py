"""Private multi-task and personalised federated learning."""

from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none

__version__ = "0.1.0"

__all__ = ["PrivacyLevel", "client_level", "example_level", "none"]
