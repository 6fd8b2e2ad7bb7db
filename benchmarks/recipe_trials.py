"""Changes of one setting of a recipe at equal CPU seconds of training.

    python -m benchmarks.recipe_trials train digits --seconds 60 --trainings 2
    python -m benchmarks.recipe_trials judge digits --trainings 2 --split test
    python -m benchmarks.recipe_trials train mnist --seconds 250
    python -m benchmarks.recipe_trials judge mnist --guidance 1 1.5

The data are the 8x8 digits with their default recipe, or MNIST with recipe=blackout/mnist_classes.
`VARIANTS` has the changes; `current` is the recipe as it is. `--variants` chooses among them.

train  trains every variant in turn until the CPU seconds are spent, with the loop of
       benchmarks/peers/budget.py
judge  draws samples, and replaces a table of benchmarks/results/recipe_trials.json; evaluations
       of the network are those of a sample, of which guidance takes two per step

Choices are made on validation images, with a random forest and the classifier of metrics=digits or
metrics=mnist. `--split test` has other judges, which chose nothing: boosted trees, a perceptron of
scikit-learn for the share of recognised samples, and a second classifier for Fréchet distances.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import machine
from benchmarks.peers.budget import Budget, Generator, train
from benchmarks.peers.comparison import resampled_images, summarise
from benchmarks.peers.generators import compose_model
from benchmarks.peers.judges import CONFIDENCE, two_sample_auc
from benchmarks.peers.results import Row, markdown, parse
from benchmarks.range_ends import boosting_auc, classes_of, with_evaluations
from blackout.data import CountData, digits, mnist
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.model import BlackoutDiffusion
from blackout.evaluation import frechet_distance
from blackout.evaluation.extractors import Classifier, to_rgb, to_uint8
from blackout.protocols import Split
from blackout.training.data_module import EvalLoader

RESULTS = Path(__file__).parent / "results" / "recipe_trials.json"
BETAS = (0.9, 0.99)  # of Adam, conf/recipe/blackout/digits.yaml
NUM_LIKELIHOODS = 1000  # images at most of which the bound is measured
PERCEPTRON_IMAGES = 20_000  # training images of the perceptron, at most
PERCEPTRON_EPOCHS = 400  # at most
BATCH_SIZE = 250  # images per batch of a bound or a classifier
SCORES = ("Fréchet distance", "AUC", "recognised", "pixels at 0", "pixels at max", "bits/dim")


@dataclass(frozen=True)
class Variant:
    """A change of a recipe.

    Args:
        overrides: of `python train.py`.
        lr: peak learning rate.
        batch_size: samples per step.
    """

    overrides: tuple[str, ...] = ()
    lr: float = 3e-3
    batch_size: int = 128


RECIPES = {
    "digits": ("dataset=digits",),
    "mnist": ("dataset=mnist", "recipe=blackout/mnist_classes"),
}
VARIANTS: dict[str, dict[str, Variant]] = {
    "digits": {
        "current": Variant(),
        "head=binned": Variant(("head=binned",)),
    },
    "mnist": {
        "current": Variant(batch_size=64),
        "batch_size=32": Variant(batch_size=32),
    },
}


class RecipeModel(Generator):
    """A model of a recipe, with classes in turn if it is conditional.

    Args:
        seed: of weights and noise.
        overrides: of `python train.py`.
    """

    def __init__(self, seed: int, overrides: Sequence[str]) -> None:
        self.model: BlackoutDiffusion = compose_model([*overrides, f"seed={seed}"])
        ema: Any = self.model.ema
        super().__init__(self.model.network, ema)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        return self.model.training_step(batch)

    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        settings = with_evaluations(self.model, sampler or "multistep", evaluations)
        classes = classes_of(self.model, num_samples)
        return self.model.sample(num_samples, seed, sampler=settings, classes=classes)

    def guide(self, scale: float) -> None:
        """Replace the scale of guidance of the samples."""
        self.model.sampler = replace(self.model.sampler, guidance=Guidance(scale))

    @torch.no_grad()
    def bits_per_dim(self, data: CountData, split: Split) -> tuple[float, float]:
        """Return the mean likelihood bound of images, in bits per dimension, and its error."""
        values: list[Tensor] = []
        self.model.record = lambda _, bits: values.append(bits)
        for batch in EvalLoader(data, BATCH_SIZE, split=split):
            self.model.validation_step({**batch, "split": split})
            if sum(map(len, values)) >= NUM_LIKELIHOODS:
                break
        bits = torch.cat(values).double()
        return float(bits.mean()), float(bits.std()) / math.sqrt(len(bits))


class Judges:
    """Judges of one split.

    Args:
        source: returns the data.
        split: "val" or "test", which have different judges.
        num_samples: size of the set of real images.
        seed: of this set.
    """

    def __init__(
        self, source: Callable[[], CountData], split: Split, num_samples: int, seed: int
    ) -> None:
        self.data = source()
        self.split = split
        self.reference = resampled_images(
            torch.as_tensor(getattr(self.data, split)), num_samples, seed
        )
        self.classifier = Classifier(source, seed=0 if split == "val" else 1)
        self.two_sample_auc: Callable[[Tensor, Tensor], tuple[float, float]] = two_sample_auc
        self.probabilities: Callable[[Tensor], Tensor] = self._network_probabilities
        if split == "test":
            self.two_sample_auc = boosting_auc
            self.probabilities = perceptron(self.data)

    @torch.no_grad()
    def _outputs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and probabilities of the classifier."""
        outputs = self.classifier(to_rgb(to_uint8(images, self.data.max_count)))
        assert outputs.logits is not None
        return outputs.features.double(), outputs.logits.softmax(1)

    def _network_probabilities(self, images: Tensor) -> Tensor:
        return self._outputs(images)[1]

    def scores(self, images: Tensor) -> Row:
        """Return all scores of images, counts [N, 1, *sides]."""
        area, error = self.two_sample_auc(images, self.reference)
        moments = []
        for counts in (images, self.reference):
            features = self._outputs(counts)[0]
            moments += [features.mean(0), torch.cov(features.T)]
        recognised = self.probabilities(images).amax(1) >= CONFIDENCE
        share = float(recognised.double().mean())
        return {
            "Fréchet distance": frechet_distance(*moments),
            "AUC": area,
            "AUC block error": error,
            "recognised": share,
            "recognised block error": math.sqrt(share * (1 - share) / len(images)),
            "pixels at 0": float((images == 0).double().mean()),
            "pixels at max": float((images == self.data.max_count).double().mean()),
        }


