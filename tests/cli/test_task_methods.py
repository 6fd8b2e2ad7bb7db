"""Every task takes every posterior method, without settings of another method."""

import inspect

import numpy as np
import pytest

from blackout.config.choices import list_choices
from blackout.config.instantiate import find_target
from tests.cli.conftest import TINY, train
from tests.cli.test_configs import composed

EXACT_PRIORS = {  # small sizes of the tasks with an exact prior
    "dna_toy": ("prior.elements=6", "operator.scale=1.0"),
    "music_toy": ("prior.elements=8", "measurement=model:0"),
    "synthetic": ("prior.elements=2",),
    "sgdd/table2": ("prior.elements=2",),
    "sgdd/table3": ("prior.elements=6", "operator.scale=1.0"),
    "sgdd/table5": ("prior.elements=8", "measurement=model:0"),
}
# tasks of counts; the others are of bits
PHOTONS = ("photons", "photons_poisson", "photons_thinning")
SPLIT_GIBBS = (
    "posterior.sweeps=2",
    "posterior.proposals=3",
    "posterior.steps=2",
    "posterior.first_level=2",
)
METHODS = {  # small sizes of the methods
    "auto": (),
    "direct": ("posterior.steps=2",),
    "dps": ("STEPS=2",),
    "fk": ("posterior.particles=2", "STEPS=2"),
    "noise_denoise": ("posterior.moves=2",),
    "overwrite": ("posterior.steps=2",),
    "sgdd": SPLIT_GIBBS,
    "sgdd_published": SPLIT_GIBBS,
    "smc": ("posterior.particles=2", "STEPS=2"),
    "svdd": ("posterior.particles=2", "STEPS=2"),
    "tds": ("posterior.particles=2", "STEPS=2"),
}
PAIRS = [(task, method) for task in list_choices("task") for method in list_choices("posterior")]


def unknown_settings(part, prefix=""):
    """Settings of components that their constructors do not take, with the component."""
    if not isinstance(part, dict):
        return []
    unknown = [
        name for key, value in part.items() for name in unknown_settings(value, f"{prefix}.{key}")
    ]
    if part.get("_target_"):
        arguments = inspect.signature(find_target(part, prefix)).parameters
        any_name = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
        names = [
            name
            for name in part
            if not name.startswith("_") and name not in arguments and not any_name
        ]
        unknown += [f"{prefix}.{name} of {part['_target_']}" for name in names]
    return unknown


