"""Estimators with scikit-learn's conventions: `fit(X, y, clients=)`, `predict`, `predict_proba`, `score`.

Without a `random_state` a fit is a release: noise from the operating system, charged to the data set's ledger; bounds
and classes must then be declared. With one it is a simulation, can be repeated, and says so next to every epsilon.
Inheritance is scikit-learn's convention, and stays in this folder.
"""

try:
    import sklearn  # noqa: F401
except ImportError as error:
    raise ImportError("the estimators need scikit-learn: pip install 'kinfolk[sklearn]'") from error

from kinfolk.estimators.classifier import PersonalizedClassifier
from kinfolk.estimators.regressor import PersonalizedRegressor
from kinfolk.estimators.survival import PersonalizedSurvival

__all__ = ["PersonalizedClassifier", "PersonalizedRegressor", "PersonalizedSurvival"]
