"""Make every component that a model file may name, in a process in which nothing may be written, fetched or started.

Run as `python -m tests.security.walk`; prints one line for every component. `walk 10` tries every tenth of the
hostile arguments, which of them is by the component's name.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml

from blackout.component import Mark
from blackout.config.allowed_components import (
    ALLOWED_PACKAGES,
    check_components,
    component_from_file,
    copy_plain_values,
    find_allowed,
)
from blackout.config.descriptions import fill_statistics
from blackout.config.instantiate import find_target, instantiate
from blackout.diffusion import PureDeath
from blackout.errors import UserError
from blackout.networks import Elements

FACTS = {
    "shape": [1, 8, 8], "max_count": 4, "mean": 2.0, "std": 1.5, "num_classes": 3, "outputs": 2,
    "levels": 2, "sites": 9, "lattice": [3, 3], "distances": 6,
    "num_items": 4, "item_shape": [1, 8, 8], "num_tokens": 4,
}  # fmt: skip
CHAIN = [[0.5, 0.5], [0.25, 0.75]]
GENERATOR = [[-1.0, 1.0], [2.0, -2.0]]
WITHOUT_YAML: dict[str, dict[str, Any]] = {
    "blackout.diffusion.DiscreteTimeChain": {"matrix": CHAIN, "num_steps": 2, "max_count": 1},
    "blackout.diffusion.from_generator": {"matrix": GENERATOR, "max_count": 1},
    "blackout.diffusion.step_times": {"length": 3},
    "blackout.flows.Couplings": {"shape": [2, 3]},
    "blackout.flows.MIS": {"num_graphs": 2, "max_nodes": 3},
    "blackout.flows.MaxCut": {"num_graphs": 2, "max_nodes": 3},
    "blackout.flows.Qubo": {"num_graphs": 2, "max_nodes": 3},
    "blackout.flows.EnergyNetwork": {"sites": 3, "widths": [4]},
    "blackout.networks.SetTransformer": {"encoder": {"_target_": "blackout.networks.TokenEncoder"}},
    "blackout.permutations.ForwardProcess": {
        "method": {"_target_": "blackout.permutations.Riffle"},
        "schedule": [0, 2],
    },
    "blackout.diffusion.StudentNetwork": {
        "inputs": {"_target_": "blackout.networks.StandardisedInputs"},
        "body": {
            "_target_": "blackout.networks.UNet",
            "channels": 8,
            "multipliers": [1],
            "blocks_per_level": 1,
            "attention_resolutions": [],
            "noise": 2,
        },
    },
    "blackout.networks.ResidualMLP": {"width": 8, "depth": 1},
    "blackout.networks.SequenceConvolution": {"shape": [8], "levels": 6, "width": 8, "depth": 1},
    "blackout.evaluation.Scorer": {
        "extractor": {"_target_": "blackout.evaluation.Inception", "_partial_": True},
        "scores": ["fd"],
    },
}
HOSTILE = (
    "${oc.env:HOME}", "/etc/passwd", "../victim", "file:///etc/passwd", "https://example.com/x", "os.system", "",
    {"_target_": "os.makedirs", "name": "owned"}, {"_target_": "blackout.evaluation.write_reference", "path": "owned"},
    [["owned"]], {"path": "owned"}, -1, [], True, 1e308,
)  # fmt: skip
FORBIDDEN = (
    "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod", "os.chown",
    "os.utime", "os.system", "os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.forkpty", "os.kill",
    "os.putenv", "shutil.", "subprocess.", "socket.", "urllib.", "http.", "ftplib.", "pickle.", "ctypes.dlopen", "pty.",
    "tempfile.", "sqlite3.", "webbrowser.",
)  # fmt: skip
LIBRARIES = {"blackout", "torch", "numpy", "scipy", "sklearn", "PIL", "joblib", "torchvision", "sympy", "mpmath"}

armed = False


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that raises at whatever leaves a trace."""
    if not armed:
        return
    wrong = event.startswith(FORBIDDEN)
    if event == "open":
        _, mode, flags = arguments
        wrong = bool(set(str(mode)) & set("wax+")) or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if wrong:
        raise SystemExit(f"FORBIDDEN {event} {arguments!r}")


