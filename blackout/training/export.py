"""Exported models: safetensors weights, a JSON description and a model card.

They lie in a folder or on the Hugging Face hub. Loading runs no code from the files.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import reprlib
import shutil
import stat
import time
from collections.abc import Mapping
from contextlib import nullcontext
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
from blackout.safe_reading import (
    available_memory,
    limit_memory,
    open_regular,
    read_mapping,
    reading,
)
from blackout.training.checkpoint_files import (
    FORMAT,
    file_sha256,
    find_checkpoint,
    first_difference,
    read_checkpoint,
)
from blackout.version import __version__

WEIGHTS_FILE = "model.safetensors"
DESCRIPTION_FILE = "config.json"
CARD_FILE = "README.md"
EXPORTED_FILES = (WEIGHTS_FILE, DESCRIPTION_FILE, CARD_FILE)

WEIGHTS_HASH = "weights_sha256"  # key of config.json
CARD_HASH = "card_sha256"  # key of config.json

NETWORK_PREFIX = "network."  # of the trained weights
AVERAGED_PREFIX = "ema.module."  # of the averaged weights in a checkpoint
AVERAGE_PREFIX = "ema."  # of everything that belongs to the average in a checkpoint

# How the example of a model card begins; the family's usage follows.
USAGE_START = """```python
from blackout import load_model

model = load_model("path/to/this/directory")
"""

RETRY_SECONDS = 0.05  # more than it takes to rename a new folder into the place of the old one

LIGHTNING_LOADING = (
    "load_from_checkpoint is not supported: load a model with blackout.load_model(path), "
    "or continue its training with Trainer.fit(model, ckpt_path=path)"
)

# the description of a model, the weights of its network by name, and its other tensors by name
ModelContents: TypeAlias = tuple[dict[str, Any], dict[str, Tensor], dict[str, Tensor]]


def export_model(
    model: Any, directory: Path, scores: Plain | None = None, license: str | None = None
) -> None:
    """Write `model.safetensors`, `config.json` and `README.md` to a directory.

    The weights are the averaged ones where there are any. The directory appears completely or not
    at all. An earlier model in it is replaced. Other files stay, and so does a model card that has
    been edited. `config.json` contains the hashes of the weights and of the card.

    Args:
        model: a `blackout.training.model.Model`.
        directory: the folder to write.
        scores: for the model card, by name.
        license: of the weights, for the model card: an identifier such as cc-by-4.0.

    Raises:
        UserError: `directory` is a link, or contains files but no model; or the model has no
            description from which it can be built again.
    """
    # 1. Check that the folder may be replaced and that the model can be described.
    check_replaceable(directory)
    if not {"model", "family"} <= model.config.keys():
        raise UserError(
            "a model that was built without a description cannot be saved; "
            "build it with `from_data` of its class"
        )

    # 2. Collect the weights, the description and the card.
    tensors = {}
    for name, value in model.averaged.state_dict().items():
        tensors[f"{NETWORK_PREFIX}{name}"] = value.contiguous().cpu()
    for name, value in model.tensors().items():
        tensors[name] = value.cpu()
    description = {"format": FORMAT, "blackout": __version__, **thaw(model.config)}
    num_parameters = sum(p.numel() for p in model.averaged.parameters())
    card = model_card(description, num_parameters, scores or {}, license)

    # 3. Write them to a new folder, which replaces the old one.
    with replacing_folder(directory) as folder:
        save_tensors(tensors, folder / WEIGHTS_FILE)
        (folder / CARD_FILE).write_text(card, encoding="utf-8")
        description[WEIGHTS_HASH] = file_sha256(folder / WEIGHTS_FILE)
        description[CARD_HASH] = file_sha256(folder / CARD_FILE)
        text = json.dumps(description, indent=2) + "\n"
        (folder / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
        if directory.exists():
            _copy_other_files(directory, folder)


def check_loadable(description: Plain) -> None:
    """Check that a model with this description can be written and loaded again.

    Names that come from the data can contain any characters, or too many.

    Raises:
        UserError: names the value that cannot be written or read, and why.
    """
    written = {"format": FORMAT, "blackout": __version__, **thaw(description)}
    try:
        read = check_description(written, Path("its description"))
        read = check_description(json.loads(json.dumps(written)), Path("its description"))
        targets = [str(name) for key, name in leaves(read) if key.endswith("_target_")]
        if all(target.startswith("blackout.") for target in targets):
            check_components(read["model"], "model")
        model_card(read, 0, {}, None).encode()
    except (UserError, ValueError, TypeError) as error:
        raise UserError(f"a model of these data could not be loaded again: {error}") from None


def check_replaceable(directory: Path) -> None:
    """Check that a model may be written to a folder: it is new, empty or contains a model.

    Raises:
        UserError: the folder contains other files and no model, or a pipe or device; or is a link.
    """
    refuse(
        directory.is_symlink(),
        f"{directory} is a link, and models are not written through links; name the folder itself",
    )
    if directory.exists() and not _read_exported_description(directory):
        for path in directory.iterdir():
            raise UserError(
                f"{directory} contains {path.name} and no model of this program; "
                "name another folder"
            )
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            is_file = stat.S_ISREG(path.lstat().st_mode) or path.is_symlink()
            refuse(not is_file, f"{path} is a pipe or a device, which cannot be copied: remove it")


def _read_exported_description(directory: Path) -> dict[str, Any]:
    """Return the content of config.json if this program wrote it; otherwise an empty mapping."""
    try:
        content = read_mapping(directory / DESCRIPTION_FILE)
    except (OSError, UserError):  # there is none, or it is a file of another program
        return {}
    return content if "blackout" in content else {}


def _copy_other_files(old: Path, new: Path) -> None:
    """Copy the files of a model's folder that are not the model's, and its card if it was edited.

    Args:
        old: folder of the earlier model.
        new: folder of the new model.
    """
    not_copied = set(EXPORTED_FILES)
    card = old / CARD_FILE
    if card.is_file():
        card_sha256 = file_sha256(card)
        if card_sha256 != _read_exported_description(old).get(CARD_HASH, card_sha256):
            not_copied.remove(CARD_FILE)

    def ignore(folder: str, names: list[str]) -> set[str]:
        return not_copied if Path(folder) == old else set()

    shutil.copytree(old, new, symlinks=True, ignore=ignore, dirs_exist_ok=True)


def model_card(
    description: Plain, num_parameters: int, scores: Mapping[str, float], license: str | None
) -> str:
    """Return the README.md of an exported model, in Markdown.

    It contains the metadata that hubs read, the data, the components, an example and the scores.

    Args:
        description: of the model.
        num_parameters: of its network.
        scores: by name; those that are not finite are left out.
        license: of the weights; None if it is not known.
    """
    family = instantiate(description["family"], "family")
    data = description.get("data") or {}
    finite_scores = {k: float(value) for k, value in scores.items() if math.isfinite(value)}

    # 1. Metadata for hubs.
    metadata = _card_metadata(str(data.get("name", "")), finite_scores, license)
    front_matter = yaml.safe_dump(metadata, sort_keys=False)

    # 2. Title and components.
    title = family.title
    if "name" in data:
        title += f" of {data['name']}"
    lines = {}
    if data:
        values = [f"{name}={reprlib.repr(value)}" for name, value in data.items()]
        lines["data"] = ", ".join(values)
    for name, part in description["model"].items():
        lines[name] = _format_component(part)
    lines["weights"] = f"{num_parameters:,}, averaged"
    lines["trained with"] = f"blackout {description['blackout']}"
    components = "\n".join(f"- {name}: {text}" for name, text in lines.items())

    # 3. Example, scores and licence.
    example = f"{USAGE_START}{family.usage}\n```\n"
    license_text = license or "not stated by whoever trained the model"
    return (
        f"---\n{front_matter}---\n"
        f"# {title}\n\n{components}\n\n{example}{family.closing}{_score_table(finite_scores)}"
        f"\n## Licence of the weights\n\n{license_text}\n"
    )