@pytest.mark.parametrize("task, method", PAIRS)
def test_a_chosen_method_replaces_the_settings_of_a_tasks_own(task, method):
    config = composed(f"task={task}", f"posterior={method}", "ckpt=x", name="sample")
    assert unknown_settings(config) == []
    assert (
        config["posterior"]["_target_"]
        == composed(f"posterior={method}", name="sample")["posterior"]["_target_"]
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return folders of a model of 8x8 bits, with the uniform process, and of one of the digits."""
    folder = tmp_path_factory.mktemp("models")
    random = np.random.default_rng(0)
    np.save(folder / "bits.npy", random.integers(0, 2, (60, 8, 8)).astype(np.uint8))
    np.save(folder / "labels.npy", np.arange(60) % 2)
    small = (*TINY, "trainer.max_steps=4", f"runs_dir={folder}", "metrics=none")
    data = (
        "dataset=counts",
        f"dataset.path={folder / 'bits.npy'}",
        f"dataset.labels={folder / 'labels.npy'}",
    )
    train(
        *small, *data, "recipe=blackout/none", "process=uniform", "run_id=bits", "experiment_name=x"
    )
    train(*small, "run_id=counts", "experiment_name=x")
    return folder / "x"


def small_task(task, models):
    """Words that make a task small, with the model that it needs."""
    if task in EXACT_PRIORS:
        return EXACT_PRIORS[task]
    if task in PHOTONS:
        return (f"ckpt={models / 'counts'}", "measurement=test:1")
    words = (f"ckpt={models / 'bits'}",)
    if task in ("mnist_class", "sgdd/table9"):  # its classifier learns from the training data
        files = (
            f"dataset.path={models.parent / 'bits.npy'}",
            f"dataset.labels={models.parent / 'labels.npy'}",
        )
        return (
            *words,
            "dataset=counts",
            *files,
            "operator.classifier.examples=16",
            "operator.classifier.epochs=1",
        )
    if task in ("mnist_box", "sgdd/figure3"):
        return (*words, "measurement=test:1", "operator.rows=[2,5]", "operator.columns=[1,6]")
    return (*words, "measurement=test:1")


@pytest.mark.deep
@pytest.mark.parametrize("task, method", PAIRS)
def test_every_task_and_method_draws_or_is_refused_with_a_reason(
    run, models, tmp_path, task, method
):
    steps = "prior.num_steps" if task in EXACT_PRIORS else "sampler.num_steps"
    words = (word.replace("STEPS", steps) for word in METHODS[method])
    small = (
        *small_task(task, models),
        *words,
        "num_samples=1",
        "device=cpu",
        f"out={tmp_path / 'out'}",
    )
    outcome = run("sample", f"task={task}", f"posterior={method}", *small)
    if is_refused(task, method):
        outcome.assert_refused(f"posterior={method}")
    else:
        assert outcome.code == 0, outcome.err
        assert (tmp_path / "out" / "samples.npz").exists()


def is_refused(task, method):
    """Whether the method cannot solve the task whatever its settings are."""
    is_box = task in ("mnist_box", "sgdd/figure3")
    is_melody = task in ("music_toy", "sgdd/table5")
    if method == "direct":
        return task != "photons_thinning"
    if method == "overwrite":
        return not (is_box or is_melody)
    return method == "sgdd_published" and (is_box or is_melody)


COMPARED = (  # what the papers compare, and what fits with it, by experiments
    (
        ("blackout/table1", "blackout/table2_binarized_mnist", "blackout/table2_celeba64"),
        {
            "loss": ("instantaneous", "finite_time", "likelihood"),
            "sampler": ("binomial_bridge_nearest", "binomial_bridge", "poisson", "trapezoidal"),
            "head": ("softplus", "scaled"),
            "network": ("ncsnpp", "ncsnpp_small", "unet"),
            "process": ("birth_death", "uniform", "ordinal", "d3pm_absorbing", "tauldr"),
        },
    ),
    (
        (
            "blackout/table2_d3pm_absorbing",
            "blackout/table2_d3pm_gaussian",
            "blackout/table2_tauldr0",
        ),
        {
            "process": (
                "d3pm_absorbing",
                "d3pm_gaussian",
                "tauldr",
                "uniform",
                "discrete_uniform",
                "pure_death",
            ),
            "network": ("ncsnpp", "unet"),
            "head": ("levels", "logistic"),
        },
    ),
    (
        ("blackout/table2_tauldr10",),
        {
            "sampler": ("tau_leap", "level_bridge", "euler"),
            "sampler/correction": ("level",),
        },
    ),
    (
        ("sgdd/prior_mnist",),
        {
            "network": ("transformer", "unet", "ncsnpp"),
            "process": ("absorbing", "ordinal"),
            "loss": ("rates", "cross_entropy"),
            "sampler": ("level_bridge", "euler", "tau_leap"),
        },
    ),
    (
        ("dnfs/figure1", "dnfs/figure4", "dnfs/figure5"),
        {
            "network": ("lemlp", "leconv", "leconv_published", "letf", "letf_published", "lesite"),
            "loss": ("dnfs", "leaps"),
            "simulation": ("leap", "events", "single"),
        },
    ),
    (("dnfs/figure15_leaps",), {"network": ("letf_published", "lesite"), "loss": ("dnfs",)}),
    (
        ("dnfs/table1", "dnfs/table5"),
        {"network": ("legf", "lesite_graph", "lesite_graph_relayed", "lemlp")},
    ),
    (
        ("dnfs/table2", "dnfs/table4"),
        {
            "network@rates": ("letf", "lesite", "lemlp"),
            "negative": ("flow", "pcd", "discrepancy"),
        },
    ),
    (
        (
            "symmetric/table1_mnist",
            "symmetric/table1_cifar10",
            "symmetric/table2",
            "symmetric/table6_irs",
        ),
        {
            "reverse": ("gpl", "pl", "inverse_riffle"),
            "decoder": ("greedy", "beam", "beam_200", "sample"),
            "loss": ("trajectory", "trajectory_3", "random_time", "label_free"),
            "network/encoder": ("pieces", "pieces_published", "strips", "strips_published"),
            "baseline": ("sinkhorn", "listmle", "assignment"),
            "shuffle": ("riffle", "transposition", "insertion"),
        },
    ),
    (
        ("symmetric/table4_tsp20", "symmetric/table4_tsp50"),
        {
            "network/encoder": ("points", "edges"),
            "baseline": ("two_opt",),
        },
    ),
    (("factorized/figure5",), {"network/encoder": ("pieces", "pieces_published")}),
)
CHOSEN = [
    (experiment, f"{group}={choice}")
    for experiments, groups in COMPARED
    for experiment in experiments
    for group, options in groups.items()
    for choice in options
]
QUICK = ("blackout/table2_d3pm_absorbing", "dnfs/figure1", "symmetric/table2")


@pytest.mark.parametrize(
    "experiment, choice",
    [pytest.param(*pair, marks=[] if pair[0] in QUICK else [pytest.mark.deep]) for pair in CHOSEN],
)
def test_no_setting_of_an_experiments_own_choice_is_left(experiment, choice):
    assert unknown_settings(composed(f"experiment={experiment}", choice)) == []
