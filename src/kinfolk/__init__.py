"""Private multi-task and personalised federated learning.

The names here are the whole public interface; what needs the accounting library is loaded on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none

if TYPE_CHECKING:
    from kinfolk.algorithms import REGISTRY
    from kinfolk.data.federation import Federation, from_rows
    from kinfolk.estimators import PersonalizedClassifier, PersonalizedRegressor
    from kinfolk.experiment import DataChoice, Experiment, ModelChoice, Phase, Training
    from kinfolk.models import from_functions
    from kinfolk.train import resume, run

__version__ = "0.1.0"

_LATE = {
    "REGISTRY": "kinfolk.algorithms",
    "Federation": "kinfolk.data.federation",
    "from_rows": "kinfolk.data.federation",
    "DataChoice": "kinfolk.experiment",
    "Experiment": "kinfolk.experiment",
    "ModelChoice": "kinfolk.experiment",
    "PersonalizedClassifier": "kinfolk.estimators",
    "PersonalizedRegressor": "kinfolk.estimators",
    "Phase": "kinfolk.experiment",
    "Training": "kinfolk.experiment",
    "from_functions": "kinfolk.models",
    "resume": "kinfolk.train",
    "run": "kinfolk.train",
}

__all__ = [
    "REGISTRY",
    "DataChoice",
    "Experiment",
    "Federation",
    "ModelChoice",
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "Phase",
    "PrivacyLevel",
    "Training",
    "client_level",
    "example_level",
    "from_functions",
    "from_rows",
    "none",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
