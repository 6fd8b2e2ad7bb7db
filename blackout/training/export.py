"""The exported model: safetensors weights, a JSON description, a model card. Loading runs no code from the file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import blackout
from blackout.addresses import modernise
from blackout.diffusion.module import BlackoutDiffusion
from blackout.errors import UserError
from blackout.training.build import MODEL_PARTS, build_model, check_targets, refusals
from blackout.training.checkpoint_files import FORMAT, find_checkpoint, read_checkpoint


def export_model(module: BlackoutDiffusion, directory: Path) -> None:
    """Write `model.safetensors` (averaged weights where there are any), `config.json` and `README.md` to a directory.

    The directory appears whole or not at all; an existing one is replaced.
    """
    network = module.network if module.ema is None else module.ema.module
    weights = {f"network.{name}": value.contiguous().cpu() for name, value in network.state_dict().items()}
    weights["mean"] = module.mean.cpu()
    config = {"format": FORMAT, "blackout": blackout.__version__, **module.config}
    directory.parent.mkdir(parents=True, exist_ok=True)
    part = directory.with_name(f".{directory.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        save_file(weights, part / "model.safetensors")
        (part / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (part / "README.md").write_text(_model_card(config, sum(p.numel() for p in network.parameters())))
        old = directory.with_name(f".{directory.name}-old")
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            os.replace(directory, old)
        os.replace(part, directory)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def load_model(path: str | Path, trusted: tuple[str, ...] = ()) -> BlackoutDiffusion:
    """A trained model in eval mode with its averaged weights.

    Args:
        path: a run directory, a `.ckpt` file or an exported model directory.
        trusted: module prefixes, besides this package's, whose components the file may name (your own networks).

    Raises:
        UserError: nothing there, not a model, damaged, or of another format.
    """
    path = Path(path)
    with refusals(str(path)):
        return _load(path, trusted)


def _load(path: Path, trusted: tuple[str, ...]) -> BlackoutDiffusion:
    if not path.exists():
        raise UserError(f"no model at {path}")
    if path.is_dir():
        path = _inside(path)
    config, weights = _read_export(path) if path.is_dir() else _read_checkpoint(path)
    config = {**config, "model": modernise(config["model"])}
    check_targets(config["model"], trusted)
    module = build_model(config, mean=weights["mean"])
    state = {name.removeprefix("network."): value for name, value in weights.items() if name != "mean"}
    try:
        module.network.load_state_dict(state)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path}: the weights do not fit the network described beside them: {reason[:300]}") from None
    return module.eval()


def _inside(directory: Path) -> Path:
    """The model in a run directory, or the directory itself if it is an exported model."""
    if (directory / "config.json").exists():
        return directory
    if (directory / "model").exists():
        return directory / "model"
    if (checkpoint := find_checkpoint(directory / "checkpoints")) is not None:
        return checkpoint
    raise UserError(f"no model in {directory}: expected config.json, model/ or checkpoints/last.ckpt there")


def _read_export(directory: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        config = json.loads((directory / "config.json").read_text())
        weights = load_file(directory / "model.safetensors")
    except FileNotFoundError as error:
        raise UserError(
            f"{directory} is not a whole model: {Path(error.filename or 'model.safetensors').name} is missing"
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError, SafetensorError) as error:
        raise UserError(f"{directory} is damaged: {error}") from None
    _check(config, weights, directory)
    return config, weights


def _read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    checkpoint = read_checkpoint(path)
    state = checkpoint.get("state_dict", {})
    prefix = "ema.module." if any(name.startswith("ema.module.") for name in state) else "network."
    weights = {
        f"network.{name.removeprefix(prefix)}": value for name, value in state.items() if name.startswith(prefix)
    }
    weights["mean"] = state.get("mean")
    config = {"format": FORMAT, **checkpoint.get("blackout", {})}
    _check(config, weights, path)
    return config, weights


def _check(config: Any, weights: dict[str, Tensor], path: Path) -> None:
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict) or "data" not in config:
        raise UserError(f"{path} does not describe a Blackout model")
    if missing := [part for part in MODEL_PARTS if part not in config["model"]]:
        raise UserError(f"{path} does not describe a whole model: {', '.join(missing)} missing")
    if config.get("format") != FORMAT:
        raise UserError(f"{path} has format {config.get('format')}; this version reads format {FORMAT}")
    if weights.get("mean") is None or list(weights["mean"].shape) != list(config["data"]["shape"]):
        raise UserError(f"{path}: the weights are not those of {config['data']['shape']}-shaped data")


def _model_card(config: dict[str, Any], parameters: int) -> str:
    data, model = config["data"], config["model"]
    return f"""# A Blackout Diffusion model of {data["name"]}

- data: {data["name"]}, shape {tuple(data["shape"])}, counts 0..{data["max_count"]}
- network: {model["network"]["body"]["_target_"].rsplit(".", 1)[-1]}, {parameters:,} parameters (averaged weights)
- trained with blackout {config["blackout"]}, loss {model["loss"].get("kind")} ({model["loss"].get("weighting")}
weighting)

```python
from blackout import load_model

model = load_model("path/to/this/directory")
counts = model.sample(16, seed=0)  # integers [16, {", ".join(map(str, data["shape"]))}]
```
"""
