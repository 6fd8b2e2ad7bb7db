"""Invalid input for the other families, for posteriors, and for every file that a program reads."""

from __future__ import annotations

import io
import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tests.fuzz.cases import TRAIN, VALUES, Case, Malicious, leaves, mutate_description

COMMON = (
    "callbacks.progress=null",
    "callbacks.samples=null",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "trainer.max_steps=1",
    "trainer.limit_val_batches=1",
)
NARROW = ("network.width=8", "network.depth=1", "network.heads=2")
ROLLOUT = (
    "rollout.num_times=3",
    "rollout.chains=8",
    "rollout.group_size=8",
    "simulation.num_steps=2",
    "batch_size=8",
)
# family -> options of a training run of one step
FAMILIES = {
    "digits": tuple(TRAIN),
    "flow": (
        "family=flow",
        "target.size=2",
        "network.channels=4",
        "validation_samples=8",
        *ROLLOUT,
        *COMMON,
    ),
    "energy": (
        "family=energy",
        "~dataset",
        "target=ising",
        "target.size=2",
        "energy=pairs",
        "target_samples=40",
        "rates.channels=4",
        "negative.chains=8",
        "flow_steps=1",
        *ROLLOUT,
        *COMMON,
    ),
    "shuffle": (
        "family=shuffle",
        "dataset=jigsaw_digits",
        "decoder=beam",
        "dataset.num_test=12",
        "batch_size=8",
        *NARROW,
        *COMMON,
    ),
    "codes": (
        "family=codes",
        "dataset=cycles",
        "dataset.length=4",
        "dataset.train_share=1",
        "batch_size=8",
        "callbacks.scores=null",
        *NARROW,
        *COMMON,
    ),
}
# settings of `sample.py` that not all families share
REQUESTS = (
    *(
        (name, option)
        for name, options in {
            "digits": (
                "classes",
                "inpaint",
                "sampler.guidance.scale",
                "sampler.inpainting_particles",
                "passes",
            ),
            "flow": (
                "path",
                "simulation.num_steps",
                "simulation.resample_below",
                "oracle",
                "likelihood",
            ),
            "energy": ("path", "simulation.num_steps", "likelihood"),
            "shuffle": ("input", "decoder.width", "passes"),
            "codes": ("passes", "order", "condition", "input", "curve", "sampler.greedy"),
        }.items()
        for option in options
    ),
)
# (program, family, arguments with the file's path, suffix) of every reader of a user's file
FILES = (
    ("sample", "digits", ("inpaint={}",), "npz"),
    (
        "sample",
        "digits",
        ("posterior=sgdd", "operator=inpaint_random", "posterior.sweeps=2", "measurement={}"),
        "npz",
    ),
    (
        "sample",
        "digits",
        (
            "posterior=auto",
            "operator=matrix",
            "posterior.sweeps=2",
            "measurement=test:0",
            "operator.matrix={}",
        ),
        "npy",
    ),
    ("sample", "shuffle", ("input={}",), "npz"),
    ("sample", "codes", ("input={}",), "npy"),
    ("score", "digits", ("dataset=digits", "metrics=digits"), "npz"),
    ("score", "digits", ("dataset=digits", "metrics=digits"), "npy"),
    ("train", "flow", ("target=couplings", "target.path={}"), "npz"),
    ("train", "flow", ("target=mis", "target.path={}"), "edges"),
    ("train", "flow", ("target=mis", "target.path={}"), "csv"),
    ("train", "energy", ("dataset=counts", "dataset.path={}"), "npy"),
    ("train", "codes", ("dataset=permutations", "dataset.path={}"), "npy"),
    ("train", "codes", ("dataset=rankings", "dataset.path={}"), "csv"),
    ("train", "shuffle", ("dataset=items", "dataset.path={}"), "npz"),
    ("train", "shuffle", ("dataset=tsp", "dataset.path={}"), "txt"),
    ("train", "digits", ("process=generator", "process.matrix={}"), "npy"),
    ("train", "digits", ("process=generator", "process.matrix={}"), "npz"),
    ("train", "digits", ("process=discrete", "process.matrix={}"), "npy"),
    ("train", "digits", ("dataset=counts", "dataset.path={}"), "csv"),
)


