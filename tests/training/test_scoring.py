"""The Scores callback measures the averaged weights on any number of processes, and only reads."""

import csv
import gc
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.loggers.logger import DummyLogger

from benchmarks.wandb_file import read_run
from blackout import load_model
from blackout.cli.after_training import drop_unaffordable_scores, keep_affordable_scorer
from blackout.data import digits
from blackout.diffusion.heads import ScaledHead
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampler import Sampler
from blackout.errors import Unobtainable, UserError
from blackout.evaluation import ImageScorer
from blackout.evaluation.extractors import Classifier
from blackout.networks import CountNetwork, ResidualMLP, StandardisedInputs
from blackout.training.callbacks import Scores, score_samples
from blackout.training.data_module import SourceDataModule
from blackout.training.lightning_module import TrainingModule
from blackout.training.model import Model
from blackout.training.optimization import Optimization
from tests import processes
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.evaluation.networks import colour_data, tiny_extractor

SAMPLES = 64
DATA = colour_data()
TRAINER = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


def make_module(seed=0):
    torch.manual_seed(seed)
    body = ResidualMLP(DATA.shape, width=16, depth=1, dropout=0.3)
    network = CountNetwork(body, StandardisedInputs(DATA.mean, DATA.std))
    mean = DATA.train.float().mean(0)
    model = BlackoutDiffusion(
        network,
        ScaledHead(DATA.mean),
        PureDeath(255),
        mean,
        sampler=Sampler(num_steps=4, batch_size=16),
        ema_decay=0.9,
    )
    # an average that differs from the raw weights
    for number, parameter in enumerate(model.ema.parameters()):
        generator = torch.Generator().manual_seed(number)
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    return TrainingModule(model, Optimization(lr=0.01))


@pytest.fixture
def scorer(tmp_path):
    return ImageScorer(tiny_extractor, ["fd", "is", "kd", "prdc"], "train", 32, tmp_path)