def perceptron(data: CountData) -> Callable[[Tensor], Tensor]:
    """Return the probabilities of a perceptron of scikit-learn, trained on training images."""
    from sklearn.neural_network import MLPClassifier

    train_images = torch.as_tensor(data.train)[:PERCEPTRON_IMAGES]
    labels = torch.as_tensor(data.train_labels)[:PERCEPTRON_IMAGES]
    network = MLPClassifier((100,), max_iter=PERCEPTRON_EPOCHS, random_state=0)
    network.fit(train_images.flatten(1).numpy() / data.max_count, labels.numpy())

    def probabilities(images: Tensor) -> Tensor:
        rows = images.flatten(1).numpy() / data.max_count
        return torch.from_numpy(network.predict_proba(rows))

    return probabilities


def model_path(options: argparse.Namespace, variant: str, seed: int) -> Path:
    """Return where the averaged weights of a training are."""
    path: Path = options.models / options.dataset / f"{variant}-{seed}.pt"
    return path


def overrides_of(options: argparse.Namespace, variant: str) -> list[str]:
    """Return all overrides of a variant."""
    settings = VARIANTS[options.dataset][variant].overrides
    return [*RECIPES[options.dataset], f"data_dir={options.data}", *settings]


def train_variants(options: argparse.Namespace) -> None:
    """Train every variant for every seed, in turns, and save the averaged weights."""
    data = options.source()
    for seed in range(options.first_training, options.first_training + options.trainings):
        for name in options.variants:
            variant = VARIANTS[options.dataset][name]
            generator = RecipeModel(seed, overrides_of(options, name))
            budget = Budget(options.seconds, variant.lr, BETAS, variant.batch_size)
            steps = train(generator, data, budget, seed)
            path = model_path(options, name, seed)
            path.parent.mkdir(parents=True, exist_ok=True)
            state = generator.ema.module.state_dict()
            torch.save({"steps": steps, "seconds": options.seconds, "averaged": state}, path)
            print(f"{name}, training {seed}: {steps} steps", flush=True)


