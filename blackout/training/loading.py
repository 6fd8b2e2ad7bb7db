"""Loading trained models; no code in their files is run."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from blackout.component import Plain
from blackout.config.allowed_components import check_components
from blackout.config.instantiate import instantiate
from blackout.errors import UserError, error_context, refuse
from blackout.safe_reading import available_memory, limit_memory, reading
from blackout.training.checkpoint_files import first_difference
from blackout.training.model_files import read_model


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
                raise UserError(
                    f"{path}: weight {name} is not finite: load a checkpoint of an earlier step"
                )
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
            f"{path}: the weights do not fit the network in the description: {difference} differs; "
            "export the model again",
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
