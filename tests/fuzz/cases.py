"""An endless sequence of invalid command lines, checkpoints, models and data files.

Each case is a function of the seed and its number.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from PIL import Image

from blackout.config.compose import component_parameters
from tests.cli.conftest import ROOT, TINY
from tests.security.attacks import ATTACKS, hide_in_a_tuple, interpolation

VALUES = (
    "abc",
    "-1",
    "0",
    "null",
    "[]",
    "{}",
    "nan",
    "inf",
    "-0.5",
    "1.5",
    "''",
    "true",
    "[1,2]",
    "{a: 1}",
    "9" * 20,
    "../x",
    "é",
    "1e-400",
    "${seed}",
    "${nothing}",
    "{_target_: os.system, command: 'touch owned'}",
    "{_target_: nothing}",
)
INVALID_SYNTAX = (
    "=",
    "seed",
    "seed==1",
    "[",
    "{",
    "a=[1",
    "seed=1,2",
    "+",
    "~",
    "~seed",
    "++a.b.c=1",
    "+seed=1",
    "seed=${",
)
INVALID_SYNTAX += ("@=1", "a@b=c", "-m", "--flag", "seed=1 2")
# settings of the length of a run or of the network, which other tests cover
EXCLUDED = (
    "max_steps",
    "devices",
    "num_samples",
    "num_steps",
    "every_n_steps",
    "accumulate_grad_batches",
    "images",
)
EXCLUDED += (
    "repeats",
    "seeds",
    "data_dir",
    "val_check_interval",
    "baselines",
    "finite_steps",
    "num_nodes",
    "runs_dir",
)
TRAIN = [o for o in TINY if not o.startswith("callbacks.samples")] + [
    "trainer.max_steps=1",
    "callbacks.samples=null",
]


class Malicious:
    """An object that makes a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, ("owned", "w"))


@dataclass
class Case:
    """A program and its arguments, run after files were prepared in a scratch directory."""

    name: str
    program: str
    arguments: list[str]


def cases(seed: int, good: Path, scratch: Path) -> Iterator[Callable[[], Case]]:
    """Yield an endless sequence of cases.

    Args:
        seed: of the sequence.
        good: folder with a run directory `digits/a`.
        scratch: folder for damaged copies.
    """
    from tests.fuzz.families import KINDS

    digit_kinds = (
        setting,
        setting,
        syntax,
        sampling,
        checkpoint,
        checkpoint,
        exported,
        exported,
        array,
        pictures,
    )
    kinds = (*digit_kinds, *KINDS)
    number = 0
    while True:
        rng = random.Random(f"{seed} {number}")
        kind = kinds[number % len(kinds)]
        place = scratch / str(number)

        def make(
            kind: Any = kind, rng: random.Random = rng, place: Path = place, number: int = number
        ) -> Case:
            place.mkdir(parents=True)
            case = kind(rng, good, place)
            case.name = f"{number} {case.name}"
            return case

        yield make
        number += 1


@cache
def leaves(name: str, base: tuple[str, ...] = ()) -> list[str]:
    """Return the dotted names of the settings of a program, without those that only slow it."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        composed = compose(name, list(base) or (["network=mlp"] if name == "train" else []))
    config = OmegaConf.to_container(composed, resolve=False)

    def walk(node: Any, prefix: str) -> Iterator[str]:
        if isinstance(node, dict) and node:
            for key, value in node.items():
                yield from walk(value, f"{prefix}.{key}" if prefix else str(key))
            yield from (
                f"{prefix}.{option}"
                for option in component_parameters(composed, prefix)
                if option not in node
            )
        elif prefix:
            yield prefix

    return [leaf for leaf in walk(config, "") if leaf.rsplit(".", 1)[-1] not in EXCLUDED]


def typo(rng: random.Random, word: str) -> str:
    """Return the word with a typing error."""
    position = rng.randrange(len(word))
    return rng.choice(
        [
            word[:position] + word[position + 1 :],
            word[:position] + "x" + word[position:],
            word[:position] + word[position:][::-1],
        ]
    )


def setting(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a training run with an invalid setting."""
    leaf = rng.choice(leaves("train"))
    parts = leaf.split(".")
    change = rng.choice(["value", "value", "value", "typo", "group"])
    if change == "typo":
        argument = f"{typo(rng, leaf)}=1"
    elif change == "group":
        argument = f"{parts[0]}={rng.choice(VALUES)}"
    else:
        argument = f"{leaf}={rng.choice(VALUES)}"
    key = argument.split("=")[0]
    options = [option for option in TRAIN if not (option.split("=")[0] + ".").startswith(key + ".")]
    return Case(argument, "train", [*options, f"runs_dir={place}", argument])


