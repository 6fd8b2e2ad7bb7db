"""Progress where nobody watches a terminal."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytorch_lightning as pl
import torch

from blackout.cli import sample_batches
from blackout.training import callbacks, step_callbacks


def test_plain_lines_where_the_output_is_no_terminal(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(step_callbacks, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    for name in ("on_train_start", "on_train_batch_end"):
        monkeypatch.setattr(pl.callbacks.RichProgressBar, name, lambda *_: None)
    metrics = {"train/loss": torch.tensor(1.5)}
    trainer = MagicMock(
        global_step=100, max_steps=1000, is_global_zero=True, callback_metrics=metrics
    )
    bar = callbacks.StepProgressBar(seconds=30)
    bar.on_train_start(trainer, None)
    for step in (120, 162, 180, 224):
        trainer.global_step = step
        bar.on_train_batch_start(trainer, None)
    assert capsys.readouterr().out.splitlines() == [
        "step 162 of 1,000, 2 steps/s, about 0:06:59 left; train/loss 1.5",
        "step 224 of 1,000, 2 steps/s, about 0:06:28 left; train/loss 1.5",
    ]


def test_sampling_prints_its_progress(monkeypatch, capsys):
    clock = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(sample_batches, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def batches(watch, redraw_first):
        for number in range(2):
            for step in (1, 2):
                watch(step, 2, None)
            yield torch.tensor([number]), {}

    assert [len(numbers) for numbers, _ in sample_batches.show_progress(batches, 2, 3, None)] == [
        1,
        1,
        0,
    ]
    assert [line for line in capsys.readouterr().out.splitlines() if line] == [
        "step 2 of 6 of all batches, about 0:01:02 left",
        "step 4 of 6 of all batches, about 0:00:31 left",
    ]
