r"""Digits sampled from a model, evaluated by classifiers of real digits.

    python -m benchmarks.classifier_scores runs/digits/<run_id> --seeds 0 1
    python -m benchmarks.classifier_scores runs/digits/<run_id> --evaluations 49 \
        --samplers trapezoidal@logit poisson@logit
    python -m benchmarks.classifier_scores runs/digits/<run_id> --guidance 1 1.5 2 3 \
        --num_samples 400
    python -m benchmarks.classifier_scores runs/mnist/<run_id> --mnist data --guidance 1 2 \
        --num_samples 400

"Recognised" is a class probability above 0.8. With `--guidance` the classes are requested in turn,
and the fraction of samples that the classifier of `metrics=digits` (or `mnist`) assigns to the
requested class is printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.quality_curve import make_sampler, statistics_of
from blackout import BlackoutDiffusion, load_model
from blackout.data import CountData, digits, mnist
from blackout.diffusion.guidance import Guidance
from blackout.errors import errors_in_one_line
from blackout.evaluation import frechet_distance
from blackout.evaluation.extractors import Classifier, to_rgb, to_uint8

# Counts [n, 1, side, side] -> probabilities of the classes [n, 10].
Probabilities = Callable[[Tensor], Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Evaluate the samples of a model and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", help="run directory, .ckpt file or exported model of dataset=digits"
    )
    parser.add_argument("--num_samples", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument(
        "--samplers", nargs="+", default=[], help="as of quality_curve.py; default: the model's own"
    )
    parser.add_argument("--evaluations", type=int, default=49, help="of the named samplers")
    parser.add_argument(
        "--guidance", type=float, nargs="+", default=[], help="of a model with classes"
    )
    parser.add_argument("--mnist", help="folder with MNIST, for a model of it and --guidance")
    options = parser.parse_args(arguments)
    with errors_in_one_line():
        model = load_model(options.model)
        if options.guidance:
            agreement(
                model,
                network_classifier(partial(mnist, options.mnist), 255)
                if options.mnist
                else network_classifier(),
                options,
            )
        else:
            evaluate_samplers(model, digits(), options)


def evaluate_samplers(
    model: BlackoutDiffusion, data: CountData, options: argparse.Namespace
) -> None:
    """Print the results of every sampler, with the least and most frequent class by each
    classifier."""
    assert (
        isinstance(data.train, Tensor)
        and isinstance(data.test, Tensor)
        and data.test_labels is not None
    )
    judges = all_classifiers(data)
    print(
        f"{'':<40}" + "".join(f"{name:>16}" for name in judges) + f"{'nearest':>10}{'pixels':>10}"
    )
    correct = [
        (says(data.test).argmax(1) == data.test_labels).double().mean() for says in judges.values()
    ]
    print(
        f"{'held-out digits: accuracy':<40}"
        + "".join(f"{float(share):>16.1%}" for share in correct)
    )
    show("held-out digits: recognised", data.test, judges, data)
    show(
        "as many training digits, evenly spaced",
        data.train[evenly_spaced(len(data.train), options.num_samples)],
        judges,
        data,
    )
    for name in options.samplers or [""]:
        sampler = make_sampler(name, model, options.evaluations) if name else None
        for seed in options.seeds:
            samples = model.sample(options.num_samples, seed, sampler=sampler)
            show(f"{name or 'samples'}, seed {seed}: recognised", samples, judges, data)


def show(name: str, counts: Tensor, judges: dict[str, Probabilities], data: CountData) -> None:
    """Print one row: recognised fractions, class frequencies, distances to the nearest digit,
    pixels."""
    assert isinstance(data.train, Tensor) and isinstance(data.test, Tensor)
    cells = []
    for says in judges.values():
        probabilities = says(counts)
        shares = torch.bincount(probabilities.argmax(1), minlength=10) / len(counts)
        recognised = float((probabilities.amax(1) > 0.8).double().mean())
        cells.append(
            f"{recognised:.1%} {100 * float(shares.min()):.0f}-{100 * float(shares.max()):.0f}"
        )
    near = float(
        nearest_distance(counts, data.train).median()
        / nearest_distance(data.test, data.train).median()
    )
    pixels = frechet_distance(*statistics_of(counts), *statistics_of(data.test))
    print(
        f"{name:<40}" + "".join(f"{cell:>16}" for cell in cells) + f"{near:>10.2f}{pixels:>10.1f}",
        flush=True,
    )


def agreement(model: BlackoutDiffusion, says: Probabilities, options: argparse.Namespace) -> None:
    """Print the fraction of samples in the requested class, for every scale of guidance."""
    requested = torch.arange(options.num_samples) % 10
    assert model.sampler is not None
    for scale in options.guidance:
        for seed in options.seeds:
            sampler = replace(model.sampler, guidance=Guidance(scale))
            predicted = says(
                model.sample(options.num_samples, seed, sampler=sampler, classes=requested)
            ).argmax(1)
            fraction = float((predicted == requested).double().mean())
            print(f"guidance {scale:g}, seed {seed}: agreement {fraction:.2%}", flush=True)


def all_classifiers(data: CountData) -> dict[str, Probabilities]:
    """Return a support vector machine and an MLP of scikit-learn, and that of metrics=digits."""
    from sklearn.calibration import CalibratedClassifierCV
    from sklearn.neural_network import MLPClassifier
    from sklearn.svm import SVC

    assert isinstance(data.train, Tensor)
    x = data.train.flatten(1).numpy() / 16
    y = data.train_labels
    machine = CalibratedClassifierCV(SVC(C=10), ensemble=False).fit(x, y)
    perceptron = MLPClassifier((100,), max_iter=400, random_state=0).fit(x, y)

    def probabilities_of(model: CalibratedClassifierCV | MLPClassifier) -> Probabilities:
        return lambda counts: torch.from_numpy(model.predict_proba(counts.flatten(1).numpy() / 16))

    return {
        "SVM": probabilities_of(machine),
        "perceptron": probabilities_of(perceptron),
        "convolutional": network_classifier(),
    }


def network_classifier(
    source: Callable[[], CountData] = digits, max_count: int = 16
) -> Probabilities:
    """Return the classifier of metrics=digits or metrics=mnist."""
    network = Classifier(source)

    def probabilities(counts: Tensor) -> Tensor:
        logits = network(to_rgb(to_uint8(counts, max_count))).logits
        assert logits is not None
        return logits.softmax(1)

    return probabilities


def nearest_distance(counts: Tensor, references: Tensor) -> Tensor:
    """Return the Euclidean distance of each to the nearest of the others, [n]."""
    return torch.cdist(counts.flatten(1).double(), references.flatten(1).double()).amin(1)


def evenly_spaced(total: int, number: int) -> Sequence[int]:
    """Return `number` evenly spaced indices below `total`, since data may be ordered."""
    return [i * total // number for i in range(min(number, total))]


if __name__ == "__main__":
    main()