def _card_metadata(data: str, scores: Mapping[str, float], license: str | None) -> dict[str, Any]:
    """Return the metadata of a model card, as the Hugging Face hub reads them.

    Args:
        data: name of the data set; empty if it has none.
        scores: finite, by name.
        license: of the weights; None if it is not known.
    """
    metadata: dict[str, Any] = {"library_name": "blackout"}
    metadata["license"] = license or "unknown"
    metadata["tags"] = ["blackout"]
    if data and scores:
        result = {
            "task": {"type": "other"},
            "dataset": {"name": data, "type": data},
            "metrics": [{"type": name, "value": value} for name, value in scores.items()],
        }
        metadata["model-index"] = [{"name": f"blackout-{data}", "results": [result]}]
    return metadata


def _score_table(scores: Mapping[str, float]) -> str:
    """Return the section of a model card with the scores; empty without scores."""
    if not scores:
        return ""
    rows = "".join(f"| {name} | {value:.6g} |\n" for name, value in scores.items())
    table = f"\n## Scores\n\n| score | value |\n|---|---|\n{rows}"
    if "val/" in rows:
        table += "\n`test/` scores are of test data, `val/` scores of validation data.\n"
    return table


def _format_component(part: Any) -> str:
    """Return a component of a description as a call in Python; long values are abbreviated."""
    if not is_component(part):
        return reprlib.repr(part)
    arguments = [
        f"{name}={_format_component(value)}" for name, value in part.items() if name[0] != "_"
    ]
    class_name = str(part["_target_"]).rpartition(".")[2]
    return f"{class_name}({', '.join(arguments)})"


