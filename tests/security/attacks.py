"""Model files that request an action: each wrote a file, made a folder or ran a program once."""

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
    """A change to a description, and the arguments of `sample.py` with which it was obeyed.

    Args:
        edit: changes a description. It also gets a folder, where `owned` appears or `victim`
            changes if the attack succeeds.
        arguments: of `sample.py`.
    """

    edit: Callable[[Description, Path], object]
    arguments: tuple[str, ...] = ()


def action(place: Path) -> Description:
    """Return a component that makes a folder."""
    return {"_target_": "os.makedirs", "name": f"{place}/owned"}


def interpolation(place: Path) -> str:
    """Return the same action as a string, as OmegaConf would resolve it."""
    return f"${{oc.create:{{_target_:os.makedirs,name:{place}/owned}}}}"


class _Net(torch.nn.Module):
    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        content = torch.from_file(self.target, True, 8, dtype=torch.uint8)
        return images.float().mean((2, 3)) + content.float().sum()


def program(place: Path) -> Description:
    """Save a TorchScript file that makes a file, and return it as an extractor."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.script(_Net(f"{place}/owned")).save(f"{place}/net.pt")
    address = "blackout.evaluation.ModuleExtractor"
    module = {"_target_": "torch.jit.load", "f": f"{place}/net.pt"}
    return {
        "_target_": address,
        "_partial_": True,
        "module": module,
        "num_features": 3,
        "name": "net",
    }


def overwriting_reference(place: Path) -> Description:
    """Return statistics of the digits that are written over the victim."""
    source = {"_target_": "blackout.data.digits", "_partial_": True}
    extractor = {
        "_target_": "blackout.evaluation.Classifier",
        "source": source,
        "cache": f"{place}/cache",
    }
    reference = {
        "_target_": "blackout.evaluation.dataset_reference",
        "data": {"_target_": "blackout.data.digits"},
        "split": "test",
        "extractor": extractor,
        "with_features": False,
        "cache": f"{place}/cache",
    }
    return {
        "_target_": "blackout.evaluation.write_reference",
        "path": f"{place}/victim",
        "reference": reference,
    }


def set_entry(*keys: str, make: Callable[[Path], Any]) -> Callable[[Description, Path], None]:
    """Return an edit that sets one entry of a description."""

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


def score_by_a_program(description: Description, place: Path) -> None:
    """Use a TorchScript program as the extractor of the scores."""
    description["metrics"] |= {"extractor": program(place), "scores": ["fd"]}


# edits of `config.json`
ATTACKS = {
    "interpolation in the process": Attack(
        set_entry("model", "process", "max_count", make=interpolation)
    ),
    "interpolation in the network": Attack(
        set_entry("model", "network", "body", "width", make=interpolation)
    ),
    "interpolation in the sampler": Attack(
        set_entry("model", "sampler", "num_steps", make=interpolation)
    ),
    "interpolation in the dataset": Attack(
        set_entry("dataset", "holdout", make=interpolation), EVALUATE
    ),
    "interpolation in the metrics": Attack(
        set_entry("metrics", "batch_size", make=interpolation), EVALUATE
    ),
    "an unknown fact": Attack(set_entry("data", "between", make=action), ("sampler.num_steps=3",)),
    "scores by a program": Attack(score_by_a_program, EVALUATE),
    "scores cached in a folder of its choice": Attack(
        set_entry("metrics", "cache", make=owned), EVALUATE
    ),
    "a classifier cached in a folder of its choice": Attack(
        set_entry("metrics", "extractor", "cache", make=owned), EVALUATE
    ),
    "a dataset downloaded to a folder of its choice": Attack(
        set_entry("dataset", make=mnist), EVALUATE
    ),
    "a classifier's dataset downloaded": Attack(
        set_entry(
            "metrics", "extractor", "source", make=lambda place: {**mnist(place), "_partial_": True}
        ),
        EVALUATE,
    ),
    "an allowed name that writes": Attack(
        set_entry("metrics", make=overwriting_reference), EVALUATE
    ),
}


def hide_in_a_tuple(description: Description, place: Path) -> None:
    """Hide an action in a tuple, which only checkpoints can contain."""
    description["model"]["sampler"]["correction"]["logit_range"] = (action(place),)
