"""The exported model, in a folder or on the Hugging Face hub: safetensors weights, a JSON description, a model card.

Loading runs no code from the file.
"""

from __future__ import annotations

import importlib
import json
import math
import reprlib
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from blackout.component import Plain, leaves, thaw
from blackout.config.allowed_components import check_components, copy_plain_values
from blackout.config.instantiate import instantiate, is_component
from blackout.errors import UserError, error_context, refuse
from blackout.files import replacing_folder, save_tensors
from blackout.safe_reading import open_regular, read_mapping
from blackout.training.checkpoint_files import FORMAT, digest, find_checkpoint, first_difference, read_checkpoint
from blackout.version import __version__

_HASH, _CARD = "weights_sha256", "card_sha256"
_FILES = ("model.safetensors", "config.json", "README.md")
_LOADED = """```python
from blackout import load_model

model = load_model("path/to/this/directory")
"""
"""How the example of a model card begins."""
_SWAP = 0.05
"""Seconds, more than it takes to put a new folder in an old one's place."""
CHECKPOINTS = "a model is loaded with blackout.load_model(path); a Trainer continues with fit(model, ckpt_path=path)"


def export_model(model: Any, directory: Path, scores: Plain | None = None, license: str | None = None) -> None:
    """Write `model.safetensors` (averaged weights where there are any), `config.json` and `README.md` to a directory.

    The directory appears whole or not at all. The model in an existing one is replaced; what others have put there
    stays, a card that somebody has changed too. config.json holds the hashes of weights and card.

    Args:
        model: to be written, a `blackout.training.model.Model`.
        directory: where to.
        scores: by name, for the model card.
        license: of the weights, for the model card: an identifier such as cc-by-4.0.

    Raises:
        UserError: `directory` is a link or no model's; or the model has no description to be made again from.
    """
    check_replaceable(directory)
    if not {"model", "family"} <= model.config.keys():
        raise UserError("a model put together by hand has no description to be saved: make it with `from_data`")
    weights = {f"network.{name}": value.contiguous().cpu() for name, value in model.averaged.state_dict().items()}
    weights |= {name: value.cpu() for name, value in model.tensors().items()}
    description = {"format": FORMAT, "blackout": __version__, **thaw(model.config)}
    parameters = sum(p.numel() for p in model.averaged.parameters())
    card = model_card(description, parameters, scores or {}, license)
    with replacing_folder(directory) as part:
        save_tensors(weights, part / "model.safetensors")
        (part / "README.md").write_text(card, encoding="utf-8")
        description |= {_HASH: digest(part / "model.safetensors"), _CARD: digest(part / "README.md")}
        (part / "config.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
        if directory.exists():
            _keep_of_others(directory, part)


def check_loadable(description: Plain) -> None:
    """Refuse a description that could not be written, or not be read again: names from data can be anything.

    Raises:
        UserError: which of its values it is, and why.
    """
    written = {"format": FORMAT, "blackout": __version__, **thaw(description)}
    try:
        for form in (written, json.loads(json.dumps(written))):
            read = checked(form, Path("its description"))
        if all(str(name).startswith("blackout.") for key, name in leaves(read) if key.endswith("_target_")):
            check_components(read["model"], "model")
        model_card(read, 0, {}, None).encode()
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"a model of these data could not be loaded again: {error}") from None


def check_replaceable(directory: Path) -> None:
    """Refuse a folder in which files are, but no model: a model would take their place.

    Raises:
        UserError: it is one, or a link.
    """
    refuse(directory.is_symlink(), f"{directory} is a link; a model is not written to where it leads")
    if directory.exists() and not _written(directory):
        for path in directory.iterdir():
            raise UserError(f"{directory} holds {path.name} and no model of this program: name another folder")


def _written(directory: Path) -> dict[str, Any]:
    """What this program wrote into config.json there; nothing if it has not."""
    try:
        content = read_mapping(directory / "config.json")
    except (OSError, UserError):  # none, or a file of somebody else's
        return {}
    return content if "blackout" in content else {}


def _keep_of_others(old: Path, new: Path) -> None:
    """Copy what is in the folder of a model besides the model; its card too, where somebody has written in it."""
    card = digest(old / "README.md") if (old / "README.md").is_file() else None
    changed = card != _written(old).get(_CARD, card)
    own = {*_FILES} - ({"README.md"} if changed else set())
    outside = lambda folder, _: own if Path(folder) == old else set()  # noqa: E731
    shutil.copytree(old, new, symlinks=True, ignore=outside, dirs_exist_ok=True)


