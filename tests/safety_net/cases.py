"""The cases of `samples`: models, and what is drawn from them.

Each choice of these groups in `conf/` occurs in at least one case; tables below have what a choice
must be given. The default process is drawn with every sampler on every grid, and every head with
every sampler. Other processes are drawn with every sampler and every grid. Combinations that do not
fit are refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.safety_net.choices import (
    choices,
    compose_config,
    groups,
    parameters_of,
    settings_of,
    to_plain,
)

# Arguments of a command line; `{name}` stands for a file of `components.write_files`.
Overrides: TypeAlias = tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A model, and what is drawn from it.

    Args:
        name: of the case.
        train_overrides: of `train.py`; none for exact distributions, which need no model.
        draws: overrides of `sample.py` by name. A name begins with the choice that decides whether
            the draw is possible.
    """

    name: str
    train_overrides: Overrides
    draws: Mapping[str, Overrides] = field(default_factory=dict)


# --- overrides that several cases share

COMPONENTS = "tests.safety_net.components"
TRAIN_OVERRIDES: Overrides = (
    "trainer.max_steps=1",
    "trainer.precision=32-true",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.limit_val_batches=1",
    "ema_decay=null",
    "metrics=none",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "callbacks.scores=null",
    "callbacks.checkpoints=null",
    "batch_size=8",
    "experiment_name=models",
    f"+callbacks.weights._target_={COMPONENTS}.FixedWeights",
)
SAMPLE_OVERRIDES: Overrides = ("num_samples=6", "device=cpu", "trusted=[tests]")
COUNTS: Overrides = ("dataset=counts", f"dataset._target_={COMPONENTS}.counts", "dataset.path=none")
MLP: Overrides = ("network=mlp", "++network.body.width=16", "++network.body.depth=1")
FEW_STEPS: Overrides = ("++sampler.num_steps=4",)
MEASUREMENT: Overrides = ("measurement=test:0-1", "num_samples=2")
ROLLOUT: Overrides = (
    "++rollout.num_times=4",
    "++rollout.chains=16",
    "++rollout.group_size=8",
    "++simulation.num_steps=4",
)
FLOW: Overrides = ("family=flow", *ROLLOUT, "++validation_samples=8")

# Arguments that make a component cheap, for components that have them
CHEAP_ARGUMENTS = {
    "width": 16,
    "depth": 1,
    "channels": 8,
    "layers": 1,
    "heads": 2,
    "cities": 6,
    "inner": 4,
    "num_steps": 4,
    "sweeps": 3,
    "moves": 3,
    "proposals": 3,
    "steps": 2,
    "particles": 2,
    "rollouts": 1,
    "examples": 64,
    "size": 3,
    "multipliers": "[1,2]",
    "blocks_per_level": 1,
    "attention_resolutions": "[4]",
    "nodes": "[5,6]",
    "number": 8,
    "num_training": 8,
    "num_test": 4,
    "chains": 8,
}

# What a choice must be given
REQUIRED_OVERRIDES: Mapping[str, Overrides] = {
    "process=generator": ("process.matrix={generator}",),
    "process=discrete": ("process.matrix={chain}",),
    "target=couplings": ("target.path={couplings}",),
    "target=energy_network": ("++target.path={energy}",),
    "target=planar": ("target.path={plane}",),
    "target=qubo": ("target.path={qubo}", "++target.num_test=1"),
    "operator=inpaint": ("operator.mask={mask}",),
    "operator=inpaint_box": ("++operator.rows=[1,2]", "++operator.columns=[1,2]"),
    "operator=pool": ("++operator.size=2",),
    "operator=matrix": ("operator.matrix={matrix}",),
    "operator=function": (
        f"operator.function={{{{_target_: {COMPONENTS}.halves, _partial_: true}}}}",
    ),
    "operator=reward": (
        f"operator.reward={{{{_target_: {COMPONENTS}.brightness, _partial_: true}}}}",
    ),
    "operator=classifier": (f"operator.classifier={{{{_target_: {COMPONENTS}.Digit}}}}",),
    "operator=decoded": (
        f"operator.decoder={{{{_target_: {COMPONENTS}.halves, _partial_: true}}}}",
        "operator.decoded_shape=[2]",
        "operator.operator={{_target_: blackout.posterior.Identity}}",
        "noise=flips",
        "++noise.penalty=2",
    ),
    "noise=binomial": ("++noise.survival=0.4",),
    "noise=camera": ("++noise.gain=2", "++noise.readout=1"),
    "noise=flips": ("++noise.penalty=2",),
    "noise=gaussian": ("++noise.std=1",),
    "reverse=sinkhorn": ("loss=sinkhorn",),
    "reverse=inverse_insertion": ("shuffle=insertion",),
    "reverse=inverse_transposition": ("shuffle=transposition",),
}


