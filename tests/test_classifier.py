"""The scikit-learn face: scikit-learn's own checks, and what its users do with an estimator."""

import copy
import inspect
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

import partly
from partly import LabelTable, PartialLabelClassifier, hide, methods, metrics
from partly.errors import ConfigError, DataError, LabelError, PartlyError

nan = np.nan


def draw(rows=200, features=5, labels=4, seed=0):
    """Features and full labels of a linear world with a little noise."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(rows, features))
    slopes = np.random.default_rng(99).normal(size=(features, labels))
    noise = 0.3 * generator.logistic(size=(rows, labels))
    return X, (X @ slopes - 0.5 + noise > 0).astype(int)


@pytest.fixture(scope="module")
def data():
    X, Y = draw()
    return X, hide(Y, "pal", keep=0.5, seed=0)


@pytest.fixture(scope="module")
def fitted(data):
    return PartialLabelClassifier(epochs=3, random_state=0).fit(*data)


class Frame:
    """As much of a DataFrame as labels need, where pandas is not installed."""

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), columns

    def to_numpy(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return self.values if dtype is None else self.values.astype(dtype)


# --- scikit-learn's checks ------------------------------------------------------------------------

ONE_COLUMN = "fits one column of classes, an error here: run below with one column a class instead"
ONE_CLASS = "fits one column of classes and wants one class a row back, not 0 or 1 a label"
ONE_SCORE = "fits one column of classes and wants one score a row back, not one a label: see below"
EXCLUDED_CHECKS = {
    "check_array_api_input": ONE_COLUMN,
    "check_classifier_data_not_an_array": ONE_COLUMN,
    "check_classifiers_classes": ONE_CLASS,
    "check_classifiers_train": ONE_CLASS,
    "check_decision_proba_consistency": ONE_SCORE,
    "check_dict_unchanged": ONE_COLUMN,
    "check_dont_overwrite_parameters": ONE_COLUMN,
    "check_dtype_object": ONE_COLUMN,
    "check_estimators_dtypes": ONE_COLUMN,
    "check_estimators_fit_returns_self": ONE_COLUMN,
    "check_estimators_nan_inf": ONE_COLUMN,
    "check_estimators_overwrite_params": ONE_COLUMN,
    "check_estimators_pickle": ONE_COLUMN,
    "check_f_contiguous_array_estimator": ONE_COLUMN,
    "check_fit2d_1feature": ONE_COLUMN,
    "check_fit2d_predict1d": ONE_COLUMN,
    "check_fit_check_is_fitted": ONE_COLUMN,
    "check_fit_idempotent": ONE_COLUMN,
    "check_fit_score_takes_y": ONE_COLUMN,
    "check_methods_sample_order_invariance": ONE_COLUMN,
    "check_methods_subset_invariance": ONE_COLUMN,
    "check_n_features_in": ONE_COLUMN,
    "check_n_features_in_after_fitting": ONE_COLUMN,
    "check_pipeline_consistency": ONE_COLUMN,
    "check_positive_only_tag_during_fit": ONE_COLUMN,
    "check_readonly_memmap_input": ONE_COLUMN,
}


class OneColumnAClass(PartialLabelClassifier):
    """Turns a column of classes into a column a class, so that the checks above can run."""

    def fit(self, X, y):
        self.seen_ = np.unique(np.asarray(y))
        return super().fit(X, self.spread(y))

    def score(self, X, y):
        return super().score(X, self.spread(y))

    def spread(self, y):
        return (np.asarray(y)[:, None] == self.seen_).astype(int)


def name_of(check):
    while isinstance(check, partial):
        check = check.func
    return check.__name__


def checks_of(estimator):
    found = list(estimator_checks_generator(estimator))
    return [pytest.param(*pair, id=f"{name_of(pair[1])}") for pair in found]


@pytest.mark.parametrize(("estimator", "check"), checks_of(PartialLabelClassifier(epochs=3)))
def test_scikit_learn_check(estimator, check):
    if name_of(check) not in EXCLUDED_CHECKS:
        check(estimator)
        return
    with pytest.raises((AssertionError, LabelError)) as caught:
        check(estimator)  # one that passes after all must leave the list
    assert "one column of classes" in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pair
        for pair in checks_of(OneColumnAClass(epochs=3))
        if EXCLUDED_CHECKS.get(name_of(pair.values[1])) == ONE_COLUMN
    ],
)
def test_scikit_learn_check_with_one_column_a_class(estimator, check):
    check(estimator)


def test_scores_and_probabilities_rank_alike(data, fitted):
    """What the check of it asks, label by label."""
    scores, probabilities = fitted.decision_function(data[0]), fitted.predict_proba(data[0])
    for own, chances in zip(scores.T, probabilities.T, strict=True):
        rises = np.diff(chances[np.argsort(own)])
        assert (rises >= 0).all()
        assert (rises > 0).any()


def test_every_excluded_check_exists():
    names = {name_of(check) for _, check in estimator_checks_generator(PartialLabelClassifier())}
    new = {"check_array_api_input"}  # since scikit-learn 1.8
    assert set(EXCLUDED_CHECKS) - new <= names


# --- fit and predict ------------------------------------------------------------------------------


def test_outputs_fit_together(data, fitted):
    X, Y = data
    logits, probabilities = fitted.decision_function(X), fitted.predict_proba(X)
    assert logits.shape == probabilities.shape == Y.shape
    np.testing.assert_allclose(probabilities, 1 / (1 + np.exp(-logits.astype(float))), rtol=1e-6)
    np.testing.assert_array_equal(fitted.predict(X), probabilities >= 0.5)
    assert fitted.predict(X).dtype == int
    assert fitted.score(X, Y) == metrics.mean_average_precision(logits, Y)
    assert fitted.n_features_in_ == 5
    assert fitted.label_names_.tolist() == ["label 0", "label 1", "label 2", "label 3"]
    assert fitted.classes_.tolist() == [[0, 1]] * 4


def test_it_is_a_thin_face_over_train(data):
    X, Y = data
    model = PartialLabelClassifier("ign", epochs=2, batch_size=50, random_state=7).fit(X, Y)
    config = partly.Config(method="ign", epochs=2, batch_size=50, seed=7, hold_out=0)
    table = LabelTable.from_dense(Y, features=X.astype(np.float32))
    expected = partly.train(table, config, quiet=True)
    np.testing.assert_array_equal(model.decision_function(X), expected.logits(table))


@pytest.mark.parametrize("rows", [60, 300, 2000])
def test_defaults_learn_from_little_data(rows):
    """Not only the order of scores, which a few steps get right, but the decisions too."""
    X, Y = draw(rows)
    X_test, Y_test = draw(1000, seed=1)
    model = PartialLabelClassifier(random_state=0).fit(X, hide(Y, "pal", keep=0.7, seed=0))
    assert model.score(X_test, Y_test) > 0.8
    assert metrics.f1_scores(model.predict_proba(X_test), Y_test).OF1 > 0.6


def test_unknown_is_minus_one_or_nan(data, fitted):
    X, Y = data
    same = clone(fitted).fit(X, np.where(Y < 0, nan, Y))
    np.testing.assert_array_equal(same.predict_proba(X), fitted.predict_proba(X))
    assert same.score(X, np.where(Y < 0, nan, Y)) == fitted.score(X, Y)


def test_an_unknown_label_is_not_taken_for_a_negative(data, fitted):
    X, Y = data
    as_negative = clone(fitted).fit(X, np.maximum(Y, 0))
    assert (as_negative.predict_proba(X).mean(0) < fitted.predict_proba(X).mean(0)).all()


def test_score_without_a_known_positive_is_nan(data, fitted):
    X, Y = data
    assert np.isnan(fitted.score(X, np.where(Y > 0, -1, Y)))


def test_hold_out_fits_thresholds():
    X, Y = draw(600)
    model = PartialLabelClassifier(epochs=3, hold_out=0.2, random_state=0).fit(X, Y)
    assert (model.thresholds_ != 0.5).all()
    expected = model.predict_proba(X) >= model.thresholds_
    np.testing.assert_array_equal(model.predict(X), expected)


def test_hidden_layer_and_average_of_weights(data):
    model = PartialLabelClassifier(backbone="mlp:8", ema=0.9, epochs=3, random_state=0)
    first = model.fit(*data).predict_proba(data[0])
    np.testing.assert_array_equal(model.fit(*data).predict_proba(data[0]), first)


def test_verbose_speaks_and_the_default_does_not(data, capfd):
    PartialLabelClassifier(epochs=1).fit(*data)
    assert capfd.readouterr() == ("", "")
    PartialLabelClassifier(epochs=1, verbose=True).fit(*data)
    assert "epoch 1/1" in capfd.readouterr().err


# --- randomness -----------------------------------------------------------------------------------


def probabilities_from(random_state, data):
    model = PartialLabelClassifier("ign", epochs=1, random_state=random_state)
    return model.fit(*data).predict_proba(data[0])


@pytest.mark.parametrize("make", [lambda: 3, lambda: np.int64(3), lambda: np.random.RandomState(3)])
def test_result_is_a_function_of_random_state(make, data):
    first, second = probabilities_from(make(), data), probabilities_from(make(), data)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, probabilities_from(4, data))


def test_without_random_state_every_fit_differs(data):
    assert not np.array_equal(probabilities_from(None, data), probabilities_from(None, data))


def test_what_is_no_seed_is_an_error(data):
    with pytest.raises(ValueError, match="seed"):
        probabilities_from("tomorrow", data)


def test_fit_leaves_the_callers_random_numbers_alone(data):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    probabilities_from(0, data)
    torch.testing.assert_close(torch.rand(3), expected)


# --- clone, copy, pickle --------------------------------------------------------------------------


@pytest.mark.parametrize("method", methods.available())
def test_every_method_fits_and_pickles(method, data):
    X, Y = data
    model = PartialLabelClassifier(method, epochs=1, random_state=0)
    model.fit(X, np.maximum(Y, 0) if methods.get(method).reference else Y)
    opened = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(opened.predict_proba(X), model.predict_proba(X))
    assert opened.get_params() == model.get_params()


def test_pickle_keeps_thresholds_and_copies_are_apart(data):
    X, Y = draw(600)
    model = PartialLabelClassifier(epochs=2, hold_out=0.2, random_state=0).fit(X, Y)
    copied = copy.deepcopy(model)
    np.testing.assert_array_equal(copied.predictor_.thresholds, model.thresholds_)
    expected = copied.predict(X)
    model.fit(*data)
    np.testing.assert_array_equal(copied.predict(X), expected)


def test_pickle_made_on_a_gpu_opens_without_one(data, fitted):
    elsewhere = copy.deepcopy(fitted)
    elsewhere.device = "cuda"
    opened = pickle.loads(pickle.dumps(elsewhere))
    assert np.allclose(opened.predict_proba(data[0]), fitted.predict_proba(data[0]), atol=1e-5)


def test_clone_is_not_fitted_and_keeps_parameters(fitted):
    copied = clone(fitted.set_params(options={"momentum": 0.5}))
    assert copied.options == {"momentum": 0.5}
    fitted.set_params(options=None)
    with pytest.raises(NotFittedError):
        copied.predict([[0.0] * 5])


def test_parameters_mean_what_config_means():
    """Same names and defaults, but for the four that suit small tables and scikit-learn better."""
    parameters = inspect.signature(PartialLabelClassifier).parameters
    own = {"verbose", "random_state", "options", "epochs", "backbone", "hold_out"}
    config = partly.Config()
    for name in parameters.keys() - own:
        assert parameters[name].default == getattr(config, name), name


# --- pipelines and searches -----------------------------------------------------------------------


def test_pipeline(data):
    X, Y = data
    model = PartialLabelClassifier(epochs=3, random_state=0)
    pipeline = make_pipeline(StandardScaler(), model).fit(X, Y)
    by_hand = clone(model).fit(StandardScaler().fit_transform(X), Y)
    expected = by_hand.predict_proba(StandardScaler().fit_transform(X))
    np.testing.assert_array_equal(pipeline.predict_proba(X), expected)
    assert pipeline.score(X, Y) == by_hand.score(StandardScaler().fit_transform(X), Y)


@pytest.mark.parametrize(("unknown", "cv"), [(-1, 3), (nan, KFold(3))])
def test_grid_search(unknown, cv, data):
    X, Y = data
    grid = {"method": ["partly", "an"], "learning_rate": [1e-2, 1e-3]}
    model = PartialLabelClassifier(epochs=2, random_state=0)
    search = GridSearchCV(model, grid, cv=cv).fit(X, np.where(Y < 0, unknown, Y))
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.score(X, Y) > 0.5


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("scoring", ["average_precision", "roc_auc", "f1_micro"])
def test_scorers_of_scikit_learn_on_full_labels(labels, scoring):
    X, Y = draw(labels=labels)
    model = PartialLabelClassifier(random_state=0)
    assert (cross_val_score(model, X, Y, cv=3, scoring=scoring) > 0.5).all()


def test_cross_val_predict(data):
    X, Y = data
    model = PartialLabelClassifier(epochs=2, random_state=0)
    assert cross_val_predict(model, X, Y, cv=3).shape == Y.shape
    full = np.maximum(Y, 0)
    assert cross_val_predict(model, X, full, cv=3, method="predict_proba").shape == Y.shape


# --- DataFrames -----------------------------------------------------------------------------------


def test_columns_of_a_frame_name_the_labels(data, fitted):
    X, Y = data
    model = clone(fitted).fit(X, Frame(Y, ["cat", "dog", "owl", 4]))
    assert model.label_names_.tolist() == ["cat", "dog", "owl", "4"]
    np.testing.assert_array_equal(model.predict_proba(X), fitted.predict_proba(X))
    turned = Frame(Y[:, ::-1], [4, "owl", "dog", "cat"])
    assert model.score(X, turned) == model.score(X, Y)
    with pytest.raises(LabelError, match="no column for 1 of 4 labels: cat"):
        model.score(X, Frame(Y, ["bee", "dog", "owl", 4]))


def test_pandas(data, fitted):
    pandas = pytest.importorskip("pandas")
    X, Y = data
    frame = pandas.DataFrame(X, columns=list("abcde"))
    labels = pandas.DataFrame(Y, columns=["cat", "dog", "owl", "bee"])
    missing = labels.astype("Int64").mask(labels < 0)
    for known in (labels, labels.where(labels >= 0), missing, missing.astype(object)):
        model = clone(fitted).fit(frame, known)
        assert model.label_names_.tolist() == ["cat", "dog", "owl", "bee"]
        assert model.feature_names_in_.tolist() == list("abcde")
        np.testing.assert_array_equal(model.predict_proba(frame), fitted.predict_proba(X))
        assert model.score(frame, known[["bee", "owl", "dog", "cat"]]) == fitted.score(X, Y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[list("edcba")])


# --- what is wrong is said ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda Y: Y[:, 0], LabelError, "one column of classes"),
        (lambda Y: Y[:, :1], DataError, "only one label"),
        (lambda Y: Y[:-1], LabelError, "y has 199"),
        (lambda Y: np.full(Y.shape, -1), DataError, "every label is unknown"),
        (lambda Y: np.full(Y.shape, nan), DataError, "every label is unknown"),
        (lambda Y: np.minimum(Y, 0), DataError, "no label is known to be positive"),
        (lambda Y: 2 * Y, LabelError, "mean nothing here.*row 0, column 0"),
        (lambda Y: Y[:, :, None], LabelError, "two dimensions"),
        (lambda Y: Y.astype(str).astype(object) + "?", LabelError, "not numbers"),
        (lambda Y: csr_array(Y), LabelError, "sparse"),
        (lambda Y: None, LabelError, "requires y"),
        (lambda Y: Frame(Y, ["a", "a", "b", "c"]), LabelError, "more than once: a"),
    ],
)
def test_labels_that_cannot_be_used(change, error, words, data):
    X, Y = data
    with pytest.raises(error, match=words):
        PartialLabelClassifier(epochs=1).fit(X, change(np.where(Y == 0, 0, Y)))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"method": "partyl"}, "did you mean 'partly'"),
        ({"options": {"speed": 3}}, "no option speed"),
        ({"epochs": 0}, "epochs must be a whole number above 0"),
        ({"batch_size": 0}, "batch_size must be a whole number above 0"),
        ({"optimiser": "magic"}, "optimiser is one of"),
        ({"expected_positives": 9}, "between 0 and 4"),
        ({"backbone": "resnet50"}, "looks at images"),
    ],
)
def test_parameters_that_make_no_sense(parameters, words, data):
    model = PartialLabelClassifier(**parameters)  # says nothing yet, as scikit-learn wants it
    with pytest.raises(ConfigError, match=words):
        model.fit(*data)


def test_all_problems_of_the_parameters_are_said_at_once(data):
    with pytest.raises(ConfigError) as caught:
        PartialLabelClassifier("nothing", epochs=0, hold_out=2).fit(*data)
    assert len(caught.value.problems) == 3


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_features_that_cannot_be_used(data, fitted):
    X, Y = data
    with pytest.raises(TypeError, match="dense data is required"):
        fitted.predict(csr_array(X))
    with pytest.raises(ValueError, match="3 features"):
        fitted.predict(X[:, :3])
    with pytest.raises(ValueError, match="NaN"):
        fitted.predict(np.where(X > 2, nan, X))
    with pytest.raises(ValueError, match="too large for dtype"):
        PartialLabelClassifier(epochs=1).fit(X * 1e40, Y)


def test_scoring_the_wrong_labels_is_an_error(data, fitted):
    X, Y = data
    for labels in (Y[:, :3], Y[:-1], Y[:, 0]):
        with pytest.raises(PartlyError):
            fitted.score(X, labels)


def test_what_number_of_positives_was_taken_for_true():
    X = np.random.default_rng(0).normal(size=(60, 4))
    Y = np.where(X[:, :3] > 0, 1, 0)
    model = PartialLabelClassifier(epochs=1, expected_positives=1.4).fit(X, np.where(Y, 1, -1))
    assert model.expected_positives_ == pytest.approx(1.4, rel=0.1)
    assert PartialLabelClassifier("an", epochs=1).fit(X, Y).expected_positives_ is None