def model_card(description: Plain, parameters: int, scores: Mapping[str, float], license: str | None) -> str:
    """The README.md of an exported model, in Markdown: the metadata that hubs read, its data, its parts, how it is
    used, a table of scores.

    Args:
        description: of the model.
        parameters: how many its network has.
        scores: by name; those that are not finite are left out.
        license: of the weights; None where nobody has said.
    """
    family, facts = instantiate(description["family"], "family"), description.get("data") or {}
    lines = {"data": ", ".join(f"{name}={reprlib.repr(fact)}" for name, fact in facts.items())} if facts else {}
    lines |= {name: _in_words(part) for name, part in description["model"].items()}
    lines |= {"weights": f"{parameters:,}, averaged", "trained with": f"blackout {description['blackout']}"}
    listed = "\n".join(f"- {what}: {said}" for what, said in lines.items())
    data = str(facts.get("name", ""))
    finite = {name: float(value) for name, value in scores.items() if math.isfinite(value)}
    matter: dict[str, Any] = {"library_name": "blackout", "license": license or "unknown", "tags": ["blackout"]}
    if data and finite:
        metrics = [{"type": name, "value": value} for name, value in finite.items()]
        result = {"task": {"type": "other"}, "dataset": {"name": data, "type": data}, "metrics": metrics}
        matter["model-index"] = [{"name": f"blackout-{data}", "results": [result]}]
    rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in finite.items())
    splits = "\n`test/` scores are of test data, `val/` scores of validation data.\n" if "val/" in rows else ""
    table = f"\n## Scores\n\n| score | value |\n|---|---|\n{rows}{splits}" if rows else ""
    said = license or "not stated by whoever trained the model"
    told = f"# {family.title}{f' of {data}' if 'name' in facts else ''}\n\n{listed}\n\n{_LOADED}{family.usage}\n```\n"
    front, end = yaml.safe_dump(matter, sort_keys=False), f"{table}\n## Licence of the weights\n\n{said}\n"
    return f"---\n{front}---\n{told}{family.closing}{end}"


def _in_words(part: Any) -> str:
    """A part of a description as it would be written in Python, without what is long."""
    if not is_component(part):
        return reprlib.repr(part)
    given = ", ".join(f"{name}={_in_words(value)}" for name, value in part.items() if name[0] != "_")
    return f"{str(part['_target_']).rpartition('.')[2]}({given})"


def load_model(path: str | Path, trusted: tuple[str, ...] = ()) -> Any:
    """A trained model in eval mode with its averaged weights.

    Args:
        path: a run directory, a `.ckpt` file or an exported model directory.
        trusted: module prefixes, besides this package's, whose components the file may name (your own networks).

    Raises:
        UserError: nothing there, not a model, damaged, or of another format.
    """
    return load_trained(path, {"data_dir": "data"}, trusted)[0]


def load_trained(path: str | Path, settings: Plain, trusted: tuple[str, ...] = ()) -> tuple[Any, Any]:
    """A trained model, which knows how to get what it was trained on, and its `ComponentFamily`.

    Args:
        path, trusted: as for `load_model`.
        settings: of the program, which may choose another source that fits the model.

    Raises:
        UserError: as `load_model`; `model.source` raises what `ComponentFamily.source` does.
    """
    path = Path(path).expanduser()
    with error_context(str(path)):
        description, weights, tensors = read_model(path)
        check_components(description["model"], "model", trusted)
        for name, value in {**weights, **tensors}.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UserError(f"{path}: weight {name} is not finite")
        check_components(description.get("family"), "family", trusted)
        family = instantiate(description["family"], "family")
        model = family.build(description, tensors)
        different = first_difference(weights, model.network.state_dict())
        refuse(different is not None, f"{path}: the weights do not fit the network described beside them: {different}")
        model.network.load_state_dict(weights)
    model.source = partial(family.source, settings, model.config, tuple(trusted))
    return model.eval(), family


def start_from(model: Any, path: str | Path) -> None:
    """Begin a new run with the averaged weights of a trained model, in the network and in its average.

    Nothing that the file describes is made: only its weights are read.

    Args:
        model: in training, of whatever description.
        path: as for `load_model`.

    Raises:
        UserError: as `load_model` does; or the weights are of another network.
    """
    path = Path(path).expanduser()
    with error_context(str(path)):
        _, weights, _ = read_model(path)
        different = first_difference(weights, model.network.state_dict())
        refuse(different is not None, f"{path}: its network is another one: {different} differs")
        for network in {model.network, model.averaged}:
            network.load_state_dict(weights)


_Read: TypeAlias = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]


def read_model(path: Path) -> _Read:
    """The description, the network's weights and the other tensors of a model, which is not made.

    Raises:
        UserError: nothing there, not a model, damaged, or of another format.
    """
    refuse(not path.exists(), f"no model at {path}")
    try:
        return _read(path)
    except UserError:
        time.sleep(_SWAP)  # a run may be replacing its model at this moment
        return _read(path)