def syntax(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a training run with invalid Hydra syntax."""
    argument = rng.choice(INVALID_SYNTAX)
    return Case(argument, "train", [*TRAIN, f"runs_dir={place}", argument])


def sampling(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a sampling run with an invalid setting."""
    argument = f"{rng.choice(leaves('sample'))}={rng.choice(VALUES)}"
    if rng.random() < 0.2:
        argument = f"indices={rng.choice(VALUES)}"
    return Case(
        argument,
        "sample",
        [f"ckpt={good / 'digits/a'}", "num_samples=2", f"out={place / 'out'}", argument],
    )


def damage(rng: random.Random, content: bytes) -> bytes:
    """Cut, flip, overwrite or empty a file's content."""
    position = rng.randrange(len(content))
    kind = rng.randrange(5)
    if kind == 0:
        return content[:position]
    if kind == 1:
        return (
            content[:position]
            + bytes([content[position] ^ (1 << rng.randrange(8))])
            + content[position + 1 :]
        )
    if kind == 2:
        return (
            content[:position]
            + rng.randbytes(min(64, len(content) - position))
            + content[position + 64 :]
        )
    if kind == 3:
        return rng.randbytes(200)
    return b""


def checkpoint(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a run that resumes or samples from a damaged checkpoint."""
    shutil.copytree(good / "digits/a", place / "digits/a")
    run = place / "digits/a"
    path = run / "checkpoints/last.ckpt"
    kind = rng.choice(
        ["bytes", "bytes of both", "unhashed bytes", "keys", "pickle", "settings", "tuple"]
    )
    if kind in ("bytes", "unhashed bytes"):
        path.write_bytes(damage(rng, path.read_bytes()))
    if kind == "bytes of both":
        for name in ("last.ckpt", "previous.ckpt"):
            file = path.with_name(name)
            if file.exists():
                file.write_bytes(damage(rng, file.read_bytes()))
    if kind == "unhashed bytes":
        path.write_bytes(path.read_bytes()[:-40])
    if kind == "keys":
        content = torch.load(path, weights_only=True)
        node = content
        for _ in range(rng.randrange(4)):
            inner = [value for value in node.values() if isinstance(value, dict) and value]
            node = rng.choice(inner) if inner else node
        key = rng.choice(list(node))
        if rng.random() < 0.5:
            del node[key]
        else:
            node[key] = rng.choice([None, -1, "x", [], {}, torch.ones(2), float("nan")])
        for file in path.parent.iterdir():
            file.unlink()
        torch.save(content, path)
    if kind == "tuple":
        content = torch.load(path, weights_only=True)
        hide_in_a_tuple(content["blackout"], Path.cwd())
        for file in path.parent.iterdir():
            file.unlink()
        torch.save(content, path)
    if kind == "pickle":
        torch.save({"state_dict": {}, "blackout": {}, "x": Malicious()}, path)
        if rng.random() < 0.5:
            path.write_bytes(pickle.dumps(Malicious()))
    if kind == "settings":
        config = run / "config.yaml"
        config.write_bytes(damage(rng, config.read_bytes()))
    if rng.random() < 0.3:
        return Case(
            f"sampling, {kind}", "sample", [f"ckpt={path}", "num_samples=2", f"out={place / 'out'}"]
        )
    options = [*TRAIN, "trainer.max_steps=3", f"runs_dir={place}", "run_id=a"]
    return Case(f"resuming, {kind}", "train", options)


def exported(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a sampling run with a damaged model."""
    model = Path(shutil.copytree(good / "digits/a/model", place / "model"))
    kind = rng.choice(["weights", "bytes", "values", "values", "code", "attack"])
    description = model / "config.json"
    options = [f"ckpt={model}", "num_samples=2", f"out={place / 'out'}"]
    if kind == "attack":
        name = rng.choice(list(ATTACKS))
        content = json.loads(description.read_text())
        ATTACKS[name].edit(content, Path.cwd())
        description.write_text(json.dumps(content))
        return Case(
            f"model, {name}", "sample", [*options, f"data_dir={place}", *ATTACKS[name].arguments]
        )
    if kind == "weights":
        path = model / "model.safetensors"
        path.write_bytes(damage(rng, path.read_bytes()))
    elif kind == "bytes":
        description.write_bytes(damage(rng, description.read_bytes()))
    else:
        config = json.loads(description.read_text())
        mutate_description(rng, config, kind == "code")
        description.write_text(json.dumps(config))
    return Case(f"model, {kind}", "sample", [*options, "sampler.num_steps=4"])


def mutate_description(rng: random.Random, config: dict[str, Any], code: bool) -> None:
    """Change or remove an entry of a description, or replace it with a request for an action."""
    node = config
    for _ in range(rng.randrange(5)):
        inner = [value for value in node.values() if isinstance(value, dict) and value]
        node = rng.choice(inner) if inner else node
    key = rng.choice(list(node))
    values = [None, -1, 0, "x", [], {}, [1], 1e400, True, 10**25]
    if code:
        values = [{"_target_": "os.system", "command": "touch owned"}]
        values += [{"_target_": "builtins.open", "file": "owned", "mode": "w"}]
        values += [
            {"_target_": "blackout.diffusion.model.torch.load", "f": "x"},
            interpolation(Path.cwd()),
        ]
    if not code and rng.random() < 0.4:
        del node[key]
    else:
        node[key] = rng.choice(values)


def array(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a training run with an invalid array file."""
    kind = rng.choice(["bytes", "bytes", "values", "values", "shape", "objects", "not an array"])
    suffix = rng.choice(["npy", "npz"])
    values: Any = np.random.default_rng(rng.randrange(1000)).integers(0, 20, (40, 1, 4, 4))
    if kind == "values":
        odd = [-1, 2**40, -(2**63)] if rng.random() < 0.5 else [0.5, np.nan, np.inf, 1e300]
        values = values.astype(type(odd[0]) if isinstance(odd[0], float) else np.int64)
        values.flat[rng.randrange(values.size)] = rng.choice(odd)
    if kind == "shape":
        shapes: list[tuple[int, ...]] = [
            (),
            (0,),
            (3,),
            (1, 2),
            (0, 4),
            (5, 0),
            (4, 0, 3, 3),
            (2, 2, 2, 2, 2),
        ]
        values = np.zeros(rng.choice(shapes), dtype=np.int64)
    if kind == "objects":
        values = np.array([{"a": Malicious()}] * 4, dtype=object)
    path = place / f"x.{suffix}"
    if suffix == "npz":
        np.savez(path, **{rng.choice(["counts", "x", "train"]): values})
    else:
        np.save(path, values, allow_pickle=True)
    if kind == "bytes":
        path.write_bytes(damage(rng, path.read_bytes()))
    if kind == "not an array":
        path.write_bytes(pickle.dumps(Malicious()))
    options = [*TRAIN, "dataset=counts", f"dataset.path={path}", f"runs_dir={place / 'runs'}"]
    if rng.random() < 0.3:
        options.append(f"dataset.{rng.choice(['max_count', 'holdout'])}={rng.choice(VALUES)}")
    return Case(f"array, {kind}", "train", options)


def pictures(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a training run with a damaged image."""
    folder = place / "images"
    folder.mkdir()
    for number in range(6):
        mode = rng.choice(["RGB", "RGB", "L", "RGBA"])
        Image.new(mode, (8, 8), 7).save(folder / f"{number}.png")
    bad = folder / "3.png"
    bad.write_bytes(damage(rng, bad.read_bytes()))
    options = [
        *TRAIN,
        "dataset=image_folder",
        f"dataset.path={folder}",
        "dataset.size=8",
        f"runs_dir={place / 'runs'}",
    ]
    if rng.random() < 0.4:
        name = rng.choice(["size", "channels", "max_count", "holdout"])
        options.append(f"dataset.{name}={rng.choice(VALUES)}")
    return Case("pictures", "train", options)
