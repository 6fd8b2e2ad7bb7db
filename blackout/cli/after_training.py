"""The end of a run: the final model is chosen on validation data, tested, exported and sampled.

It takes no more network evaluations than training did, so that three steps of a large network are
not followed by an hour of sampling. What does not fit into this budget is left out, and a line says
how to get it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytorch_lightning as pl
import torch

from blackout.cli.finished_runs import add_earlier_results
from blackout.cli.metrics_file import merge_reports, write_baselines, write_scores
from blackout.cli.pictures import Trajectory, print_run
from blackout.cli.provenance import command_line, provenance
from blackout.cli.report_page import LivePage
from blackout.cli.score import save_figure
from blackout.comparisons import SampleValues, compare_with_baselines, num_compared_samples
from blackout.config.settings import is_overridden
from blackout.errors import escaped
from blackout.pictures import save_picture
from blackout.protocols import Draw, Source, Split
from blackout.sample_writer import sample_file
from blackout.training.callbacks import Scores, draw_first
from blackout.training.checkpoint_callback import Checkpoints
from blackout.training.data_module import SourceDataModule
from blackout.training.export import export_model
from blackout.training.family import ComponentFamily
from blackout.training.lightning_module import TrainingModule, test_name
from blackout.training.loggers import log_results
from blackout.training.model import Model, evaluating

Callback = TypeVar("Callback", bound=pl.Callback)

NUM_SAMPLES = 64  # drawn at the end of a run
NUM_SAMPLES_SHORT_RUN = 8  # of a run that was trained on fewer than `NUM_SAMPLES` samples
NUM_TRAJECTORIES = 4  # samples whose states from noise to data are shown
MIN_STEPS = 10  # of the sampler, whatever the budget


def finish_run(
    trainer: pl.Trainer,
    module: TrainingModule,
    run: Path,
    family: ComponentFamily,
    left_out: list[str],
) -> None:
    """Choose the final model, test it once, export it, draw samples and write metrics.json.

    Args:
        trainer: that has trained the module; every process calls this function.
        module: the trained one.
        run: the run directory.
        family: of the model.
        left_out: lines about what the budget does not allow; more are added.
    """
    start = time.perf_counter()
    model = module.model
    data = _find_data_module(trainer)
    source = data.source
    trainer.loggers[0].close(trainer.global_step)  # type: ignore[attr-defined]  # metrics.csv

    # 1. The budget: one network evaluation for every sample of every training batch.
    budget = trainer.global_step * trainer.accumulate_grad_batches * data.batch_size
    draw = family.draw(model, {})
    scorer = keep_affordable_scorer(trainer, draw.nfe, budget, run, left_out)

    # 2. The best weights, by validation data, where that is asked for.
    val_metrics = validate(trainer, module, budget, left_out)
    for checkpoints in _find_callbacks(trainer, Checkpoints):
        best_step = checkpoints.restore_best(module, val_metrics)
        if best_step is not None:
            last_metrics = val_metrics
            val_metrics = validate(trainer, module, budget, [])
            comparison = ", ".join(
                f"{name} {val_metrics[name]:.4f} ({last_metrics[name]:.4f} at the end)"
                for name in model.validation_metrics
            )
            left_out.append(
                f"training after step {best_step:,}, which is best on validation data: {comparison}"
            )

    # 3. Test metrics of the final model, and scores of its samples.
    metrics = test(trainer, module, budget, left_out) | val_metrics
    samples = collect_sample_values(module, source, family)
    scores: dict[str, float] = {}
    score_report: dict[str, Any] = {}
    if scorer is not None:
        scores = scorer.values
        score_report = scorer.provenance | scorer.reference_scores(source, model.device)
    if not trainer.is_global_zero:
        return
    export_model(model, run / "model", metrics | scores)

    # 4. Samples, in fewer steps where the budget demands it.
    num_samples = NUM_SAMPLES if budget >= NUM_SAMPLES else NUM_SAMPLES_SHORT_RUN
    preview = affordable_preview(family, model, draw.nfe, num_samples, budget)
    outputs = write_samples(preview, run / "samples", num_samples)

    # 5. Comparison with baselines, where the run has seen all training data.
    size = source.size("train") or 0
    is_short = budget < size
    baselines = family.baselines(
        source, num_compared_samples(samples), {"few": budget} if is_short else {}
    )
    if is_short and baselines and not any(baselines.values()):
        left_out.append(f"baselines: the run has seen {budget:,} of {size:,} training samples")

    comparison_report = compare_with_baselines(samples, baselines)

    # 6. metrics.json, loggers and the report page.
    for line in left_out:
        print(f"left out: {line}")
    values = metrics | outputs.pop("values", {}) | scores
    run_report = {
        "values": values,
        "training_steps": trainer.global_step,
        "preview_steps": preview.steps,
        "command": command_line(),
        "sampler": dict(draw.description),
    }
    report = merge_reports(
        run_report,
        outputs,
        score_report,
        comparison_report,
        {"left_out": left_out, **provenance(model.device, start, source)},
    )
    write_baselines(baselines, comparison_report["comparisons"], run)
    write_scores(add_earlier_results(report, run), run / "metrics.json", preview.references)
    if scorer is not None:
        save_figure(scorer.accumulated, run / "samples" / "final")
    LivePage(run).finish()
    log_results(trainer, values, run)
    print_run(run, source.facts.get("shape", ()))
    print(f"samples: {escaped(run / 'samples' / 'final.png')}")
    print(f"model:   {escaped(run / 'model')}")
    print(f"report:  {escaped(run / 'report.html')}")


def drop_unaffordable_scores(
    trainer: pl.Trainer, nfe: int, batch_size: int, run: Path
) -> list[str]:
    """Remove the scoring of samples that was not asked for and would cost more than the run.

    Then neither its networks nor its references are loaded. Scores that are also due during
    training stay.

    Args:
        trainer: of the run that is about to start.
        nfe: network evaluations per sample.
        batch_size: of training.
        run: the run directory.

    Returns:
        A line about what was removed; none if nothing was.
    """
    left_out: list[str] = []
    intervals = [scorer.every_n_steps for scorer in _find_callbacks(trainer, Scores)]
    is_due_at_end_only = all(every is None or every > trainer.max_steps for every in intervals)
    if is_due_at_end_only and not is_overridden("metrics"):
        budget = trainer.max_steps * trainer.accumulate_grad_batches * batch_size
        keep_affordable_scorer(trainer, nfe, budget, run, left_out)
    return left_out


def keep_affordable_scorer(
    trainer: pl.Trainer, nfe: int, budget: int, run: Path, left_out: list[str]
) -> Scores | None:
    """Return the callback that scores samples; remove it where it would exceed the budget.

    Args:
        trainer: of the run.
        nfe: network evaluations per sample.
        budget: network evaluations that scoring may take.
        run: the run directory.
        left_out: a line is added for what is removed.
    """
    for scorer in _find_callbacks(trainer, Scores):
        num_samples = scorer.num_samples
        if scorer.missing is None and num_samples * nfe <= budget:
            return scorer
        trainer.callbacks.remove(scorer)  # type: ignore[attr-defined]
        reason = scorer.missing
        if reason is None:
            reason = (
                f"{num_samples:,} samples of {nfe} network evaluations would cost more than the "
                f"training, of {budget:,}: "
                f"sample.py ckpt={run} num_samples={num_samples} evaluate=true"
            )
            if budget >= 2 * nfe:
                reason += f", or callbacks.scores.num_samples={budget // nfe}"
        left_out.append(f"scores of samples: {reason}")
    return None


def validate(
    trainer: pl.Trainer, module: TrainingModule, budget: int, left_out: list[str]
) -> dict[str, float]:
    """Return `val/...` metrics, as far as the budget allows; none without validation data."""
    module.model.calibrate(budget)
    data = _find_data_module(trainer)
    num_batches = len(data.val_dataloader())
    if num_batches == 0 or trainer.limit_val_batches == 0:
        return {}
    trainer.limit_val_batches = affordable_batches(
        "val", trainer.limit_val_batches, num_batches, max_batches(module, data, budget), left_out
    )
    (metrics,) = trainer.validate(module, data, verbose=False) or [{}]
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU after validation
    return add_standard_errors(
        metrics, {name: name for name in module.model.validation_metrics}, module
    )


def test(
    trainer: pl.Trainer, module: TrainingModule, budget: int, left_out: list[str]
) -> dict[str, float]:
    """Return `test/...` metrics of the final model on test data, as far as the budget allows."""
    data = _find_data_module(trainer)
    num_batches = len(data.test_dataloader())
    trainer.limit_test_batches = affordable_batches(
        "test", trainer.limit_test_batches, num_batches, max_batches(module, data, budget), left_out
    )
    (metrics,) = trainer.test(module, data, verbose=False) or [{}]
    module.to(trainer.strategy.root_device)  # Lightning moves it to the CPU after testing
    test_metrics = {test_name(name): name for name in module.model.validation_metrics}
    return add_standard_errors(metrics, test_metrics, module)


def collect_sample_values(
    module: TrainingModule, source: Source, family: ComponentFamily
) -> dict[str, SampleValues]:
    """Return test metrics sample by sample, by name, for the comparison with baselines.

    Every process must call it.
    """
    model = module.model
    values_by_name: dict[str, SampleValues] = {}
    with torch.no_grad(), evaluating(model.averaged):
        for mean_name in model.validation_metrics:
            index, values = module.mean(mean_name).samples
            if len(index) == 0:
                continue
            name = test_name(mean_name)
            samples = family.sample_values(model, source, name, index, values)
            if samples is not None:
                values_by_name[name] = samples
    return values_by_name


def max_batches(module: TrainingModule, data: SourceDataModule, budget: int) -> int:
    """Return the number of held-out batches, at least 1, that a budget of evaluations allows."""
    return max(1, budget // (data.batch_size * module.model.validation_cost))


def affordable_batches(
    split: Split, limit: int | float, num_batches: int, max_affordable: int, left_out: list[str]
) -> int:
    """Return the number of held-out batches that are evaluated at the end.

    Args:
        split: "val" or "test".
        limit: the Trainer's: a number of batches, or a share of them.
        num_batches: of the split.
        max_affordable: number of batches that the budget allows.
        left_out: a line is added where the budget leaves batches out.
    """
    num_requested = min(limit, num_batches) if isinstance(limit, int) else int(limit * num_batches)
    if max_affordable < num_requested:
        left_out.append(
            f"{split}/ metrics are of {max_affordable} of {num_batches} batches: all would cost "
            "more than the training; sample.py evaluate=true takes more"
        )
    return min(num_requested, max_affordable)


def add_standard_errors(
    metrics: Mapping[str, float], mean_names: Mapping[str, str], module: TrainingModule
) -> dict[str, float]:
    """Return metrics as plain numbers, with the standard errors `<name>_error` of bits.

    Args:
        metrics: by the names under which they were logged.
        mean_names: name under which a mean was logged -> its name in the module.
        module: that has computed them.
    """
    values = {name: float(value) for name, value in metrics.items()}
    for logged_name, mean_name in mean_names.items():
        # Bits are means over independent samples, for which this error holds.
        if logged_name in metrics and "bits" in logged_name:
            error = module.mean(mean_name).error
            if math.isfinite(error):
                values[f"{logged_name}_error"] = error
    return values


def affordable_preview(
    family: ComponentFamily, model: Model, nfe: int, num_samples: int, budget: int
) -> Draw:
    """Return the draw of the last samples, with as many sampler steps as the budget allows."""
    preview = family.preview(model, num_samples)
    affordable_steps = preview.steps * budget // (max(1, nfe) * num_samples)
    steps = min(preview.steps, max(MIN_STEPS, affordable_steps))
    return preview if steps == preview.steps else family.preview(model, num_samples, steps)


def write_samples(draw: Draw, directory: Path, num_samples: int) -> dict[str, Any]:
    """Draw the samples of the trained model and write them: file, picture and family's outputs.

    final.npz has the samples and final.png their picture, where the family has pictures. States on
    the way there and the family's own files are in the folder `final`, since `sample.py` writes
    files of the same names into `directory`.

    Returns:
        What the family's outputs say for metrics.json.
    """
    folder = directory / "final"
    trajectory = Trajectory(NUM_TRAJECTORIES)
    samples = draw_first(draw, num_samples, seed=0, watch=trajectory.add)
    trajectory.save(draw, folder)
    save_picture(draw.picture(samples), directory / "final.png")
    file = directory / "final.npz"
    with sample_file(file, num_samples, draw.names, draw.metadata(seed=0)) as write:
        write(samples)
    outputs = draw.outputs(seed=0)
    if outputs is None:
        return {}
    outputs.update(samples, torch.arange(num_samples))
    folder.mkdir(exist_ok=True)
    return outputs.write(folder)


def _find_data_module(trainer: pl.Trainer) -> SourceDataModule:
    """Return the data module of a run, which Lightning sets without an annotation."""
    data: SourceDataModule = trainer.datamodule  # type: ignore[attr-defined]
    return data


def _find_callbacks(trainer: pl.Trainer, kind: type[Callback]) -> list[Callback]:
    """Return the callbacks of a class, of which Lightning's list has no annotation."""
    callbacks: list[pl.Callback] = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, kind)]