def _read(path: Path) -> _Read:
    """A checkpoint, an exported model, or either in a run directory."""
    if path.is_dir() and not (path / "config.json").exists():
        found = path / "model" if (path / "model").exists() else find_checkpoint(path / "checkpoints")
        if found is None:
            raise UserError(f"no model in {path}: expected config.json, model/ or checkpoints/last.ckpt there")
        path = found
    return _read_export(path) if path.is_dir() else _read_checkpoint(path)


def _read_export(directory: Path) -> _Read:
    try:
        description = read_mapping(directory / "config.json")
        open_regular(directory / "model.safetensors").close()
        tensors = load_file(directory / "model.safetensors")
    except FileNotFoundError as error:
        missing = Path(error.filename or "model.safetensors").name
        raise UserError(f"{directory} is not a whole model: {missing} is missing") from None
    except SafetensorError as error:
        raise UserError(f"{directory} is damaged: {error}") from None
    description = checked(description, directory)
    description.pop(_CARD, None)
    if description.pop(_HASH, None) != digest(directory / "model.safetensors"):
        raise UserError(f"{directory} is damaged: model.safetensors does not match its hash in config.json")
    return description, *_parted(tensors, "network.")


def _parted(tensors: Mapping[str, Tensor], prefix: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights under a prefix, and what a model keeps beside its networks."""
    weights = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return weights, {name: value for name, value in tensors.items() if not name.startswith(("ema.", "network."))}


def _read_checkpoint(path: Path) -> _Read:
    checkpoint = read_checkpoint(path)
    state = {name: value for name, value in checkpoint["state_dict"].items() if isinstance(value, Tensor)}
    prefix = "ema.module." if any(name.startswith("ema.module.") for name in state) else "network."
    return checked({"format": FORMAT, **checkpoint["blackout"]}, path), *_parted(state, prefix)


def checked(description: Any, path: Path) -> dict[str, Any]:
    """A model's description in plain containers.

    Raises:
        UserError: it is none, holds more than plain values, or is of another format.
    """
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise UserError(f"{path} does not describe a Blackout model")
    found = reprlib.repr(description.get("format"))
    refuse(description.get("format") != FORMAT, f"{path} has format {found}; this version reads format {FORMAT}")
    return dict(copy_plain_values(description, str(path)))


class Pretrained:
    """What every model can do with files.

    The folder that is written holds safetensors and JSON, and nothing of it is executed when it is read; it names no
    path of this machine.
    """

    def save_pretrained(self, directory: str | Path, scores: Plain | None = None, license: str | None = None) -> None:
        """Write the averaged weights, a description and a model card, for `blackout.load_model`.

        Args:
            directory: where to; a model in it is replaced, and files of others are not.
            scores: by name, for the card.
            license: of the weights, for the card, such as cc-by-4.0.

        Raises:
            UserError: the model has no description, or `directory` is a link or holds files and no model.
        """
        export_model(self, Path(directory), scores, license)

    @classmethod
    def from_pretrained(cls, name: str | Path, trusted: tuple[str, ...] = (), **options: Any) -> Any:
        """A model from a folder, or from the Hugging Face hub where there is no such folder.

        Args:
            name: a path as for `load_model`, or a repository `owner/name`.
            trusted: as for `load_model`.
            options: of `huggingface_hub.snapshot_download`: revision, token, cache_dir, ...

        Raises:
            UserError: as `load_model`, or huggingface_hub is not installed.
        """
        if not Path(name).expanduser().exists():
            name = _hub().snapshot_download(str(name), allow_patterns=[*_FILES], **options)
        return load_model(name, trusted)

    def push_to_hub(self, repo_id: str, scores: Plain | None = None, license: str | None = None, **options: Any) -> str:
        """Upload what `save_pretrained` writes to the Hugging Face hub.

        Args:
            repo_id: `owner/name`; made if it does not exist.
            scores, license: as for `save_pretrained`.
            options: of `huggingface_hub.ModelHubMixin.push_to_hub`: private, token, branch, commit_message, ...

        Returns:
            The address of the commit.

        Raises:
            UserError: huggingface_hub is not installed.
        """
        model = self

        class Upload(_hub().ModelHubMixin):  # type: ignore[misc]  # the class is only known where it is installed
            def _save_pretrained(self, save_directory: Path) -> None:
                export_model(model, save_directory, scores, license)

        return str(Upload().push_to_hub(repo_id, **options))

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Lightning's way, which would need the arguments of this class: raises UserError that names ours."""
        raise UserError(CHECKPOINTS)


def _hub() -> Any:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UserError("the hub needs a package that is not installed: pip install huggingface_hub") from None