def _npy(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def _header(shape: str) -> bytes:
    """Return an array file that claims a shape but has 64 bytes of data."""
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + bytes(64)


ARRAYS: dict[str, Any] = {
    "whole numbers": np.arange(64).reshape(1, 8, 8),
    "negative": np.full((3, 4), -1),
    "nothing": np.zeros((0, 4), int),
    "fractions": np.full((4, 4), 0.5),
    "no numbers": np.full((4, 4), np.nan),
    "infinite": np.full((4, 4), np.inf),
    "words": np.array([["a", "b"]]),
    "complex": np.ones((4, 4), complex),
    "dates": np.array(["2026-01-01"], "M8[D]"),
    "records": np.zeros(4, [("a", "i4"), ("b", "f8")]),
    "objects": np.array([Malicious()], dtype=object),
    "one number": np.array(7),
    "huge": np.full((2, 4), 2**62),
    "many axes": np.zeros((1,) * 20, int),
    "booleans": np.ones((1, 8, 8), bool),
    "unsigned": np.full((4, 4), 2**64 - 1, np.uint64),
}
CONTENTS: dict[str, bytes] = {
    **{name: _npy(array) for name, array in ARRAYS.items()},
    "empty": b"",
    "rubbish": random.Random(0).randbytes(300),
    "text": b"hello\n0 1 x\n",
    "pickle": pickle.dumps(Malicious()),
    "a header of petabytes": _header("(1125899906842624, 8)"),
    "a header of code": _header("(__import__('os').getpid(),)"),
    "cut": _npy(np.arange(64))[:150],
    "mark and rubbish": b"\xef\xbb\xbf\x00\xff,1\n2,3\n",
    "one long line": b"1," * 20_000,
    "zip of nothing": b"PK\x05\x06" + bytes(18),
    "numbers": b"0 1\n1 2\n2 0\n",
    "lines of nothing": b"\n" * 500,
    "negative numbers": b"-1,-2\n-3,-4\n",
    "columns": b"userId,movieId,rating\n1,1,x\n1,2,\n",
    "nul": bytes(500),
}
# names that programs look for in an .npz file; all of them get the same array
KEYS = ("x0", "mask", "y", "x", "J", "h", "states", "items", "counts", "samples", "data")
# paths that are not regular files
NOT_REGULAR = ("missing", "folder", "loop", "fifo", "device", "long name", "é")


def place_file(rng: random.Random, folder: Path, suffix: str) -> Path:
    """Create a file with this suffix, or a path that is not a regular file."""
    kind = rng.choice([*NOT_REGULAR, *CONTENTS, *CONTENTS])
    path = folder / ("n" * 300 if kind == "long name" else f"x.{suffix}")
    if kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind not in NOT_REGULAR:
        content = CONTENTS[kind]
        if suffix == "npz" and kind in ARRAYS:
            buffer = io.BytesIO()
            np.savez(buffer, **dict.fromkeys(KEYS, ARRAYS[kind]))
            content = buffer.getvalue()
        path.write_bytes(content)
    return path


def checkpoint_argument(family: str, good: Path) -> str:
    """Return `ckpt=` with a run of the family."""
    (run,) = good.glob("*/a") if family == "digits" else good.glob(f"{family}-runs/*/a")
    return f"ckpt={run}"


def family_file(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a run of a family with an invalid file."""
    program, family, arguments, suffix = rng.choice(FILES)
    path = place_file(rng, place, suffix)
    options = [argument.format(path) for argument in arguments]
    out = f"out={place / 'out'}"
    if program == "sample":
        return Case(
            f"{family} file",
            program,
            [checkpoint_argument(family, good), "num_samples=2", "device=cpu", out, *options],
        )
    if program == "score":
        return Case("scored file", "sample", [f"samples={path}", out, *options])
    other_options = [
        option
        for option in FAMILIES[family]
        if not option.startswith(("dataset.", "target.", "~dataset"))
    ]
    other_options = [
        option
        for option in other_options
        if option.split("=")[0] not in {word.split("=")[0] for word in options}
    ]
    return Case(f"{family} file", program, [*other_options, *options, f"runs_dir={place / 'runs'}"])


def family_setting(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a training run of a family with an invalid setting."""
    family = rng.choice([name for name in FAMILIES if name != "digits"])
    base = FAMILIES[family]
    argument = f"{rng.choice(leaves('train', base))}={rng.choice(VALUES)}"
    other_options = [
        option
        for option in base
        if not (option.split("=")[0] + ".").startswith(argument.split("=")[0] + ".")
    ]
    return Case(
        f"{family} {argument}", "train", [*other_options, f"runs_dir={place / 'runs'}", argument]
    )


def family_request(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a sampling run of a family with an invalid setting."""
    family, option = rng.choice(REQUESTS)
    argument = f"{option}={rng.choice((*VALUES, 'test:0', 'nowhere.npz', '9' * 9, '[0]'))}"
    ckpt = checkpoint_argument(family, good)
    return Case(
        f"{family} {argument}",
        "sample",
        [ckpt, "num_samples=2", f"out={place / 'out'}", "device=cpu", argument],
    )


def family_model(rng: random.Random, good: Path, place: Path) -> Case:
    """Return a sampling run of a family with a damaged model."""
    family = rng.choice([name for name in FAMILIES if name != "digits"])
    model = Path(
        shutil.copytree(
            Path(checkpoint_argument(family, good).removeprefix("ckpt=")) / "model", place / "model"
        )
    )
    description = model / "config.json"
    config = json.loads(description.read_text())
    mutate_description(rng, config, code=rng.random() < 0.3)
    description.write_text(json.dumps(config))
    return Case(
        f"{family} model",
        "sample",
        [f"ckpt={model}", "num_samples=2", "device=cpu", f"out={place / 'out'}"],
    )


KINDS = (family_file, family_setting, family_file, family_request, family_model)
