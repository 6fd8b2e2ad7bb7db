"""Writing trained models to folders: safetensors weights, a JSON description and a model card."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

from blackout.component import Plain, leaves, thaw
from blackout.config.allowed_components import check_components
from blackout.errors import UserError, refuse
from blackout.files import replacing_folder, save_tensors
from blackout.safe_reading import read_mapping
from blackout.training.checkpoint_files import FORMAT, file_sha256
from blackout.training.model_card import model_card
from blackout.training.model_files import (
    CARD_FILE,
    CARD_HASH,
    DESCRIPTION_FILE,
    EXPORTED_FILES,
    NETWORK_PREFIX,
    WEIGHTS_FILE,
    WEIGHTS_HASH,
    check_description,
)
from blackout.version import __version__


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