def state(module):
    """Return everything that scoring could change."""
    return {
        "weights": {name: value.clone() for name, value in module.state_dict().items()},
        "modes": [part.training for part in module.modules()],
        "gradients": torch.is_grad_enabled(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state()[1].tolist(),  # noqa: NPY002
        "python": random.getstate(),
    }


def states_are_equal(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(states_are_equal(a[name], b[name]) for name in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


class Watched(Scores):
    """Scores of a module with parts in mixed modes, which compare its state before and after."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.undisturbed = []

    def on_validation_epoch_end(self, trainer, pl_module):
        modes = {part: part.training for part in pl_module.modules()}
        for number, part in enumerate(pl_module.modules()):
            part.training = number % 3 == 0
        before = state(pl_module)
        super().on_validation_epoch_end(trainer, pl_module)
        self.undisturbed.append(states_are_equal(before, state(pl_module)))
        for part, mode in modes.items():
            part.training = mode


def trained(*callbacks):
    module = make_module()
    trainer = pl.Trainer(
        **TRAINER,
        max_steps=6,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        callbacks=list(callbacks),
        enable_checkpointing=False,
    )
    trainer.fit(module, SourceDataModule(DATA, 50))
    return module


def test_scoring_leaves_everything_as_it_was(scorer):
    scores = Watched(scorer, SAMPLES, every_n_steps=2)
    module = trained(scores)
    assert scores.undisturbed == [True] * 3 and scores.values["frechet_distance_tiny"] > 0
    assert states_are_equal(module.state_dict(), trained().state_dict())


def test_scores_are_those_of_the_averaged_weights_and_the_seed(scorer):
    module = make_module()
    scores = Scores(scorer, SAMPLES, seed=5)
    pl.Trainer(**TRAINER, callbacks=[scores]).test(
        module, SourceDataModule(DATA, 50), verbose=False
    )

    def values(module, seed=5):
        return score_samples(scorer.begin(DATA, SAMPLES), module.model.batches, seed)

    assert scores.values == values(module) and scores.provenance["seed"] == 5
    assert {
        "frechet_distance_tiny",
        "is_tiny",
        "kernel_distance_tiny",
        "precision_tiny",
    } <= scores.values.keys()
    assert values(module, 6) != scores.values
    for parameter in module.model.network.parameters():
        parameter.data.zero_()
    assert values(module) == scores.values
    for parameter in module.model.ema.parameters():
        parameter.data.zero_()
    assert values(module) != scores.values


@pytest.mark.parametrize("every, expected_steps", [(None, []), (2, [2, 4, 6]), (4, [4])])
def test_scores_are_computed_at_the_requested_steps(scorer, every, expected_steps):
    scored_steps = []

    class Noted(Scores):
        def on_validation_epoch_end(self, trainer, pl_module):
            self.values = {}
            super().on_validation_epoch_end(trainer, pl_module)
            scored_steps.extend([trainer.global_step] if self.values else [])

    trained(Noted(scorer, SAMPLES, every_n_steps=every))
    assert scored_steps == expected_steps


@pytest.mark.parametrize("every, expected_steps", [(None, []), (2, [2, 4]), (3, [3])])
def test_without_validation_data_scores_are_computed_between_steps(scorer, every, expected_steps):
    logged = {}

    class Noted(DummyLogger):
        def log_metrics(self, metrics, step=None):
            if "frechet_distance_tiny" in metrics:
                logged[step + 1] = metrics["frechet_distance_tiny"]

    data_without_validation = replace(DATA, val=torch.empty(0))
    scores = Scores(scorer, SAMPLES, every_n_steps=every)
    trainer = pl.Trainer(
        **{**TRAINER, "logger": Noted()},
        max_steps=6,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        use_distributed_sampler=False,
        callbacks=[scores],
        enable_checkpointing=False,
    )
    trainer.fit(module := make_module(), SourceDataModule(data_without_validation, 50))
    assert list(logged) == expected_steps and all(value > 0 for value in logged.values())
    assert states_are_equal(module.state_dict(), trained().state_dict())


@pytest.mark.deep
def test_two_processes_train_one_run_and_score_as_one(tmp_path):
    options = ("metrics.scores=[fd,is,kd]", "callbacks.scores.num_samples=40")
    outcome = processes.run_distributed(
        "train",
        *TINY,
        *options,
        "trainer.max_steps=6",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "trainer.strategy=ddp",
        "sampler.batch_size=10",
        "logger=wandb",
        "logger.wandb.mode=offline",
        "sampler.num_steps=4",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert outcome.returncode == 0, outcome.stderr
    directory = tmp_path / "digits" / "a"
    report = json.loads((directory / "metrics.json").read_text())
    model = load_model(directory)
    scorer = digits_scorer(["fd", "is", "kd"])
    alone = score_samples(scorer.begin(digits(), 40), model.batches, 0)
    # networks round differently for batches of other sizes
    assert {name: report["values"][name] for name in alone} == pytest.approx(alone, rel=1e-4)
    (folder,) = directory.glob("wandb/offline-run-*")
    offline_run = read_run(folder)
    assert (
        offline_run.exit_code == 0
        and offline_run.summary["frechet_distance_digits"]
        == report["values"]["frechet_distance_digits"]
    )


def digits_scorer(scores):
    return ImageScorer(lambda: Classifier(digits), scores, "train")


@pytest.mark.deep
@pytest.mark.parametrize("mode, extreme", [("min", min), ("max", max)])
def test_the_best_checkpoint_by_a_score_is_the_best(run, tmp_path, mode, extreme):  # noqa: F811
    outcome = run(
        "train",
        *TINY,
        "metrics.scores=[fd]",
        "callbacks.scores.num_samples=100",
        "callbacks.scores.every_n_steps=2",
        "callbacks.checkpoints.monitor=frechet_distance_digits",
        f"callbacks.checkpoints.mode={mode}",
        "trainer.max_steps=8",
        "ema_decay=0.0",
        "optimizer.lr=0.1",
        "optimizer.warmup_steps=1",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert outcome.code == 0, outcome.err
    directory = tmp_path / "digits" / "a"
    rows = list(csv.DictReader((directory / "metrics.csv").open()))
    scores = {
        int(row["step"]) + 1: float(row["frechet_distance_digits"])
        for row in rows
        if row["frechet_distance_digits"]
    }
    scores.pop(9, None)  # of the finished run: no checkpoint is saved then
    assert sorted(scores) == [2, 4, 6, 8]
    best = extreme(scores, key=scores.__getitem__)
    path = directory / "checkpoints" / "best.ckpt"
    assert torch.load(path, weights_only=True)["global_step"] == best
    model = load_model(path)
    repeated = score_samples(digits_scorer(["fd"]).begin(digits(), 100), model.batches, 0)
    assert repeated["frechet_distance_digits"] == pytest.approx(scores[best], rel=1e-4)


@pytest.mark.deep
def test_memory_stays_flat_while_many_samples_are_scored(scorer):
    class Many:
        """Draw of random images that records the memory of tensors early and late."""

        def batches(self, indices, seed):
            self.held = []
            for number, batch in enumerate(indices.split(100)):
                yield (
                    batch,
                    {
                        "samples": torch.randint(
                            0, 256, (len(batch), *DATA.shape), dtype=torch.uint8
                        )
                    },
                )
                if number in (2, 59):
                    self.held.append(tensor_bytes())

    draw = Many()
    score_samples(scorer.begin(DATA, 6000), draw.batches, 0)
    early, late = draw.held
    # less if tensors of earlier tests are freed meanwhile
    assert late <= early, draw.held


def tensor_bytes():
    storages = (
        value.untyped_storage() for value in gc.get_objects() if type(value) is torch.Tensor
    )
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def test_scores_that_no_validation_meets_are_refused(scorer):
    with pytest.raises(UserError, match="every_n_steps=7 must be a multiple of 2"):
        trained(Scores(scorer, SAMPLES, every_n_steps=7))


def test_scores_that_cost_more_than_training_are_left_out(scorer, tmp_path):
    trainer = pl.Trainer(**TRAINER, callbacks=[scores := Scores(scorer, 40)])
    left_out = []
    assert keep_affordable_scorer(trainer, 10, 400, tmp_path, left_out) is scores and not left_out
    assert (
        keep_affordable_scorer(trainer, 10, 399, tmp_path, left_out) is None
        and scores not in trainer.callbacks
    )
    (line,) = left_out
    assert "40 samples of 10 network evaluations would cost more than the training, of 399" in line
    assert (
        f"sample.py ckpt={tmp_path} num_samples=40 evaluate=true, "
        "or callbacks.scores.num_samples=39" in line
    )


def test_more_samples_are_scored_at_the_end_than_between(scorer, monkeypatch):
    scores = Scores(
        scorer, 2 * SAMPLES, every_n_steps=4, num_samples_between=SAMPLES, num_steps_between=2
    )
    steps = []
    batches = BlackoutDiffusion.batches

    def record_steps(model, *arguments, sampler=None, **options):
        steps.append((sampler or model.sampler).num_steps)
        return batches(model, *arguments, sampler=sampler, **options)

    monkeypatch.setattr(BlackoutDiffusion, "batches", record_steps)
    module = make_module()
    data = SourceDataModule(DATA, 50)
    trainer = pl.Trainer(
        **TRAINER,
        max_steps=4,
        val_check_interval=2,
        check_val_every_n_epoch=None,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        callbacks=[scores],
        enable_checkpointing=False,
    )
    trainer.fit(module, data)
    assert scores.provenance["num_samples"] == SAMPLES
    trainer.validate(module, data, verbose=False)
    assert scores.provenance["num_samples"] == SAMPLES
    trainer.test(module, data, verbose=False)
    assert scores.provenance["num_samples"] == 2 * SAMPLES
    assert steps == [2, 2, 2, 4]  # the check before training, two validations, the test


def test_families_without_a_choice_of_steps_refuse_it_before_training(scorer, monkeypatch):
    monkeypatch.setattr(BlackoutDiffusion, "validation_batches", Model.validation_batches)
    with pytest.raises(UserError, match="num_steps_between is for diffusion models"):
        trained(Scores(scorer, SAMPLES, every_n_steps=2, num_steps_between=2))


class Nowhere:
    """A scorer whose weights can be had nowhere."""

    def begin(self, source, number, device, split):
        raise Unobtainable("fetch the weights and put them at /there")


def test_a_scorer_without_weights_is_skipped_unless_it_is_required(tmp_path, capsys):
    scores = Scores(Nowhere(), 40, every_n_steps=2, required=False)
    trained(scores)
    assert scores.values == {} and capsys.readouterr().out.count("put them at /there") == 1
    trainer = pl.Trainer(**TRAINER, callbacks=[scores])
    left_out = []
    assert keep_affordable_scorer(trainer, 1, 10**6, tmp_path, left_out) is None
    assert left_out == ["scores of samples: fetch the weights and put them at /there"]
    with pytest.raises(Unobtainable):
        trained(Scores(Nowhere(), 40))


def test_scores_due_at_the_end_alone_and_never_affordable_are_not_even_loaded(tmp_path):
    trainer = pl.Trainer(**TRAINER, max_steps=3, callbacks=[Scores(Nowhere(), 400)])
    (line,) = drop_unaffordable_scores(trainer, 10, 50, tmp_path)
    assert "would cost more than the training, of 150" in line
    assert not [callback for callback in trainer.callbacks if isinstance(callback, Scores)]