def cases() -> Iterator[Case]:
    """Yield all cases."""
    yield from _processes()
    yield from _losses_and_networks()
    yield from _conditions()
    yield from _posteriors()
    yield from _shuffles()
    yield from _codes()
    yield from _flows()
    yield from _energies()


# --- diffusion on counts


def _processes() -> Iterator[Case]:
    """Yield processes and heads, with samplers, grids and correctors."""
    samplers = {
        choice: (choice, *FEW_STEPS) for choice in _choices_of("sampler", "blackout.diffusion")
    }
    grids = _all_choices("sampler/grid")
    correctors = _all_choices("sampler/correction")
    corrected = {
        f"{sampler} {corrector}": (*overrides, corrector, "++sampler.correction.steps=1")
        for corrector in correctors
        for sampler, overrides in samplers.items()
    }
    likelihood = ("evaluate=true", "metrics=none", "likelihood.images=8", "likelihood.repeats=1")
    draws: dict[str, Overrides] = {
        "": (),
        "likelihood": likelihood,
        **samplers,
        **corrected,
        **{grid: (grid, *FEW_STEPS) for grid in grids},
    }
    draws_on_grids = {
        f"{sampler} {grid}": (*overrides, grid)
        for sampler, overrides in samplers.items()
        for grid in grids
    }
    default_process = to_plain(compose_config("train"))["process"]
    for process in _distinct_choices("process"):
        overrides = (*COUNTS, *MLP, process, *_required(process), *FEW_STEPS)
        is_default = settings_of("process", process.partition("=")[2]) == default_process
        yield Case(process, overrides, draws | draws_on_grids if is_default else draws)
        for head in _all_choices("head"):
            head_draws = {"": (), **samplers} if is_default else {"": ()}
            yield Case(f"{process} {head}", (*overrides, head), head_draws)


def _losses_and_networks() -> Iterator[Case]:
    """Yield losses, schedules and networks of counts."""
    overrides = (*COUNTS, *MLP, *FEW_STEPS)
    for loss in _choices_of("loss", "blackout.diffusion"):
        yield Case(loss, (*overrides, loss), {"": ()})
        yield Case(f"process=uniform {loss}", (*overrides, "process=uniform", loss), {"": ()})
    for schedule in _all_choices("schedule"):
        yield Case(schedule, (*overrides, schedule), {"": ()})
    image = (*COUNTS, "++dataset.shape=[1,8,8]", *FEW_STEPS)
    for network in _count_networks():
        yield Case(network, (*image, network, *_cheap("network", network, "body")), {"": ()})


def _conditions() -> Iterator[Case]:
    """Yield classes, guidance, known elements and distillation."""
    guided = ("classes=[1]", "sampler.guidance.scale=2")
    yield Case(
        "classes",
        (*COUNTS, *MLP, "++dataset.labels=true", "conditional=true", *FEW_STEPS),
        {
            "": (),
            "one class": ("classes=[1]",),
            "classes in turn": ("classes=[2,0]",),
            "guidance": guided,
            "guidance in a range": (*guided, "++sampler.guidance.logit_range=[-6,0]"),
        },
    )
    yield Case(
        "known elements",
        (*COUNTS, *MLP, *FEW_STEPS),
        {
            "overwritten": ("inpaint={known}", "++sampler.inpainting_particles=1"),
            "particles": ("inpaint={known}", "++sampler.inpainting_particles=4"),
            "start from zeros": ("++sampler.poisson_start=false",),
            "correctors between": (
                "sampler=poisson",
                "++sampler.correction.steps=2",
                "++sampler.correction.logit_range=[0,2]",
                *FEW_STEPS,
            ),
        },
    )
    image = (*COUNTS, "++dataset.shape=[1,8,8]")
    unet = ("network=unet_8x8", "++network.body.channels=4", "++network.body.dense_width=8")
    yield Case("teacher", (*image, *unet, "head=scaled", *FEW_STEPS), {"": ()})
    yield Case("student", (*image, "experiment=distill", "teacher={teacher}"), {"": ()})


# --- posteriors