def load_model(path: str | Path, trusted: tuple[str, ...] = ()) -> Any:
    """Load a trained model in eval mode with its averaged weights.

    Args:
        path: a run directory, a `.ckpt` file or the directory of an exported model.
        trusted: prefixes of modules outside this package whose components the file may name, such
            as those of your own networks.

    Raises:
        UserError: there is no model at `path`, or it is damaged or has another format.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from blackout import from_data
        >>> model = from_data(torch.arange(80).view(20, 4) % 9)  # untrained
        >>> with TemporaryDirectory() as folder:
        ...     model.save_pretrained(f"{folder}/model")
        ...     load_model(f"{folder}/model").sample(2, num_steps=3).shape
        torch.Size([2, 4])
    """
    model, _ = load_trained(path, {"data_dir": "data"}, trusted)
    return model


def load_trained(
    path: str | Path, settings: Plain, trusted: tuple[str, ...] = ()
) -> tuple[Any, Any]:
    """Load a trained model that can load its training data, and its `ComponentFamily`.

    Args:
        path: as for `load_model`.
        settings: of the program; they may choose another source that fits the model.
        trusted: as for `load_model`.

    Raises:
        UserError: as `load_model`; `model.source` raises the errors of `ComponentFamily.source`.
    """
    path = Path(path).expanduser()
    with error_context(str(path)):
        # 1. Read the file, and check all of it before anything is built.
        description, weights, tensors = read_model(path)
        check_components(description["model"], "model", trusted)
        for name, value in {**weights, **tensors}.items():
            if value.is_floating_point() and not bool(torch.isfinite(value).all()):
                raise UserError(f"{path}: weight {name} is not finite; the model cannot be used")
        check_components(description.get("family"), "family", trusted)

        # 2. Build the model. The description may come from anyone: building can fail with any
        # error, and ask for any amount of memory. An error of a trusted component keeps its
        # traceback.
        problem = "the model of its description cannot be built"
        building = nullcontext() if trusted else reading(path, problem)
        with building, limit_memory(available_memory()):
            family = instantiate(description["family"], "family")
            model = family.build(description, tensors)

        # 3. Load the weights.
        difference = first_difference(weights, model.network.state_dict())
        refuse(
            difference is not None,
            f"{path}: the weights do not fit the network in the description: {difference} differs",
        )
        model.network.load_state_dict(weights)
    model.source = partial(family.source, settings, model.config, tuple(trusted))
    return model.eval(), family


