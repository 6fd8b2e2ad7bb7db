"""The end of a run: validate, score, export, draw samples, report.

None of it takes more network evaluations than training did, so that three steps of a large network are not followed by
an hour of sampling.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch

from blackout.family import Draw, Family
from blackout.files import save_picture, write_json
from blackout.programs.curves import save_curves
from blackout.programs.pictures import Trajectory
from blackout.programs.provenance import provenance
from blackout.programs.report import command, save_report
from blackout.programs.results import save_samples
from blackout.training.callbacks import draw_first
from blackout.training.data_module import SourceDataModule
from blackout.training.export import export_model
from blackout.training.lightning_module import TrainingModule
from blackout.training.loggers import log_results
from blackout.training.metrics_csv import MetricsCSV
from blackout.training.model import Model
from blackout.training.scoring import Scores

_SAMPLES = 64
_FEWEST_STEPS = 10
_SHOWN = 4
"""Samples whose way is shown."""


def close(
    trainer: pl.Trainer, module: TrainingModule, data_module: SourceDataModule, run: Path, family: Family
) -> None:
    """Validate and score the final model, export it, draw the closing samples and write metrics.json."""
    model, began = module.model, time.perf_counter()
    for logger in trainer.loggers:
        if isinstance(logger, MetricsCSV):
            logger.close(trainer.global_step)
    budget = trainer.global_step * trainer.accumulate_grad_batches * data_module.batch_size
    scorer = keep_affordable_scorer(trainer, family.draw(model, {}).nfe, budget)
    values = validate(trainer, module, data_module, budget)
    if not trainer.is_global_zero:
        return
    model.before_export(budget)
    export_model(model, run / "model", values | ({} if scorer is None else scorer.values))
    draw = closing_draw(family, model, budget)
    more = draw_samples(draw, run / "samples")
    values |= more.pop("values", {})
    report: dict[str, Any] = {"values": values, "training_steps": trainer.global_step, "closing_grid_steps": draw.steps}
    report |= {"command": command(), "sampler": dict(family.draw(model, {}).description), **more}
    if scorer is not None:
        values |= scorer.values
        report |= scorer.provenance
    report |= provenance(model.device, began, data_module.source)
    write_json(report, run / "metrics.json")
    save_curves(run / "metrics.csv", run / "curves.png")
    page = save_report(run)
    log_results(trainer, values, run)
    for name, value in values.items():
        if not name.startswith("share_"):
            print(f"{name}: {value:.4f}")
    print(f"samples: {run / 'samples' / 'final.png'}\nmodel:   {run / 'model'}\nreport:  {page}")


def keep_affordable_scorer(trainer: pl.Trainer, nfe: int, budget: int) -> Scores | None:
    """Leave out the scoring of samples where it would exceed the budget of network evaluations."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    scorers = [callback for callback in callbacks if isinstance(callback, Scores)]
    affordable = [scorer for scorer in scorers if scorer.num_samples * nfe <= budget]
    for scorer in scorers:
        if scorer not in affordable:
            callbacks.remove(scorer)
    return affordable[0] if affordable else None


def validate(
    trainer: pl.Trainer, module: TrainingModule, data_module: SourceDataModule, budget: int
) -> dict[str, float]:
    """Validation metrics of the final model, on as many batches as the budget allows."""
    allowed = max(1, budget // (data_module.batch_size * module.model.validation_cost))
    if allowed < trainer.limit_val_batches or isinstance(trainer.limit_val_batches, float):
        trainer.limit_val_batches = min(allowed, len(data_module.val_dataloader()))
    (metrics,) = trainer.validate(module, data_module, verbose=False) or [{}]
    return {name: float(value) for name, value in metrics.items()}


def closing_draw(family: Family, model: Model, budget: int) -> Draw:
    """The `Draw` of the closing samples: that of previews, in fewer steps where the budget demands it."""
    draw, nfe = family.preview(model, _SAMPLES), family.draw(model, {}).nfe
    steps = min(draw.steps, max(_FEWEST_STEPS, draw.steps * budget // (max(1, nfe) * _SAMPLES)))
    return draw if steps == draw.steps else family.preview(model, _SAMPLES, steps)


def draw_samples(draw: Draw, directory: Path) -> dict[str, Any]:
    """Write the closing samples to final.npz and, where the family has pictures, final.png and the way there."""
    trajectory = Trajectory(_SHOWN)
    samples = draw_first(draw, _SAMPLES, seed=0, watch=trajectory.add)
    trajectory.save(draw, directory)
    save_picture(draw.picture(samples), directory / "final.png")
    save_samples(samples, directory / "final.npz", draw.names, draw.about(seed=0))
    outputs = draw.outputs(seed=0)
    if outputs is None:
        return {}
    outputs.update(samples, torch.arange(_SAMPLES))
    return outputs.write(directory)
