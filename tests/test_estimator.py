"""The estimator of scikit-learn: its own checks, and what pipelines, searches and pickles need."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import torchcaps
from torchcaps.errors import UserError
from torchcaps.estimator import CapsClassifier, probabilities

TINY = {"channels": 8, "types": 4, "class_dim": 4, "iterations": 2}


def tiny(**changes):
    return CapsClassifier(**{"epochs": 4, "lr": 0.01, "random_state": 0, "options": TINY, "device": "cpu", **changes})


@parametrize_with_checks([tiny(epochs=8, batch_size=16)])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(n_class=3, return_X_y=True)
    return X[:180], y[:180]


def test_rows_images_and_channels_last_give_the_same_answers(digits):
    X, y = digits
    rows = tiny(image_shape=(8, 8)).fit(X, y)
    assert rows.image_shape_ == (1, 8, 8)
    assert rows.value_range_ == (0, 16)
    assert rows.score(X, y) > 0.9
    for shape in ((-1, 8, 8), (-1, 1, 8, 8), (-1, 8, 8, 1)):
        images = X.reshape(shape)
        np.testing.assert_allclose(tiny().fit(images, y).predict_proba(images), rows.predict_proba(X), atol=1e-5)


def test_it_is_trained_by_fit(digits):
    X, y = digits
    fitted = torchcaps.fit(
        "capsnet_small",
        X.reshape(-1, 8, 8) / 16,
        y,
        epochs=2,
        batch_size=32,
        validation=0.2,
        seed=7,
        device="cpu",
        **{"kernel": 3, "primary_kernel": 3, "stride": 1, **TINY},
    )
    ours = tiny(image_shape=(8, 8), epochs=2, lr=1e-3, validation=0.2, random_state=7).fit(X, y)
    assert all(torch.equal(a, b) for a, b in zip(ours.model_.parameters(), fitted.model.parameters()))
    assert [line["val_accuracy"] for line in ours.history_] == [line["val_accuracy"] for line in fitted.history]


def test_labels_may_be_words_and_probabilities_are_in_their_order(digits):
    X, y = digits
    words = np.array(["zero", "one", "two"])[y]
    found = tiny(image_shape=(8, 8)).fit(X, words)
    assert found.classes_.tolist() == ["one", "two", "zero"]
    assert found.model_.class_names == ("one", "two", "zero")
    assert (found.classes_[found.predict_proba(X).argmax(1)] == found.predict(X)).all()
    assert (found.predict(X) == words).mean() > 0.9


def test_probabilities_are_the_odds_of_the_lengths():
    lengths = torch.tensor([[0.9, 0.1, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)
    odds = torch.tensor([9, 1 / 9, 1])
    found = probabilities(lengths)
    torch.testing.assert_close(found[0], odds.double() / odds.sum(), rtol=1e-6, atol=0)
    assert found.isfinite().all()
    assert found[1, 0] > 0.999
    torch.testing.assert_close(found.sum(1), torch.ones(2, dtype=torch.float64))


def test_probabilities_of_a_softmax_are_its_own(digits):
    X, y = digits
    found = tiny(model="baseline_cnn", image_shape=(8, 8), epochs=1, options=None).fit(X, y)
    images = torch.tensor(X.reshape(-1, 1, 8, 8) / 16).float()
    expected = found.model_(images).lengths.detach().numpy()
    np.testing.assert_allclose(found.predict_proba(X), expected, atol=1e-6)


def test_a_random_state_of_numpy_decides_on_the_weights(digits):
    one, two, three = (
        tiny(image_shape=(8, 8), epochs=1, random_state=np.random.RandomState(seed)).fit(*digits) for seed in (1, 1, 2)
    )
    assert np.array_equal(one.predict_proba(digits[0]), two.predict_proba(digits[0]))
    assert not np.array_equal(one.predict_proba(digits[0]), three.predict_proba(digits[0]))


def test_a_pickle_holds_safetensors_and_no_module(digits):
    found = tiny(image_shape=(8, 8), epochs=1).fit(*digits)
    data = pickle.dumps(found)
    assert b"__metadata__" in data  # the head of a .safetensors file
    assert not any(name in data for name in (b"torch.nn", b"_rebuild_tensor", b"CapsNet\x94"))
    again = pickle.loads(data)
    assert np.array_equal(again.predict_proba(digits[0]), found.predict_proba(digits[0]))
    assert again.history_ == found.history_
    assert not hasattr(clone(again), "model_")


def test_pipelines_searches_and_cross_validation(digits):
    X, y = digits
    chain = make_pipeline(MinMaxScaler(), tiny(image_shape=(8, 8), epochs=3))
    search = GridSearchCV(chain, {"capsclassifier__lr": [1e-5, 0.01]}, cv=2).fit(X, y)
    assert search.best_params_ == {"capsclassifier__lr": 0.01}
    assert cross_val_score(chain, X, y, cv=2, scoring="roc_auc_ovr").mean() > 0.9


def test_values_of_bytes_need_no_scaling(digits):
    X, y = digits
    found = tiny(image_shape=(8, 8), epochs=1).fit((X * 15).astype(np.uint8), y)
    assert found.value_range_ == (0, 255)
    same = tiny(image_shape=(8, 8), epochs=1, value_range=(0, 255)).fit((X * 15).astype(np.float64), y)
    np.testing.assert_allclose(found.predict_proba(X.astype(np.uint8)), same.predict_proba(X.astype(np.uint8)))


@pytest.mark.parametrize(
    ("changes", "shape", "message"),
    [
        ({"image_shape": (8, 9)}, (6, 64), "does not fit rows of 64 values"),
        ({"model": "efficient_capsnet", "options": None}, (6, 64), "give image_shape"),
        ({"model": torch.nn.Linear(2, 2)}, (6, 64), "torchcaps.fit trains modules"),
        ({"model": "segcaps", "options": None}, (6, 16, 16), "segcaps"),
        ({"value_range": (1, 1)}, (6, 8, 8), "low < high"),
        ({}, (6, 8, 8, 2), "move the last axis"),
    ],
    ids=str,
)
def test_mistakes_name_the_way_out(changes, shape, message):
    X = np.random.default_rng(0).random(shape)
    with pytest.raises(UserError, match=message):
        tiny(**changes).fit(X, np.arange(6) % 2)


def test_images_of_another_size_are_refused(digits):
    found = tiny(epochs=1).fit(digits[0].reshape(-1, 8, 8), digits[1])
    with pytest.raises(UserError, match="resize them"):
        found.predict(np.zeros((2, 8, 9)))