def _posteriors() -> Iterator[Case]:
    """Yield methods with two tasks, operators and noises with one method, and exact tasks."""
    methods = {
        method: (method, *_cheap("posterior", method)) for method in _all_choices("posterior")
    }
    methods["posterior=auto"] = ("posterior=auto",)  # its arguments depend on what it selects
    method = methods["posterior=sgdd"]
    tasks = {
        "thinning": ("operator=identity", "noise=binomial", "++noise.survival=0.4"),
        "holes": ("operator=inpaint", "operator.mask={mask}", "noise=exact"),
    }
    operators: dict[str, Overrides] = {}
    for operator in _all_choices("operator"):
        overrides = (*method, operator, *_cheap("operator", operator), *_required(operator))
        # a reward and a classifier weigh samples and measure nothing
        weighs = operator in ("operator=reward", "operator=classifier")
        operators[operator] = overrides + (("num_samples=2",) if weighs else MEASUREMENT)
    draws: dict[str, Overrides] = {}
    for name, overrides in methods.items():
        for task, task_overrides in tasks.items():
            draws[f"{name} {task}"] = (*overrides, *task_overrides, *MEASUREMENT)
    for noise in _all_choices("noise"):
        draws[noise] = (*method, "operator=identity", noise, *_required(noise), *MEASUREMENT)
    image = (*COUNTS, *MLP, "++dataset.shape=[1,4,4]", *FEW_STEPS)
    yield Case("image", (*image, "head=scaled"), draws | operators)

    binary = ("operator=and", "operator=xor", "operator=inpaint", "operator=reward")
    yield Case(
        "binary image",
        (*image, "++dataset.max_count=1", "process=uniform"),
        {operator: operators[operator] for operator in binary},
    )
    small = ("++prior.elements=4", "++prior.num_steps=4", "++prior.batch_size=8", "num_samples=4")
    method_settings = ("++posterior.sweeps=3", "++posterior.proposals=3")
    yield Case(
        "exact distribution",
        (),
        {
            f"task={task}": (f"task={task}", *small, *method_settings)
            for task in choices("task")
            if to_plain(compose_config("sample", [f"task={task}"])).get("prior")
        },
    )


# --- permutations


def _shuffles() -> Iterator[Case]:
    """Yield shuffles, inverse distributions and decoders of permutations."""
    network = "network=set_transformer"
    overrides = ("family=shuffle", *_cheap("network", network), "shuffle.schedule=[0,1,2,3]")
    lists = (*overrides, "dataset=items", "dataset.path={items}")
    unsolved = ("dataset=items", "dataset.path={items}", "input={lists}")
    decoders = _distinct_decoders()
    draws = {decoder: (*settings, *unsolved) for decoder, settings in decoders.items()}
    for reverse in _all_choices("reverse"):
        model = (*lists, reverse, *_required(reverse))
        yield Case(reverse, model, draws)
        yield Case(f"{reverse} one step", (*model, "shuffle.schedule=[0,4]"), {"": unsolved})
    for shuffle in _all_choices("shuffle"):
        yield Case(shuffle, (*lists, shuffle, "reverse=gpl"), {"": unsolved})
    for loss in _choices_of("loss", "blackout.permutations"):
        yield Case(loss, (*lists, "reverse=gpl", loss), {"": unsolved})
    for name, dataset, file in (
        ("jigsaws", "dataset=jigsaw_digits", "pieces"),
        ("tours", "dataset=tsp", "points"),
    ):
        model = (*overrides, dataset, *_cheap("dataset", dataset))
        puzzles = f"input={{{file}}}"
        yield Case(
            name, model, {decoder: (*settings, puzzles) for decoder, settings in decoders.items()}
        )


def _distinct_decoders() -> dict[str, Overrides]:
    """Return cheap overrides by decoder; of decoders that differ in size alone, one."""
    group = "decoder" if "decoder" in groups() else "sampler"
    decoders: dict[str, tuple[str, Overrides]] = {}
    for decoder in _choices_of(group, "blackout.permutations"):
        settings = settings_of(group, decoder.partition("=")[2])
        key = {name: value for name, value in settings.items() if name not in CHEAP_ARGUMENTS}
        overrides = (decoder, *_cheap(group, decoder))
        decoders.setdefault(json.dumps(key, sort_keys=True), (decoder, overrides))
    return dict(decoders.values())


def _codes() -> Iterator[Case]:
    """Yield codes of permutations, drawn in several orders and numbers of passes."""
    overrides = (
        "family=codes",
        "dataset=permutations",
        "dataset.path={orders}",
        *_cheap("network", "network=code_transformer"),
    )
    draws: dict[str, Overrides] = {
        "": (),
        "two passes": ("passes=2",),
        "all passes": ("passes=5",),
        "greedy": ("++sampler.greedy=true",),
    }
    for order in ("random", "left_to_right", "confidence"):
        draws[order] = (f"order={order}", "passes=3")
    for code in ("lehmer", "fisher_yates", "insertion", "inline"):
        for objective in ("masked", "autoregressive"):
            model = (*overrides, f"code={code}", f"objective={objective}")
            yield Case(f"{code} {objective}", model, draws)


