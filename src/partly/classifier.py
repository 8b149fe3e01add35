"""The scikit-learn face.

What enters: features X [N, F] and labels y [N, L] with 1, 0 and -1 or NaN for unknown. What leaves:
an estimator that clones, pickles, and stands in pipelines and grid searches like any other; the
work is done by `training.train`. Letters: N rows, F features, L labels.
"""

from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from partly import metrics
from partly.config import Config
from partly.errors import LabelError
from partly.labels import LabelTable, encode
from partly.training import train

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn before 1.6: the same as a method of the estimator

    def validate_data(estimator: Any, X: Any, **checks: Any) -> Any:
        return estimator._validate_data(X, **checks)


class PartialLabelClassifier(ClassifierMixin, BaseEstimator):
    """A multi-label classifier that learns from partly known labels.

    Parameters have the names and meanings of `partly.Config`; `random_state` is its seed. With
    `hold_out` above 0 that share of the rows, if it is 50 or more, chooses the epoch, the
    thresholds of `predict` for a `goal` (f1, precision:0.9, recall:0.9, cost:1:5) and how
    probabilities are calibrated (`calibrate`: none, temperature, isotonic); otherwise thresholds
    are ½.

    `y` is a matrix or DataFrame [N, L] of two or more labels. A single column of classes is an
    error, so scikit-learn's estimator checks that fit one cannot pass; all others do. Two of its
    tools do not know unknown labels: an integer `cv` refuses NaN (write -1, or pass `cv=KFold(5)`),
    and `cross_val_predict` renumbers y unless its method is "predict".

    After `fit`:
    classes_ [L, 2]: for each label array([0, 1]), by which scikit-learn's scorers know the kind.
    label_names_ [L]: the columns of a DataFrame, otherwise `label 0`, `label 1`, …
    thresholds_ [L]: the probability from which `predict` says 1.
    expected_positives_: the number of positives a row that training took for true, be it given,
    estimated, or guessed where only positives are known (verbose=True says it); None where the
    method does not depend on it.
    predictor_: the trained model, a `runs.Predictor`.
    n_features_in_, and feature_names_in_ where X has names.

    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> Y = np.where(X[:, :3] > 0, 1, 0)
    >>> Y[::2, 0] = -1  # unknown
    >>> model = PartialLabelClassifier(epochs=3, random_state=0).fit(X, Y)
    >>> model.predict_proba(X).shape
    (60, 3)
    >>> model.score(X, Y) > 0.7
    True
    """

    def __init__(
        self,
        method: str = "partly",
        *,
        options: Mapping[str, Any] | None = None,
        epochs: int = 30,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        backbone: str = "linear",
        optimiser: str = "adam",
        weight_decay: float | None = None,
        head_decay: float | None = None,
        ema: float | None = None,
        expected_positives: float | None = None,
        hold_out: float = 0.0,
        goal: str = "f1",
        calibrate: str = "none",
        standardise: bool = True,
        device: str = "auto",
        verbose: bool = False,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.method = method
        self.options = options
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.backbone = backbone
        self.optimiser = optimiser
        self.weight_decay = weight_decay
        self.head_decay = head_decay
        self.ema = ema
        self.expected_positives = expected_positives
        self.hold_out = hold_out
        self.goal = goal
        self.calibrate = calibrate
        self.standardise = standardise
        self.device = device
        self.verbose = verbose
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: Any) -> Self:
        """Learn from X [N, F] and y [N, L]: 1 positive, 0 negative, -1 or NaN unknown."""
        # float32 is what the model computes in: a number too large for it is refused here.
        features = validate_data(self, X, dtype=np.float32, ensure_min_samples=2)
        values, names = read_targets(y)
        if len(values) != len(features):
            raise LabelError(f"X has {len(features)} rows, y has {len(values)}")
        table = LabelTable.from_dense(values, names=names, convention="nan", features=features)
        self.predictor_ = train(table, self._config(), quiet=not self.verbose)
        self.expected_positives_ = self.predictor_.config["positives_an_image"]
        self.label_names_ = np.array(table.names, dtype=object)
        self.classes_ = np.tile([0, 1], (len(table.names), 1))
        self.thresholds_ = self.predictor_.limits
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Logits [N, L], float32."""
        check_is_fitted(self)
        features = validate_data(self, X, dtype=np.float32, reset=False)
        ids = np.arange(len(features))
        names = self.predictor_.names
        return self.predictor_.logits(LabelTable.without_labels(names, ids=ids, features=features))

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """P(label) [N, L]: one column a label, not one a class."""
        # In float64, where a confident label does not round to exactly 1.
        logits = torch.from_numpy(self.decision_function(X)).double()
        return self.predictor_.to_probabilities(logits)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """1 where P(label) ≥ the label's threshold and 0 elsewhere, int [N, L]."""
        return (self.predict_proba(X) >= self.thresholds_).astype(int)

    def score(self, X: ArrayLike, y: Any) -> float:
        """Mean average precision over the known labels of y [N, L]; nan if none is positive."""
        logits = self.decision_function(X)
        values, names = read_targets(y)
        if names is None:
            labels = encode(values, convention="nan")
        else:
            table = LabelTable.from_dense(values, names=names, convention="nan")
            labels = table.reorder(self.predictor_.names, "y").dense()
        return metrics.mean_average_precision(logits, labels)

    def _config(self) -> Config:
        parameters = self.get_params(deep=False)
        shared = {field.name for field in fields(Config)} & parameters.keys()
        chosen = {name: parameters[name] for name in shared}
        chosen["options"] = dict(self.options or {})
        return Config(**chosen, seed=self._seed())

    def _seed(self) -> int:
        """An int is itself, so that `partly train --seed` draws the same."""
        generator = check_random_state(self.random_state)  # an error for what is no seed
        if isinstance(self.random_state, Integral):
            return int(self.random_state)
        return int(generator.randint(2**31 - 1))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.two_d_labels = True
        tags.target_tags.single_output = False
        return tags


def read_targets(y: Any) -> tuple[np.ndarray, list[str] | None]:
    """The values of y [N, L] and, where y is a DataFrame, the names of its columns."""
    if y is None:
        raise LabelError("a classifier requires y to be passed, but the target y is None")
    if issparse(y):
        raise LabelError("y is sparse, which does not say unknown: pass y.toarray() with -1 for it")
    values = np.asarray(y)
    if values.ndim == 1:
        raise LabelError(
            f"Unknown label type: y is one column of classes or numbers (shape {values.shape}), "
            "but labels are a matrix [N, L] of 1 positive, 0 negative and -1 or NaN unknown"
        )
    if not hasattr(y, "columns") or not hasattr(y, "to_numpy"):
        return values, None
    if values.dtype == object and hasattr(y, "isna"):  # pandas' own missing value is no number
        values = np.where(y.isna(), np.nan, values)
    return values, [str(name) for name in y.columns]
