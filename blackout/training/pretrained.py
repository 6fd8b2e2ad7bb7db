"""Methods of every model that write and read its files, and the Hugging Face hub."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NoReturn

from blackout.component import Plain
from blackout.errors import UserError
from blackout.training.export import export_model
from blackout.training.loading import load_model
from blackout.training.model_files import EXPORTED_FILES

LIGHTNING_LOADING = (
    "load_from_checkpoint is not supported: load a model with blackout.load_model(path), "
    "or continue its training with Trainer.fit(model, ckpt_path=path)"
)


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