# --- energies


def _flows() -> Iterator[Case]:
    """Yield targets, losses and networks of flows, with simulations and moves."""
    simulations = {
        choice: (choice, "++simulation.num_steps=4")
        for choice in _choices_of("simulation", "blackout.flows")
    }
    moves = _all_choices("refine")
    draws: dict[str, Overrides] = {"": (), **simulations, **{move: (move,) for move in moves}}
    for simulation, overrides in simulations.items():
        for move in moves:
            draws[f"{simulation} {move}"] = (*overrides, move)
    draws["resampled"] = ("++simulation.resample_below=0.9", "++simulation.group_size=4")

    targets = {
        target: (target, *_cheap("target", target), *_required(target))
        for target in _choices_of("target", "blackout.flows")
    }
    lesite = _cheap("network", "network=lesite")
    main_targets = ("target=ising", "target=mis")
    for target, overrides in targets.items():
        target_draws = draws if target in main_targets else {"": ()}
        yield Case(f"flow {target}", (*FLOW, *overrides, *lesite), target_draws)
    for loss in _choices_of("loss", "blackout.flows"):
        yield Case(f"flow {loss}", (*FLOW, *targets["target=ising"], *lesite, loss), {"": ()})
    for target in main_targets:
        for network in _flow_networks():
            overrides = (*FLOW, *targets[target], network, *_cheap("network", network))
            yield Case(f"flow {target} {network}", overrides, {"": ()})


def _energies() -> Iterator[Case]:
    """Yield energies that are learned from data, with sources of negative samples."""
    overrides = (
        "family=energy",
        "target=ising",
        "++target.size=2",
        "target_samples=32",
        "dataset=none",
        "flow_steps=1",
        "++rates.channels=8",
        *ROLLOUT,
    )
    for energy in _all_choices("energy"):
        for negative in _all_choices("negative"):
            settings = (*_cheap("energy", energy), *_cheap("negative", negative))
            name = f"{energy} {negative}"
            yield Case(name, (*overrides, energy, negative, *settings), {"": ()})


# --- choices and their settings


def _all_choices(group: str) -> list[str]:
    """Return `<group>=<choice>` for all choices of a group."""
    return _not_empty(group, [f"{group}={choice}" for choice in choices(group)])


def _choices_of(group: str, package: str) -> list[str]:
    """Return the choices of a group whose component belongs to a package."""
    cases = []
    for choice in choices(group):
        settings = settings_of(group, choice)
        target = settings.get("_target_") if isinstance(settings, Mapping) else None
        if str(target).startswith(f"{package}."):
            cases.append(f"{group}={choice}")
    return _not_empty(f"{group} of {package}", cases)


def _distinct_choices(group: str) -> list[str]:
    """Return the choices of a group; of those with the same settings, the last."""
    distinct = {
        json.dumps(settings_of(group, choice), sort_keys=True): f"{group}={choice}"
        for choice in choices(group)
    }
    return list(distinct.values())


def _count_networks() -> list[str]:
    """Return the networks of counts, which have inputs and a body."""
    names = [name for name in choices("network") if "body" in (settings_of("network", name) or {})]
    return _not_empty("networks of counts", [f"network={name}" for name in names])


def _flow_networks() -> list[str]:
    """Return the locally equivariant networks."""
    names = [name for name in choices("network") if name.startswith("le")]
    return _not_empty("networks of flows", [f"network={name}" for name in names])


def _not_empty(description: str, values: list[str]) -> list[str]:
    """Refuse an empty list, which would silently remove cases after something was renamed."""
    if not values:
        raise LookupError(f"no choices: {description}; adapt tests/safety_net/cases.py")
    return values


def _required(choice: str) -> Overrides:
    return REQUIRED_OVERRIDES.get(choice, ())


def _cheap(group: str, choice: str, part: str = "") -> Overrides:
    """Return overrides that make a choice, or a part of it, cheap."""
    settings: Any = settings_of(group, choice.partition("=")[2])
    prefix = group
    if part and isinstance(settings, Mapping) and part in settings:
        settings = settings[part]
        prefix = f"{group}.{part}"
    return tuple(
        f"++{prefix}.{name}={CHEAP_ARGUMENTS[name]}"
        for name in parameters_of(settings)
        if name in CHEAP_ARGUMENTS
    )