class Gate:
    """The first finder of modules: lets only those of Python, this package and its libraries be imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if armed and name.split(".")[0] not in LIBRARIES | set(sys.stdlib_module_names) | set(sys.modules):
            raise SystemExit(f"FORBIDDEN import of {name}")


def arm() -> None:
    """From now on nothing of that is let through, until `armed` is False."""
    global armed
    sys.meta_path.insert(0, Gate)  # type: ignore[arg-type]
    sys.addaudithook(guard)
    armed = True


def described() -> Iterator[dict[str, Any]]:
    """Every component in the YAML files, with the arguments they give and without what they leave to others."""

    def walk(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, list):
            for item in node:
                yield from walk(item)
        if isinstance(node, dict):
            if str(node.get("_target_", "")).startswith("blackout."):
                yield bare(node)
            for value in node.values():
                yield from walk(value)

    def bare(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        given = {key: value for key, value in node.items() if key != "defaults" and "${" not in str(value)}
        return {key: bare(value) for key, value in given.items() if value not in ("???", None)}

    for path in sorted((Path(__file__).parents[2] / "conf").rglob("*.yaml")):
        yield from walk(yaml.safe_load(path.read_text()))


def examples(address: str, passed: bool, known: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Descriptions of a component, each once."""
    given = [{"_target_": address, **WITHOUT_YAML[address]}] if address in WITHOUT_YAML else known.get(address, [])
    given = given or [{"_target_": address}]
    partial = [{**one, "_partial_": True} for one in given]
    return [json.loads(text) for text in dict.fromkeys(json.dumps(one) for one in (partial if passed else given))]


def around(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Scores with a part at each of its places."""
    inception = {"_target_": "blackout.evaluation.Inception", "_partial_": True}
    classifier = {"_target_": "blackout.evaluation.Classifier", "_partial_": True, "source": part}
    chosen = {"extractor": {"extractor": part}, "source": {"extractor": classifier}}
    scorer = {"_target_": "blackout.evaluation.Scorer", "extractor": inception}
    return {place: {**scorer, **parts} for place, parts in chosen.items()}


def make_one(description: dict[str, Any], place: str, section: str) -> None:
    """As a model file's is made: plain, checked, filled, made; functions are called too."""
    read = copy_plain_values(json.loads(json.dumps(description)), "file")
    if section in ("dataset", "metrics"):
        part = {"metrics": read, "dataset": read, **around(read)}[place]
        instantiate(component_from_file(part, section, "nowhere"), section)
        return
    check_components(read if section == "family" else {place: read}, section)
    filled = fill_statistics(read, FACTS, place)
    name = find_target(filled, place).__name__
    given = {"process": PureDeath(4)} if name in ("LevelHead", "LogisticHead") else {}
    if name == "GammaHead":
        given = {"elements": Elements(torch.ones(1, 8, 8), torch.ones(1, 8, 8), torch.ones(()))}
    made = instantiate(filled, place, **given)
    if place == "grid":
        made(2)


def entries() -> Iterator[tuple[str, str, str, bool]]:
    """(section, place, address, passed on) of everything that a file may name."""
    of_place = dict.fromkeys(("metrics", "extractor", "source"), "metrics") | {"family": "family", "dataset": "dataset"}
    for section, packages in ALLOWED_PACKAGES.items():
        for package in packages:
            for name in importlib.import_module(package).__all__:
                _, mark = find_allowed(f"{package}.{name}", section) or (None, Mark())
                for place, passed in [*((one, False) for one in mark.made), *((one, True) for one in mark.passed)]:
                    if mark.ask is None and of_place.get(place, "model") == section:
                        yield section, place, f"{package}.{name}", passed


def attempt(description: dict[str, Any], place: str, section: str) -> str:
    """What came of it, in a word."""
    try:
        make_one(description, place, section)
    except (UserError, ValueError):
        return "refused"
    except Exception as error:
        return f"UNEXPECTED {description}: {type(error).__name__}: {error}"
    return "made"


def main() -> None:
    global armed
    sys.dont_write_bytecode = True
    import scipy.sparse.linalg  # noqa: F401  (libraries that components load at their first use)
    import sklearn.datasets  # noqa: F401

    torch.nn.init.kaiming_uniform_ = lambda tensor, *_, **__: tensor  # type: ignore[assignment]  # of large networks
    known: dict[str, list[dict[str, Any]]] = {}
    for description in described():
        known.setdefault(description["_target_"], []).append(description)
    everything = list(entries())
    arm()
    share = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for section, place, address, passed in everything:
        given = examples(address, passed, known)
        good = [attempt(one, place, section) for one in given]
        names = [*inspect.signature(find_target(given[0], place)).parameters, "_args_", "_convert_", "path", "cache"]
        tried = [(name, value) for name in names for value in HOSTILE][len(address) % share :: share]
        bad = [attempt({**given[0], name: value}, place, section) for name, value in tried]
        print(place, address, *(word for word in dict.fromkeys(good)), "|", bad.count("refused"), bad.count("made"))
        print(
            *(f"  {word}\n" for word in dict.fromkeys(good + bad) if word.startswith("UNEXPECTED")), end="", flush=True
        )
    armed = False
    print("WALKED", len(everything))


if __name__ == "__main__":
    main()
