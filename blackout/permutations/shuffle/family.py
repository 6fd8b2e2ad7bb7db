"""The family of shuffle diffusions: from settings and puzzles to a model, and back from its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from blackout.component import component
from blackout.errors import UserError, error_context
from blackout.permutations.datasets import Puzzles
from blackout.permutations.shuffle.draw import check_kind
from blackout.permutations.shuffle.model import ShuffleDiffusion
from blackout.permutations.shuffle.reverse import Reverse, default_schedule
from blackout.permutations.shuffles import Shuffle
from blackout.training.components import fill, find, make
from blackout.training.descriptions import make_dataset, pathless

PARTS = ("network", "shuffle", "reverse", "loss", "sampler")
_FACTS = {"num_items": int, "item_shape": list, "first_fixed": bool, "std": float, "kind": str}


@component("family")
@dataclass(frozen=True)
class ShuffleFamily:
    """Shuffle diffusion on permutations (Zhang et al., SymmetricDiffusers, ICLR 2025).

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/nll_bits"

    def source(
        self, settings: Mapping[str, Any], description: Mapping[str, Any] | None = None, trusted: tuple[str, ...] = ()
    ) -> Puzzles:
        """The puzzles chosen in the settings, else those in a model's description, which they must fit.

        Raises:
            UserError: there are none, they cannot be made, or they do not fit the model.
        """
        source = make_dataset(settings, description, trusted)
        if not isinstance(source, Puzzles):
            name = type(source).__name__
            raise UserError(f"dataset: {name} has no puzzles: choose jigsaw_digits, sort_digits, tsp, ...")
        if description is not None:
            _check_same_kind(source, _checked_facts(description))
        return source

    def describe(self, settings: Mapping[str, Any], source: Puzzles) -> dict[str, Any]:
        """Every component with all its arguments, the schedule among them.

        Raises:
            UserError: components that do not go together.
        """
        parts: dict[str, Any] = {name: fill(settings[name], source.facts, name) for name in PARTS}
        reverse: Reverse = make(parts["reverse"], "reverse")
        facts = {**source.facts, "places": reverse.places, "swap": reverse.swap}
        _check_parts(parts)
        check_kind(make(parts["sampler"], "sampler"), source.kind)
        # twice: what is filled in, the encoder, has facts of its own to ask for
        parts["network"] = fill(fill(parts["network"], facts, "network"), facts, "network")
        parts["shuffle"] = _with_schedule(parts["shuffle"], reverse, source)
        if not make(parts["loss"], "loss").labels and source.kind in ("points", "tokens"):
            raise UserError(f"loss: learning without labels needs items with pixels, not {source.kind}")
        own_file = bool((settings.get("dataset") or {}).get("path"))
        kept = {name: source.facts[name] for name in _FACTS if name != "kind"}
        return {
            "data": {"name": source.name, "kind": source.kind, **kept},
            "dataset": {} if own_file else pathless(settings.get("dataset") or {}),
            "metrics": None,
            "model": parts,
        }

    def tensors(self, source: Puzzles) -> dict[str, Tensor]:
        """None: a model keeps nothing of its puzzles."""
        return {}

    def build(
        self,
        description: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        settings: Mapping[str, Any] | None = None,
        **training: Any,
    ) -> ShuffleDiffusion:
        """The model that `describe` describes.

        Raises:
            UserError: a part is missing, or a component refused its arguments.
        """
        data, model = _checked_facts(description), description.get("model")
        if not isinstance(model, Mapping):
            raise UserError("there is no description of a model")
        if missing := [part for part in PARTS if not isinstance(model.get(part), Mapping)]:
            raise UserError(f"there is no description of a whole model: {', '.join(missing)} missing")
        parts = {name: make(model[name], name) for name in PARTS}
        with error_context("model"):
            made = ShuffleDiffusion(data=data, **parts, **training)
        made.config = dict(description)
        return made

    def card(self, description: Mapping[str, Any], parameters: int) -> str:
        """The README.md of an exported model."""
        data, model = description["data"], description["model"]
        loss: Any = find(model["loss"], "loss")
        labels = "with permutation labels" if loss.labels else "without permutation labels"
        return f"""# A shuffle diffusion of {data["name"]}

- data: {data["name"]}, lists of {data["num_items"]} {data["kind"]}
- shuffle: {_name(model["shuffle"]["law"])}, looked at after {model["shuffle"]["schedule"]}
- reverse law: {_name(model["reverse"])}
- network: {_name(model["network"])}, {parameters:,} parameters (averaged weights)
- trained with blackout {description["blackout"]}, {labels}

```
python sample.py ckpt=path/to/this/directory num_samples=64 sampler=beam
```
"""


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse what belongs to another family of models.

    Raises:
        UserError: a loss, a sampler or a network of another kind.
    """
    choices = {
        "loss": ("labels", "trajectory, random_time, label_free or informed"),
        "sampler": ("evaluations", "greedy, beam or sample"),
        "network": ("scores", "set_transformer"),
    }  # fmt: skip
    for name, (attribute, words) in choices.items():
        if not hasattr(find(parts[name], name), attribute):
            raise UserError(f"{name}: {_name(parts[name])} is of another family of models; here it is {words}")


def _with_schedule(part: Mapping[str, Any], reverse: Reverse, source: Puzzles) -> dict[str, Any]:
    """A description of the forward process with its schedule written out.

    Raises:
        UserError: a reverse law that cannot undo its steps.
    """
    law: Shuffle = make(part.get("law"), "shuffle.law")
    free = source.num_items - int(source.facts["first_fixed"])
    if reverse.undoes is not None and not isinstance(law, reverse.undoes):
        raise UserError(f"reverse: {type(reverse).__name__} undoes {reverse.undoes.__name__}, not {type(law).__name__}")
    schedule = part.get("schedule")
    if schedule is None:
        schedule = default_schedule(law, free, reverse.undoes is not None)
    described = {**part, "schedule": schedule}
    process = make(described, "shuffle")
    if reverse.undoes is not None and process.merged:
        raise UserError(
            f"shuffle.schedule: {type(reverse).__name__} undoes single shuffles: [0,1,2,...] in steps of 1, not "
            f"{schedule} (reverse=gpl and reverse=pl undo any number)"
        )
    return described


def _check_same_kind(source: Puzzles, data: Mapping[str, Any]) -> None:
    theirs = (data["num_items"], list(data["item_shape"]), data["kind"])
    mine = (source.num_items, list(source.item_shape), source.kind)
    if mine != theirs:
        raise UserError(
            f"the model puts {theirs[0]} {theirs[2]} of shape {theirs[1]} in order, but {source.name} has {mine[0]} "
            f"{mine[2]} of shape {mine[1]}"
        )


def _checked_facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """The facts of the puzzles, of a description that may come from a damaged file."""
    data = description.get("data")
    if not isinstance(data, Mapping) or any(type(data.get(name)) is not kind for name, kind in _FACTS.items()):
        raise UserError("there is no description of the puzzles a model is of")
    shape = data["item_shape"]
    if data["num_items"] < 2 or any(type(side) is not int or side < 1 for side in shape) or not data["std"] > 0:
        raise UserError("the description of the puzzles a model is of is impossible")
    return dict(data)


def _name(component: Mapping[str, Any]) -> str:
    return str(component["_target_"]).rsplit(".", 1)[-1]