def judge_variants(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the scores of training images, then of every variant and training."""
    judges = Judges(options.source, options.split, options.num_samples, options.seed)
    images = torch.as_tensor(judges.data.train)
    for seed in range(options.trainings):
        drawn = resampled_images(images, options.num_samples, options.seed + seed + 1)
        run = {"method": "training images", "evaluations": None, "training": seed, "steps": None}
        run |= {"seconds": None, "bits/dim": None, "bits/dim block error": None}
        yield run | judges.scores(drawn)
    for name in options.variants:
        for seed in range(options.first_training, options.first_training + options.trainings):
            generator = RecipeModel(seed, overrides_of(options, name))
            saved = torch.load(model_path(options, name, seed), weights_only=True)
            generator.ema.module.load_state_dict(saved["averaged"])
            bits, error = generator.bits_per_dim(judges.data, options.split)
            facts = {
                "training": seed,
                "steps": saved["steps"],
                "seconds": saved["seconds"],
                "bits/dim": bits,
                "bits/dim block error": error,
            }
            for scale in options.guidance:
                generator.guide(scale)
                method = name if scale == 1 else f"{name}, guidance {scale:g}"
                for evaluations in options.evaluations:
                    drawn = generator.sample(options.num_samples, evaluations, options.seed + seed)
                    scores = judges.scores(drawn)
                    yield {"method": method, "evaluations": evaluations, **facts, **scores}


def table(results: Mapping[str, Any], name: str) -> str:
    """Return a table of the result file in Markdown, with its command, machine and date.

    Args:
        results: content of the result file.
        name: of the table.
    """
    part = results[name]
    setup = f"`{part['command']}`, {part['machine']['device']}, 1 thread, {part['machine']['date']}"
    return f"{markdown(part['rows'])}\n\n{setup}"


def write_table(options: argparse.Namespace) -> None:
    """Judge the variants, and replace their table in the result file after every run."""
    name = f"{options.dataset}_{options.split}"
    runs = []
    for run in judge_variants(options):
        runs.append(run)
        print(run, flush=True)
    results = {}
    if options.json.exists():
        results = json.loads(options.json.read_text(encoding="utf-8"))
    results[name] = {
        "command": options.command,
        "machine": machine(torch.device("cpu")) | {"quick": options.quick},
        "num_samples": options.num_samples,
        "rows": summarise(runs, SCORES),
        "runs": runs,
    }
    options.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    print(table(results, name))


def main(argv: Sequence[str] | None = None) -> None:
    """Train the variants of a recipe, or judge them."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.recipe_trials",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("task", choices=("train", "judge"))
    parser.add_argument("dataset", choices=tuple(RECIPES))
    parser.add_argument(
        "--models", type=Path, default=Path("runs/recipe_trials"), help="folder of the trainings"
    )
    parser.add_argument("--data", default="data", help="folder with MNIST")
    parser.add_argument("--variants", nargs="+", default=[], help="default: all")
    parser.add_argument("--seconds", type=float, default=100, help="CPU seconds of a training")
    parser.add_argument("--trainings", type=int, default=1, help="of every variant")
    parser.add_argument("--first_training", type=int, default=0, help="its seed")
    parser.add_argument(
        "--guidance", type=float, nargs="+", default=[1.0], help="scales; 1 for none"
    )
    parser.add_argument("--evaluations", type=int, nargs="+", default=[25])
    parser.add_argument("--num_samples", type=int, default=500, help="that are judged")
    parser.add_argument("--seed", type=int, default=0, help="of the samples")
    parser.add_argument("--split", choices=("val", "test"), default="val")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, a check that it runs")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parse(parser, argv)
    variants = VARIANTS[options.dataset]
    options.variants = options.variants or list(variants)
    unknown = set(options.variants) - set(variants)
    if unknown:
        parser.error(f"--variants {min(unknown)} must be one of {', '.join(variants)}")
    options.source = digits if options.dataset == "digits" else partial(mnist, options.data)
    if options.quick:
        options.seconds = 0.3
        options.num_samples = 40
        options.evaluations = [2]
    if options.task == "train":
        train_variants(options)
    else:
        write_table(options)


if __name__ == "__main__":
    main()
