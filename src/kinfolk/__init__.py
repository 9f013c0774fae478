"""Private multi-task and personalised federated learning.

The names here are the whole public interface. Each is loaded on first use: JAX takes longer to import than a command
needs that only prints something.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.algorithms import REGISTRY
    from kinfolk.data.choice import DataChoice
    from kinfolk.data.federation import Federation, from_rows
    from kinfolk.data.lazy import from_arrays, from_function
    from kinfolk.data.registry import register_dataset
    from kinfolk.data.sparse import from_sparse
    from kinfolk.data.target import courses
    from kinfolk.engines.loop import Sweep
    from kinfolk.estimators import PersonalizedClassifier, PersonalizedRegressor, PersonalizedSurvival
    from kinfolk.models import from_functions
    from kinfolk.privacy.levels import PrivacyLevel, client_level, example_level, none
    from kinfolk.training.experiment import Engine, Experiment, ModelChoice, Phase, Training
    from kinfolk.training.loop import resume, run
    from kinfolk.training.prediction_sets import prediction_sets
    from kinfolk.training.published import evaluate
    from kinfolk.training.recipes import recommend
    from kinfolk.training.simulate import Simulation, SimulationState, simulate
    from kinfolk.training.sweep import sweep

__version__ = "0.1.0"

_LATE = {
    "REGISTRY": "kinfolk.algorithms",
    "Federation": "kinfolk.data.federation",
    "from_arrays": "kinfolk.data.lazy",
    "from_function": "kinfolk.data.lazy",
    "from_rows": "kinfolk.data.federation",
    "courses": "kinfolk.data.target",
    "from_sparse": "kinfolk.data.sparse",
    "DataChoice": "kinfolk.data.choice",
    "Engine": "kinfolk.training.experiment",
    "Experiment": "kinfolk.training.experiment",
    "ModelChoice": "kinfolk.training.experiment",
    "PersonalizedClassifier": "kinfolk.estimators",
    "PersonalizedRegressor": "kinfolk.estimators",
    "PersonalizedSurvival": "kinfolk.estimators",
    "Phase": "kinfolk.training.experiment",
    "PrivacyLevel": "kinfolk.privacy.levels",
    "Training": "kinfolk.training.experiment",
    "client_level": "kinfolk.privacy.levels",
    "evaluate": "kinfolk.training.published",
    "prediction_sets": "kinfolk.training.prediction_sets",
    "example_level": "kinfolk.privacy.levels",
    "from_functions": "kinfolk.models",
    "none": "kinfolk.privacy.levels",
    "recommend": "kinfolk.training.recipes",
    "register_dataset": "kinfolk.data.registry",
    "Simulation": "kinfolk.training.simulate",
    "SimulationState": "kinfolk.training.simulate",
    "resume": "kinfolk.training.loop",
    "run": "kinfolk.training.loop",
    "Sweep": "kinfolk.engines.loop",
    "simulate": "kinfolk.training.simulate",
    "sweep": "kinfolk.training.sweep",
}

__all__ = [
    "REGISTRY",
    "DataChoice",
    "Engine",
    "Experiment",
    "Federation",
    "ModelChoice",
    "PersonalizedClassifier",
    "PersonalizedRegressor",
    "PersonalizedSurvival",
    "Phase",
    "PrivacyLevel",
    "Simulation",
    "SimulationState",
    "Sweep",
    "Training",
    "client_level",
    "courses",
    "evaluate",
    "example_level",
    "from_arrays",
    "from_function",
    "from_functions",
    "from_rows",
    "from_sparse",
    "none",
    "prediction_sets",
    "recommend",
    "register_dataset",
    "resume",
    "run",
    "simulate",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
