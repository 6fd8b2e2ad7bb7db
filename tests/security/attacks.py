"""Model files that ask for something to be done: each wrote a file, made a folder or ran a program once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Description = dict[str, Any]
EVALUATE = ("evaluate=true", "likelihood.images=0")
VICTIM = "something worth keeping"


class Attack(NamedTuple):
    """What is changed in a description, and the arguments of `sample.py` under which it was obeyed.

    `edit` gets the description and a folder, where `owned` appears or `victim` changes if the attack succeeds.
    """

    edit: Callable[[Description, Path], object]
    arguments: tuple[str, ...] = ()


def action(place: Path) -> Description:
    """A component that makes a folder."""
    return {"_target_": "os.makedirs", "name": f"{place}/owned"}


def interpolation(place: Path) -> str:
    """The same in a string, as OmegaConf would resolve it."""
    return f"${{oc.create:{{_target_:os.makedirs,name:{place}/owned}}}}"


class _Net(torch.nn.Module):
    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = torch.from_file(self.target, True, 8, dtype=torch.uint8)
        return images.float().mean((2, 3)) + made.float().sum()


def program(place: Path) -> Description:
    """A TorchScript file that makes a file, as extractor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(_Net(f"{place}/owned")).save(f"{place}/net.pt")
    address = "blackout.evaluation.ModuleExtractor"
    module = {"_target_": "torch.jit.load", "f": f"{place}/net.pt"}
    return {"_target_": address, "_partial_": True, "module": module, "num_features": 3, "name": "net"}


def written_reference(place: Path) -> Description:
    """Statistics of the digits, written over the victim."""
    source = {"_target_": "blackout.data.digits", "_partial_": True}
    extractor = {"_target_": "blackout.evaluation.Classifier", "source": source, "cache": f"{place}/cache"}
    reference = {
        "_target_": "blackout.evaluation.dataset_reference", "data": {"_target_": "blackout.data.digits"},
        "split": "test", "extractor": extractor, "with_features": False, "cache": f"{place}/cache",
    }  # fmt: skip
    return {"_target_": "blackout.evaluation.write_reference", "path": f"{place}/victim", "reference": reference}


def put(*keys: str, make: Callable[[Path], Any]) -> Callable[[Description, Path], None]:
    """Set one entry of a description."""

    def edit(description: Description, place: Path) -> None:
        node = description
        for key in keys[:-1]:
            node = node[key]
        node[keys[-1]] = make(place)

    return edit


def owned(place: Path) -> str:
    return f"{place}/owned"


def mnist(place: Path) -> Description:
    return {"_target_": "blackout.data.mnist", "data_dir": owned(place)}


def scored_by_a_program(description: Description, place: Path) -> None:
    description["metrics"] |= {"extractor": program(place), "scores": ["fd"]}


ATTACKS = {
    "interpolation in the process": Attack(put("model", "process", "max_count", make=interpolation)),
    "interpolation in the network": Attack(put("model", "network", "body", "width", make=interpolation)),
    "interpolation in the sampler": Attack(put("model", "sampler", "num_steps", make=interpolation)),
    "interpolation in the dataset": Attack(put("dataset", "holdout", make=interpolation), EVALUATE),
    "interpolation in the metrics": Attack(put("metrics", "batch_size", make=interpolation), EVALUATE),
    "a fact that is none": Attack(put("data", "between", make=action), ("sampler.num_steps=3",)),
    "scores by a program": Attack(scored_by_a_program, EVALUATE),
    "scores kept in a folder of its choice": Attack(put("metrics", "cache", make=owned), EVALUATE),
    "a classifier kept in a folder of its choice": Attack(put("metrics", "extractor", "cache", make=owned), EVALUATE),
    "a dataset downloaded to a folder of its choice": Attack(put("dataset", make=mnist), EVALUATE),
    "a classifier's dataset downloaded": Attack(
        put("metrics", "extractor", "source", make=lambda place: {**mnist(place), "_partial_": True}), EVALUATE
    ),
    "an allowed name that writes": Attack(put("metrics", make=written_reference), EVALUATE),
}  # fmt: skip
"""In `config.json`."""


def hide_in_a_tuple(description: Description, place: Path) -> None:
    """Only checkpoints have tuples."""
    description["model"]["sampler"]["correction"]["between"] = (action(place),)
