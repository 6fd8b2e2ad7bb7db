"""What process 0 makes of samples as they are drawn: their file, pictures, where numbers come from."""

from __future__ import annotations

import platform
import re
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from blackout.component import Plain
from blackout.errors import ensure, shown
from blackout.family import Draw, OutputNames, Samples, Source, Split
from blackout.files import replacing, save_picture, write_json
from blackout.training.model import Model
from blackout.version import __version__


@contextmanager
def sample_file(
    path: Path, num_samples: int, names: OutputNames = OutputNames(), about: Plain | None = None
) -> Iterator[Callable[[Samples], None]]:
    """Yields what appends samples to an .npz: `samples` at once, the other (small) arrays at the end.

    The file appears, whole, when the context is left without an error and no sample is missing. Samples [b, C, H, W]
    are images and are written channels last, unless `names` give a shape. What is yielded takes `samples` [b, ...] and
    further arrays [b, ...] by name, the same in every call.

    Args:
        path: of the .npz.
        num_samples: how many samples it will hold.
        names: what `samples` is called in the file, and of which shape each is.
        about: numbers and arrays that the file holds beside the samples.

    Raises:
        ValueError: more or fewer samples than were announced.
    """
    missing, member, others = num_samples, None, dict[str, list[Tensor]]()
    with replacing(path, durably=True) as part, zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive:
        with ExitStack() as members:

            def write(samples: Samples) -> None:
                nonlocal missing, member
                main = samples["samples"]
                ensure(len(main) <= missing, f"{len(main)} samples for a file that has capacity for {missing} more")
                if names.shape is not None:
                    main = main.reshape(len(main), *names.shape)
                elif main.ndim == 4:
                    main = main.permute(0, 2, 3, 1)
                if names.units != (0, 1):
                    main = main.int() * names.units[1] + names.units[0]
                rows = main.contiguous().cpu().numpy()
                if member is None:
                    member = members.enter_context(archive.open(f"{names.array}.npy", "w", force_zip64=True))
                    whole = {"shape": (num_samples, *rows.shape[1:])}
                    np.lib.format.write_array_header_1_0(member, np.lib.format.header_data_from_array_1_0(rows) | whole)
                member.write(rows.tobytes())
                for name, values in samples.items():
                    if name != "samples" and not name.startswith("_"):  # which is of one machine, such as seconds
                        others.setdefault(name, []).append(values.cpu())
                missing -= len(rows)

            yield write
        more = {name: torch.cat(parts).numpy() for name, parts in others.items()}
        for name, array in {**more, **{name: np.array(one) for name, one in (about or {}).items()}}.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        ensure(not missing, f"{missing} of {num_samples} samples were not written")


def save_samples(samples: Samples, path: Path, names: OutputNames = OutputNames(), about: Plain | None = None) -> None:
    """Write samples to an .npz, see `sample_file`; the file appears whole or not at all."""
    with sample_file(path, len(samples["samples"]), names, about) as write:
        write(samples)


class Results(ExitStack):
    """Takes samples in order and writes their file, with a picture and what else is made of them.

    A context manager: see `sample_file`.

    Args:
        draw: where the samples come from.
        indices: of the samples, int64 [n].
        seed: of the samples.
        out: directory for all files.
        number_shown: how many samples, the first ones, are in the picture.
    """

    def __init__(self, draw: Draw, indices: Tensor, seed: int, out: Path, number_shown: int = 64) -> None:
        super().__init__()
        self._draw, self._indices, self._out, self._number_shown = draw, indices, out, number_shown
        file = sample_file(out / f"{draw.names.file}.npz", len(indices), draw.names, draw.about(seed))
        self._outputs, self._taken, self._write = draw.outputs(seed), 0, self.enter_context(file)
        self._shown: list[Samples] = []

    def take(self, samples: Samples) -> None:
        """Take the next samples, on the CPU."""
        begin, self._taken = self._taken, self._taken + len(samples["samples"])
        if self._outputs is not None:
            self._outputs.update(samples, self._indices[begin : self._taken])
        self._write(samples)
        if begin < self._number_shown:
            self._shown.append(samples)

    def finish(self, scored: Plain, how: Plain) -> None:
        """Write the picture of the first samples, what else the family makes, and metrics.json where there are scores.

        Args:
            scored: what `evaluate=true` says, with its `values`; empty without it.
            how: the samples were made.
        """
        names = self._shown[0] if self._shown else ()
        first = {name: torch.cat([part[name] for part in self._shown])[: self._number_shown] for name in names}
        save_picture(self._draw.picture(first), self._out / f"{self._draw.names.picture}.png")
        print(f"{self._taken} samples of {self._draw.nfe} network evaluations in {shown(str(self._out))}")
        made = {} if self._outputs is None else self._outputs.write(self._out)
        values = {**made.get("values", {}), **scored.get("values", {})}
        if made or scored:
            write_scores({**made, **scored, "values": values, **how}, self._out / "metrics.json")
            print(f"scores in {self._out / 'metrics.json'}")


