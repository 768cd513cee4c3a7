"""How often checkpoints are written, and who decides it."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from torchcaps.train.callbacks import RunCallback, pause
from torchcaps.train.recipe import TrainSection


@pytest.mark.parametrize(
    ("save_every", "took", "seconds"),
    [(15, 0.01, 15), (15, 0.4, 40), (15, 60, 300), (0, 5, 0)],
    ids=["quick", "a hundredth of the time", "a disk that hung once", "after every epoch"],
)
def test_seconds_between_two_checkpoints(save_every, took, seconds):
    assert pause(save_every, took) == pytest.approx(seconds)


def test_what_was_decided_for_an_epoch_stays_decided(tmp_path, monkeypatch):
    callback = RunCallback(tmp_path, TrainSection(), 5, Console(quiet=True), "accuracy")
    now = [100.0]
    monkeypatch.setattr("torchcaps.train.callbacks.time.perf_counter", lambda: now[0])
    callback._next_save = 101.0
    best, line = ({"val_accuracy": each, "val_loss": 0.5} for each in (0.9, 0.8))
    state = SimpleNamespace(step=5, history=[best, line])
    assert not callback.needs_weights(state, line)
    now[0] = 102.0
    assert not callback.needs_weights(state, line)  # decided before, for this step
    state.step = 10
    assert callback.needs_weights(state, line)  # a checkpoint is due
    now[0], state.step = 100.5, 15
    state.history.append({"val_accuracy": 0.95, "val_loss": 0.4})
    assert callback.needs_weights(state, state.history[-1])
    assert not callback.needs_weights(SimpleNamespace(step=20, history=[]), {})
