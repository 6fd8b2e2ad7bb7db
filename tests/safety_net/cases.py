"""The cases of `samples`: models and what is drawn from them, from the choices in `conf/`.

All choices of a group, with what a choice needs from the tables below. Combinations of kernel,
grid, corrector and head are complete for the default process; of other processes every choice
occurs with the process's own parts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.safety_net.choices import choices, composed, groups, plain, settings_of, signature_of

Words: TypeAlias = tuple[str, ...]
PARTS = "tests.safety_net.components"
SMALL = {
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
    "held_out": 4,
    "chains": 8,
}
"""Arguments that make a component cheap, wherever its constructor has them."""
NEEDED: Mapping[str, Words] = {
    "process=generator": ("process.matrix={generator}",),
    "process=discrete": ("process.matrix={chain}",),
    "target=couplings": ("target.path={couplings}",),
    "target=energy_network": ("++target.path={energy}",),
    "target=planar": ("target.path={plane}",),
    "target=qubo": ("target.path={qubo}",),
    "operator=inpaint": ("operator.mask={mask}",),
    "operator=inpaint_box": ("++operator.rows=[1,2]", "++operator.columns=[1,2]"),
    "operator=pool": ("++operator.size=2",),
    "operator=matrix": ("operator.matrix={matrix}",),
    "operator=function": (f"operator.function={{{{_target_: {PARTS}.halves, _partial_: true}}}}",),
    "operator=reward": (f"operator.reward={{{{_target_: {PARTS}.brightness, _partial_: true}}}}",),
    "operator=classifier": (f"operator.classifier={{{{_target_: {PARTS}.Digit}}}}",),
    "operator=decoded": (
        f"operator.decoder={{{{_target_: {PARTS}.halves, _partial_: true}}}}",
        "operator.decoded=[2]",
        "operator.operator={{_target_: blackout.posterior.Identity}}",
        "noise=flips",
        "++noise.penalty=2",
    ),
    "reverse=sinkhorn": ("loss=sinkhorn",),
    "reverse=inverse_insertion": ("shuffle=insertion",),
    "reverse=inverse_transposition": ("shuffle=transposition",),
}
"""What a choice has to be given; `{name}` stands for a file of `components.write_files`."""
TRAINING: Words = (
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
    f"+callbacks.weights._target_={PARTS}.FixedWeights",
)
DRAWING: Words = ("num_samples=6", "device=cpu", "trusted=[tests]")
FORMULA: Words = ("dataset=counts", f"dataset._target_={PARTS}.counts", "dataset.path=none")
MLP: Words = ("network=mlp", "++network.body.width=16", "++network.body.depth=1")
STEPS: Words = ("++sampler.num_steps=4",)


@dataclass(frozen=True)
class Model:
    """A model and what is drawn from it.

    Args:
        name: of the case.
        words: of `train.py`; none for exact laws, which need no model.
        draws: words of `sample.py` by name.
    """

    name: str
    words: Words
    draws: Mapping[str, Words] = field(default_factory=dict)


def models() -> Iterator[Model]:
    """All cases."""
    yield from _counts()
    yield from _losses_and_networks()
    yield from _conditions()
    yield from _posteriors()
    yield from _shuffles()
    yield from _codes()
    yield from _flows()
    yield from _energies()


def _counts() -> Iterator[Model]:
    """Processes, heads, samplers, grids and correctors of diffusion on counts."""
    samplers = {word: (word, *STEPS) for word in _of_package("sampler", "blackout.diffusion")}
    grids = _words("sampler/grid")
    correctors = {
        word: (word, "++sampler.correction.steps=1") for word in _words("sampler/correction")
    }
    combined = {
        f"{one} {two}": samplers[one] + more for two, more in correctors.items() for one in samplers
    }
    evaluated = {
        "likelihood": (
            "evaluate=true",
            "metrics=none",
            "likelihood.images=8",
            "likelihood.repeats=1",
        )
    }
    default = plain(composed("train"))["process"]
    same = {
        json.dumps(settings_of("process", choice), sort_keys=True): choice
        for choice in choices("process")
    }
    for process in (
        f"process={choice}" for choice in same.values()
    ):  # of two names for the same, one
        base = (*FORMULA, *MLP, process, *NEEDED.get(process, ()), *STEPS)
        draws = {
            "": (),
            **evaluated,
            **samplers,
            **combined,
            **{grid: (grid, *STEPS) for grid in grids},
        }
        heads: dict[str, Words] = {"": ()}
        if settings_of("process", process.partition("=")[2]) == default:
            draws |= {f"{one} {grid}": (*samplers[one], grid) for one in samplers for grid in grids}
            heads |= samplers
        yield Model(process, base, draws)
        for head in _words("head"):
            yield Model(f"{process} {head}", (*base, head), heads)


def _losses_and_networks() -> Iterator[Model]:
    """Losses, schedules and networks of counts."""
    for loss in _of_package("loss", "blackout.diffusion"):
        yield Model(loss, (*FORMULA, *MLP, loss, *STEPS), {"": ()})
        yield Model(
            f"process=uniform {loss}", (*FORMULA, *MLP, "process=uniform", loss, *STEPS), {"": ()}
        )
    for schedule in _words("schedule"):
        yield Model(schedule, (*FORMULA, *MLP, schedule, *STEPS), {"": ()})
    for word in _of_package("network", "blackout.networks.CountNetwork"):
        image = ("++dataset.shape=[1,8,8]", *_small("network", word, inner="body"))
        yield Model(word, (*FORMULA, *image, word, *STEPS), {"": ()})


def _conditions() -> Iterator[Model]:
    """Classes, guidance, known elements, and a student."""
    classes = (*FORMULA, *MLP, "++dataset.labels=true", "conditional=true", *STEPS)
    yield Model(
        "classes",
        classes,
        {
            "": (),
            "one class": ("classes=[1]",),
            "classes in turn": ("classes=[2,0]",),
            "guidance": ("classes=[1]", "sampler.guidance.scale=2"),
            "guidance between": (
                "classes=[1]",
                "sampler.guidance.scale=2",
                "++sampler.guidance.between=[-6,0]",
            ),
        },
    )
    yield Model(
        "known elements",
        (*FORMULA, *MLP, *STEPS),
        {
            "overwritten": ("inpaint={known}", "++sampler.inpainting_particles=1", *STEPS),
            "particles": ("inpaint={known}", "++sampler.inpainting_particles=4", *STEPS),
            "without Poisson start": ("++sampler.poisson_start=false",),
            "correctors between": (
                "sampler=poisson",
                "++sampler.correction.steps=2",
                "++sampler.correction.between=[0,2]",
                *STEPS,
            ),
        },
    )
    image = (
        *FORMULA,
        "++dataset.shape=[1,8,8]",
        "network=unet_8x8",
        "++network.body.channels=4",
        "++network.body.dense_width=8",
        "head=scaled",
        *STEPS,
    )
    yield Model("teacher", image, {"": ()})
    yield Model(
        "student",
        (*FORMULA, "++dataset.shape=[1,8,8]", "experiment=distill", "teacher={teacher}"),
        {"": ()},
    )


def _posteriors() -> Iterator[Model]:
    """Every method with two tasks, every operator and noise with one method, and exact laws."""
    methods = {word: (word, *_small("posterior", word)) for word in _words("posterior")}
    methods |= {
        word: (word,) for word in methods if word == "posterior=auto"
    }  # whose settings are of what it takes
    one = "posterior=sgdd" if "posterior=sgdd" in methods else next(iter(methods))
    measured = ("measurement=test:0-1", "num_samples=2")
    operators = {
        word: (word, *_small("operator", word), *NEEDED.get(word, ()))
        for word in _words("operator")
    }
    tasks = {
        "thinning": ("operator=identity", "noise=binomial", "++noise.survival=0.4"),
        "holes": ("operator=inpaint", "operator.mask={mask}", "noise=exact"),
    }
    image = (*FORMULA, *MLP, "++dataset.shape=[1,4,4]", *STEPS)
    measured_by = {
        word: (*methods[one], *words, *_measured(word)) for word, words in operators.items()
    }
    draws = {}
    for method, words in methods.items():
        draws |= {f"{method} {task}": words + more + measured for task, more in tasks.items()}
    for noise in _words("noise"):
        draws[noise] = (
            *methods[one],
            "operator=identity",
            noise,
            *NOISE_NEEDED.get(noise, ()),
            *measured,
        )
    yield Model("image", (*image, "head=scaled"), draws | measured_by)
    binary = {word: words for word, words in measured_by.items() if word in OF_BITS}
    yield Model("binary image", (*image, "++dataset.max_count=1", "process=uniform"), binary)
    own = {f"task={task}": _law(task) for task in choices("task") if _has_law(task)}
    yield Model("exact law", (), own)


NOISE_NEEDED: Mapping[str, Words] = {
    "noise=binomial": ("++noise.survival=0.4",),
    "noise=camera": ("++noise.gain=2", "++noise.readout=1"),
    "noise=flips": ("++noise.penalty=2",),
    "noise=gaussian": ("++noise.std=1",),
}
"""What a noise is given."""
OF_BITS = ("operator=and", "operator=xor", "operator=inpaint", "operator=reward")
"""Operators that are also tried on bits, under a process on levels."""


def _measured(word: str) -> Words:
    """What is measured; operators that only weigh samples measure nothing."""
    weighs = word in ("operator=reward", "operator=classifier")
    return ("num_samples=2",) if weighs else ("measurement=test:0-1", "num_samples=2")


def _has_law(task: str) -> bool:
    """Whether a task brings an exact law, in place of a model."""
    return bool(plain(composed("sample", [f"task={task}"])).get("law"))


def _law(task: str) -> Words:
    small = ("++law.elements=4", "++law.num_steps=4", "++law.batch_size=8", "num_samples=4")
    return (f"task={task}", *small, "++posterior.sweeps=3", "++posterior.proposals=3")


def _shuffles() -> Iterator[Model]:
    """Shuffles, inverse distributions and decoders of permutations."""
    base = (
        "family=shuffle",
        *_small("network", "network=set_transformer"),
        "shuffle.schedule=[0,1,2,3]",
    )
    group = "decoder" if "decoder" in groups() else "sampler"
    decoders = {}
    for word in _of_package(group, "blackout.permutations"):
        settings = settings_of(group, word.partition("=")[2])
        component = json.dumps(
            {name: value for name, value in settings.items() if name not in SMALL}, sort_keys=True
        )
        decoders.setdefault(
            component, (word, (word, *_small(group, word)))
        )  # of those that differ in size alone, one
    items = ("dataset=items", "dataset.path={items}")
    lists = (*base, *items)
    own = (*items, "input={lists}")
    solved = {name: words + own for name, words in decoders.values()}
    for reverse in _words("reverse"):
        words = (*lists, reverse, *NEEDED.get(reverse, ()))
        yield Model(reverse, words, solved)
        yield Model(f"{reverse} one step", (*words, "shuffle.schedule=[0,4]"), {"": own})
    for shuffle in _words("shuffle"):
        yield Model(shuffle, (*lists, shuffle, "reverse=gpl"), {"": own})
    for loss in _of_package("loss", "blackout.permutations"):
        yield Model(loss, (*lists, "reverse=gpl", loss), {"": own})
    for name, dataset, file in (("pieces", "jigsaw_digits", "pieces"), ("tours", "tsp", "points")):
        words = (*base, f"dataset={dataset}", *_small("dataset", f"dataset={dataset}"))
        yield Model(
            name, words, {one: (*more, f"input={{{file}}}") for one, more in decoders.values()}
        )


def _codes() -> Iterator[Model]:
    """Codes of permutations, drawn in any order and number of passes."""
    small = _small("network", "network=code_transformer")
    for code in ("lehmer", "fisher_yates", "insertion", "inline"):
        for objective in ("masked", "autoregressive"):
            words = (
                "family=codes",
                "dataset=permutations",
                "dataset.path={orders}",
                "++dataset.imagined=0",
                *small,
            )
            draws = {"": (), "two passes": ("passes=2",), "all passes": ("passes=5",)}
            draws["greedy"] = ("++sampler.greedy=true",)
            draws |= {
                order: (f"order={order}", "passes=3")
                for order in ("random", "left_to_right", "confidence")
            }
            yield Model(
                f"{code} {objective}", (*words, f"code={code}", f"objective={objective}"), draws
            )


ROLLOUT: Words = (
    "++rollout.points=4",
    "++rollout.chains=16",
    "++rollout.group=8",
    "++validation_samples=8",
    "++simulation.num_steps=4",
)


def _flows() -> Iterator[Model]:
    """Targets, networks, simulations and moves of flows."""
    simulations = {
        word: (word, "++simulation.num_steps=4")
        for word in _of_package("simulation", "blackout.flows")
    }
    moves = {word: (word,) for word in _words("refine")}
    draws = {"": (), **simulations, **moves}
    draws |= {f"{one} {two}": simulations[one] + moves[two] for one in simulations for two in moves}
    draws["resampled"] = ("++simulation.resample_below=0.9", "++simulation.group=4")
    targets = _of_package("target", "blackout.flows")
    small = {
        target: (target, *NEEDED.get(target, ()), *_small("target", target)) for target in targets
    }
    for target, words in small.items():
        many = target in ("target=ising", "target=mis")
        network = _small("network", "network=lesite")
        yield Model(
            f"flow {target}",
            ("family=flow", *words, *network, *ROLLOUT),
            draws if many else {"": ()},
        )
    for loss in _of_package("loss", "blackout.flows"):
        words = (
            "family=flow",
            *small["target=ising"],
            *_small("network", "network=lesite"),
            *ROLLOUT,
        )
        yield Model(f"flow {loss}", (*words, loss), {"": ()})
    for target in ("target=ising", "target=mis"):
        for network in _of_package("network", "blackout.networks.LE"):
            words = ("family=flow", *small[target], network, *_small("network", network), *ROLLOUT)
            yield Model(f"flow {target} {network}", words, {"": ()})


def _energies() -> Iterator[Model]:
    """Energies learned from data, and where their negative samples come from."""
    target = (
        "family=energy",
        "target=ising",
        "++target.size=2",
        "number=32",
        "dataset=none",
        "inner=1",
    )
    rollout = tuple(word for word in ROLLOUT if "validation" not in word)
    for energy in _words("energy"):
        for negative in _words("negative"):
            small = (*_small("energy", energy), *_small("negative", negative), "++rates.channels=8")
            yield Model(
                f"{energy} {negative}", (*target, energy, negative, *small, *rollout), {"": ()}
            )


def _words(group: str) -> list[str]:
    """`<group>=<choice>` of all choices."""
    return [f"{group}={choice}" for choice in choices(group)]


def _of_package(group: str, package: str) -> list[str]:
    """The choices of a group whose component is of a package, or has an address that begins so."""
    return [word for word in _words(group) if _target(group, word).startswith(package)]


def _target(group: str, word: str) -> str:
    settings = settings_of(group, word.partition("=")[2])
    return str(settings.get("_target_", "")) if isinstance(settings, Mapping) else ""


def _small(group: str, word: str, inner: str = "") -> Words:
    """Words that make a choice, or a part inside it, cheap: its arguments that are in `SMALL`."""
    part = settings_of(group, word.partition("=")[2])
    part = part.get(inner, part) if isinstance(part, Mapping) else part
    names = signature_of(part) if isinstance(part, Mapping) else {}
    where = f"{group}.{inner}" if inner else group
    return tuple(f"++{where}.{name}={SMALL[name]}" for name in names if name in SMALL)
