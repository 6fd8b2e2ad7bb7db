"""Models as files and on a hub: `save_pretrained`, `from_pretrained`, `push_to_hub`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from blackout.errors import UserError
from blackout.training.export import Exportable, export_model, load_model

CHECKPOINTS = "a model is loaded with blackout.load_model(path); a Trainer continues with fit(model, ckpt_path=path)"


class Pretrained:
    """What every model can do with files.

    The folder that is written holds safetensors and JSON, and nothing of it is executed when it is read; it names no
    path of this machine.
    """

    def save_pretrained(
        self: Exportable, directory: str | Path, scores: Mapping[str, float] | None = None, license: str | None = None
    ) -> None:
        """Write the averaged weights, a description and a model card, for `blackout.load_model`.

        Args:
            directory: where to; replaced if it exists.
            scores: by name, for the card.
            license: of the weights, for the card, such as cc-by-4.0.

        Raises:
            UserError: the model has no description, or `directory` is a link.
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
            files = ["config.json", "model.safetensors", "README.md"]
            name = _hub().snapshot_download(str(name), allow_patterns=files, **options)
        return load_model(name, trusted)

    def push_to_hub(
        self: Exportable,
        repo_id: str,
        scores: Mapping[str, float] | None = None,
        license: str | None = None,
        **options: Any,
    ) -> str:
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