def start_from(model: Any, path: str | Path) -> None:
    """Load the averaged weights of a trained model into the network and its average.

    Only the weights of the file are used; nothing that its description names is built.

    Args:
        model: a model in training; its description may differ from that of the file.
        path: as for `load_model`.

    Raises:
        UserError: as `load_model`; or the weights are those of another network.
    """
    path = Path(path).expanduser()
    with error_context(str(path)):
        _, weights, _ = read_model(path)
        difference = first_difference(weights, model.network.state_dict())
        refuse(
            difference is not None,
            f"{path} has another network than this run: {difference} differs; "
            "use the same network=... as for that model",
        )
        for network in {model.network, model.averaged}:
            network.load_state_dict(weights)


def read_model(path: Path) -> ModelContents:
    """Read the description, the network's weights and the other tensors of a model.

    Nothing is built.

    Args:
        path: as for `load_model`.

    Raises:
        UserError: there is no model at `path`, or it is damaged or has another format.
    """
    refuse(not path.exists(), f"there is no model at {path}")
    try:
        return _read_model_once(path)
    except UserError:
        # A run may be replacing its model at this moment.
        time.sleep(RETRY_SECONDS)
        return _read_model_once(path)


def _read_model_once(path: Path) -> ModelContents:
    """Read a checkpoint, an exported model, or one of them from a run directory."""
    if not path.is_dir():
        return _read_checkpoint(path)
    if (path / DESCRIPTION_FILE).exists():
        return _read_export(path)
    # a run directory: its exported model, otherwise its last checkpoint
    if (path / "model").exists():
        model_path: Path | None = path / "model"
    else:
        model_path = find_checkpoint(path / "checkpoints")
    if model_path is None:
        raise UserError(
            f"there is no model in {path}: it needs config.json, model/ or checkpoints/last.ckpt"
        )
    return _read_export(model_path) if model_path.is_dir() else _read_checkpoint(model_path)


def _read_export(directory: Path) -> ModelContents:
    """Read an exported model, and check the hash of its weights.

    Raises:
        UserError: a file is missing, damaged, or of another format.
    """
    try:
        description = read_mapping(directory / DESCRIPTION_FILE)
        open_regular(directory / WEIGHTS_FILE).close()
        tensors = load_file(directory / WEIGHTS_FILE)
    except FileNotFoundError as error:
        file_name = Path(error.filename or WEIGHTS_FILE).name
        raise UserError(f"{directory} is incomplete: {file_name} is missing") from None
    except SafetensorError as error:
        raise UserError(f"{directory} is damaged: {error}") from None
    description = check_description(description, directory)
    description.pop(CARD_HASH, None)
    if description.pop(WEIGHTS_HASH, None) != file_sha256(directory / WEIGHTS_FILE):
        raise UserError(
            f"{directory} is damaged: {WEIGHTS_FILE} does not match its hash in {DESCRIPTION_FILE}"
        )
    weights, other_tensors = _split_weights(tensors, NETWORK_PREFIX)
    return description, weights, other_tensors


def _read_checkpoint(path: Path) -> ModelContents:
    """Read the model of a checkpoint, with the averaged weights where there are any.

    Raises:
        UserError: the file is no checkpoint, damaged, or of another format.
    """
    checkpoint = read_checkpoint(path)
    tensors = {
        name: value for name, value in checkpoint["state_dict"].items() if isinstance(value, Tensor)
    }
    has_average = any(name.startswith(AVERAGED_PREFIX) for name in tensors)
    prefix = AVERAGED_PREFIX if has_average else NETWORK_PREFIX
    description = check_description({"format": FORMAT, **checkpoint["blackout"]}, path)
    weights, other_tensors = _split_weights(tensors, prefix)
    return description, weights, other_tensors