def write_scores(report: Plain, path: Path) -> None:
    """Write metrics.json, where each value has beside it what held-out data and fitted models have, and print both;
    behind +- standard errors of means, where values have them.
    """
    values = beside(report)
    write_json({**report, "beside": values}, path)
    said = {f"{name}_{what}" for name, of in values.items() for what in of}
    said |= {f"{name}_error" for name in report["values"]}
    for name, value in report["values"].items():
        if isinstance(value, int | float) and not name.startswith("share_") and name not in said:
            told = [f"{what.replace('_', ' ')} {number:.4f}" for what, number in values.get(name, {}).items()]
            error = f" +- {report['values'][f'{name}_error']:.4f}" if f"{name}_error" in report["values"] else ""
            print(f"{name}: {value:.4f}{error}" + (f" ({', '.join(told)})" if told else ""))
    for name, bits in report.get("baselines", {}).items():
        if "uniform" in bits and name in report["values"]:
            print(verdict(name, report["values"][name], bits))


def verdict(name: str, value: float, bits: Mapping[str, float]) -> str:
    """A line on which of a model and of laws fitted to the same samples is to be used, by bits, the least of which is
    best.
    """
    best = min(bits, key=bits.__getitem__)
    found, use = f"verdict: {name} is {value:.2f} of this model, {bits['uniform']:.2f} uniform", best.replace("_", " ")
    if best != "uniform":
        found += f", {bits[best]:.2f} of the best classical fit, {use}"
    if value > bits["uniform"] + 1e-4:
        return f"{found}: for probabilities THIS MODEL IS WORSE THAN UNIFORM, use {use}; more data, or fewer steps"
    return f"{found}: use {'this model' if value <= bits[best] else use}"


_END = ("exact", "of_perfect", "of_truth", "ceiling", "annealed", "of_zero", "by_borders", "of_polar_tour_with_two_opt")
"""Ends of the names of values that say what others would be if all were right, or of a simple rival."""
_ONE, _NONE = "(?<!c2st_)accuracy|correct|kendall|ndcg|optimal|(^|/)ess$|r_hat|slope|surely", "rmse|mae|gap$|drop"
_PERFECT = (1.0, _ONE), (1.0, "residual_chi_square$"), (0.0, _NONE), (0.5, "coverage_50$"), (0.9, "coverage_90$")
"""Values that nothing surpasses, or that what is right has in the mean, where nothing else is known."""


def beside(report: Plain) -> dict[str, dict[str, float]]:
    """What stands beside the values of a report, by their names: `held_out_data`, and the strongest baseline by its.

    What a family has put there itself stays, and a value `x` has its `x_exact`, `x_annealed` and the like beside it;
    bounds of log Z have log Z. Where nothing is known but what is perfect, that is.
    """
    real, fitted = ((report.get(name) or {}) for name in ("held_out_data", "baseline"))
    found: dict[str, dict[str, float]] = {}
    for name in report["values"]:
        base = re.sub("^val/|_lower$", "", name).replace("eubo", "log_z")
        one: dict[str, Any] = {
            **{what: report["values"].get(f"{base}_{what}") for what in _END},
            "held_out_data": real.get("values", {}).get(name),
            str(fitted.get("name")): fitted.get("values", {}).get(name),
        }
        bits = report.get("baselines", {}).get(name, {})
        one |= {best: bits[best] for best in sorted(bits, key=bits.__getitem__)[:1]}
        known = report.get("beside", {}).get(name, {})
        known = known | {what: value for what, value in one.items() if value is not None}
        known = known or next(({"of_perfect": value} for value, names in _PERFECT if re.search(names, name)), {})
        found |= {name: known} if known else {}
    return found


def sample_provenance(config: Plain, model: Model, draw: Draw, began: float, source: Source | None) -> dict[str, Any]:
    """How samples were made, as plain values for metrics.json."""
    return {
        **provenance(model.device, began, source),
        "num_samples": config["num_samples"],
        "seeds": [config["seed"] + i for i in range(config["seeds"] if config["evaluate"] else 1)],
        "network_evaluations": draw.nfe,
        "sampler": dict(draw.description),
        **({} if config.get("law") else {"weights": "averaged (EMA)"}),
        "model": {"path": config["ckpt"] and str(config["ckpt"]), **model.config},
    }


_LIBRARIES = ("torch", "torchvision", "pytorch-lightning", "torchmetrics", "torch-fidelity", "numpy", "scipy")
_SPLITS: tuple[Split, ...] = ("train", "test")


def provenance(device: torch.device, began: float, source: Source | None = None) -> dict[str, Any]:
    """How numbers were made, as plain values for metrics.json: `made_with`, `seconds`, `date` and, of a source, `data`.

    Args:
        device: that computed them.
        began: of `time.perf_counter`.
        source: the data they are of; each of its splits is told by its hash.
    """
    on = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    made_with = {
        "versions": {"blackout": __version__, **{name: version(name) for name in _LIBRARIES}},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": f"{device} ({on})",
        "threads": torch.get_num_threads(),
        "git_commit": git_commit(),
    }
    known = {"made_with": made_with, "seconds": round(time.perf_counter() - began, 3)}
    if source is not None:
        hashes = {f"{split}_sha256": source.fingerprint(split) for split in _SPLITS if source.size(split)}
        known["data"] = {"name": source.name, **hashes}
    return {**known, "date": datetime.now(UTC).isoformat(timespec="seconds")}


def git_commit() -> str | None:
    """The commit of this code, with "-dirty" if it was changed since; None where it is in no repository of its own."""

    def git(*command: str) -> str:
        options: dict[str, Any] = {"cwd": Path(__file__).parent, "capture_output": True, "text": True, "timeout": 5.0}
        return subprocess.run(["git", *command], check=True, **options).stdout.strip()

    with suppress(OSError, subprocess.SubprocessError):
        git("ls-files", "--error-unmatch", Path(__file__).name)  # not merely installed within somebody's repository
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    return None