def _split_weights(
    tensors: Mapping[str, Tensor], prefix: str
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a model into weights of its network and other tensors.

    Args:
        tensors: of a file, by name.
        prefix: of the names of the weights; it is removed.
    """
    weights = {}
    other_tensors = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            weights[name.removeprefix(prefix)] = value
        if not name.startswith((AVERAGE_PREFIX, NETWORK_PREFIX)):
            other_tensors[name] = value
    return weights, other_tensors


def check_description(description: Any, path: Path) -> dict[str, Any]:
    """Check the description of a model, and return a copy in plain containers.

    Args:
        description: as it was read from a file.
        path: of the file, for messages.

    Raises:
        UserError: it is no description of a model, contains more than plain values, or has another
            format.
    """
    if not isinstance(description, dict) or not isinstance(description.get("model"), dict):
        raise UserError(f"{path} does not describe a Blackout model")
    file_format = description.get("format")
    refuse(
        file_format != FORMAT,
        f"{path} has format {reprlib.repr(file_format)}; this version reads format {FORMAT}",
    )
    return dict(copy_plain_values(description, str(path)))


class Pretrained:
    """Methods of every model that write and read files.

    An exported folder contains safetensors and JSON. Nothing in it is executed when it is read, and
    it contains no path of the machine that wrote it.
    """

    def save_pretrained(
        self, directory: str | Path, scores: Plain | None = None, license: str | None = None
    ) -> None:
        """Write the averaged weights, a description and a model card, for `blackout.load_model`.

        Args:
            directory: the folder to write. A model in it is replaced; other files stay.
            scores: for the card, by name.
            license: of the weights, for the card, such as cc-by-4.0.

        Raises:
            UserError: the model has no description, or `directory` is a link or contains files but
                no model.
        """
        export_model(self, Path(directory), scores, license)

    @classmethod
    def from_pretrained(
        cls, name: str | Path, trusted: tuple[str, ...] = (), **options: Any
    ) -> Any:
        """Load a model from a folder, or from the Hugging Face hub if there is no such folder.

        Args:
            name: a path as for `load_model`, or a repository `owner/name`.
            trusted: as for `load_model`.
            options: of `huggingface_hub.snapshot_download`: revision, token, cache_dir, ...

        Raises:
            UserError: as `load_model`, or huggingface_hub is not installed.
        """
        if Path(name).expanduser().exists():
            return load_model(name, trusted)
        hub = _import_huggingface_hub()
        folder = hub.snapshot_download(str(name), allow_patterns=[*EXPORTED_FILES], **options)
        return load_model(folder, trusted)

    def push_to_hub(
        self,
        repo_id: str,
        scores: Plain | None = None,
        license: str | None = None,
        **options: Any,
    ) -> str:
        """Upload the files of `save_pretrained` to the Hugging Face hub.

        Args:
            repo_id: `owner/name`; the repository is created if it does not exist.
            scores: as for `save_pretrained`.
            license: as for `save_pretrained`.
            options: of `huggingface_hub.ModelHubMixin.push_to_hub`: private, token, branch,
                commit_message, ...

        Returns:
            The address of the commit.

        Raises:
            UserError: huggingface_hub is not installed.
        """
        model = self

        # The base class is only known where the package is installed.
        class Upload(_import_huggingface_hub().ModelHubMixin):  # type: ignore[misc]
            def _save_pretrained(self, save_directory: Path) -> None:
                export_model(model, save_directory, scores, license)

        return str(Upload().push_to_hub(repo_id, **options))

    @classmethod
    def load_from_checkpoint(cls, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse Lightning's way of loading, which needs the arguments of the constructor.

        Raises:
            UserError: always; names the ways of this package.
        """
        raise UserError(LIGHTNING_LOADING)


def _import_huggingface_hub() -> Any:
    """Import and return `huggingface_hub`, an optional package.

    Raises:
        UserError: it is not installed.
    """
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError:
        raise UserError(
            "the Hugging Face hub needs a package that is not installed: "
            "pip install huggingface_hub"
        ) from None
