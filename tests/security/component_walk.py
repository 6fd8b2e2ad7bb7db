"""Build every component that a model file may name, without writing, downloading or starting
anything.

Run as `python -m tests.security.component_walk`; it prints one line per component. With an argument
10 it tries every tenth of the hostile arguments, chosen by the component's name.
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
    "shape": [1, 8, 8],
    "max_count": 4,
    "mean": 2.0,
    "std": 1.5,
    "num_classes": 3,
    "outputs": 2,
    "levels": 2,
    "sites": 9,
    "lattice": [3, 3],
    "distances": 6,
    "num_items": 4,
    "item_shape": [1, 8, 8],
    "num_tokens": 4,
}
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
    "blackout.evaluation.ImageScorer": {
        "extractor": {"_target_": "blackout.evaluation.Inception", "_partial_": True},
        "scores": ["fd"],
    },
}
HOSTILE = (
    "${oc.env:HOME}",
    "/etc/passwd",
    "../victim",
    "file:///etc/passwd",
    "https://example.com/x",
    "os.system",
    "",
    {"_target_": "os.makedirs", "name": "owned"},
    {"_target_": "blackout.evaluation.write_reference", "path": "owned"},
    [["owned"]],
    {"path": "owned"},
    -1,
    [],
    True,
    1e308,
)
FORBIDDEN = (
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.mkdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "os.utime",
    "os.system",
    "os.exec",
    "os.spawn",
    "os.posix_spawn",
    "os.fork",
    "os.forkpty",
    "os.kill",
    "os.putenv",
    "shutil.",
    "subprocess.",
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "pickle.",
    "ctypes.dlopen",
    "pty.",
    "tempfile.",
    "sqlite3.",
    "webbrowser.",
)
LIBRARIES = {
    "blackout",
    "torch",
    "numpy",
    "scipy",
    "sklearn",
    "PIL",
    "joblib",
    "torchvision",
    "sympy",
    "mpmath",
}

armed = False


def guard(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that raises on every event that leaves a trace."""
    if not armed:
        return
    forbidden = event.startswith(FORBIDDEN)
    if event == "open":
        _, mode, flags = arguments
        forbidden = bool(set(str(mode)) & set("wax+")) or bool(
            flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
    if forbidden:
        raise SystemExit(f"FORBIDDEN {event} {arguments!r}")


class Gate:
    """A module finder that allows only Python, this package and its libraries to be imported."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if armed and name.split(".")[0] not in LIBRARIES | set(sys.stdlib_module_names) | set(
            sys.modules
        ):
            raise SystemExit(f"FORBIDDEN import of {name}")


def arm() -> None:
    """Start to forbid side effects, until `armed` is False."""
    global armed
    sys.meta_path.insert(0, Gate)  # type: ignore[arg-type]
    sys.addaudithook(guard)
    armed = True


def descriptions_in_yaml() -> Iterator[dict[str, Any]]:
    """Yield the components in the YAML files with their explicit arguments.

    References to other settings are omitted.
    """

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
        given = {
            key: value
            for key, value in node.items()
            if key != "defaults" and "${" not in str(value)
        }
        return {key: bare(value) for key, value in given.items() if value not in ("???", None)}

    for path in sorted((Path(__file__).parents[2] / "conf").rglob("*.yaml")):
        yield from walk(yaml.safe_load(path.read_text()))


def examples(
    address: str, passed: bool, yaml_descriptions: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Return the distinct example descriptions of a component."""
    descriptions = (
        [{"_target_": address, **WITHOUT_YAML[address]}]
        if address in WITHOUT_YAML
        else yaml_descriptions.get(address, [])
    )
    descriptions = descriptions or [{"_target_": address}]
    partial = [{**description, "_partial_": True} for description in descriptions]
    return [
        json.loads(text)
        for text in dict.fromkeys(
            json.dumps(description) for description in (partial if passed else descriptions)
        )
    ]


def embed_in_scores(part: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return scores with a part in each of its places."""
    inception = {"_target_": "blackout.evaluation.Inception", "_partial_": True}
    classifier = {"_target_": "blackout.evaluation.Classifier", "_partial_": True, "source": part}
    arguments = {"extractor": {"extractor": part}, "source": {"extractor": classifier}}
    scorer = {"_target_": "blackout.evaluation.ImageScorer", "extractor": inception}
    return {place: {**scorer, **parts} for place, parts in arguments.items()}


def build(description: dict[str, Any], place: str, section: str) -> None:
    """Build a component as one of a model file: copied, checked, filled in; functions are called
    too."""
    description_read = copy_plain_values(json.loads(json.dumps(description)), "file")
    if section in ("dataset", "metrics"):
        part = {
            "metrics": description_read,
            "dataset": description_read,
            **embed_in_scores(description_read),
        }[place]
        instantiate(component_from_file(part, section, "nowhere"), section)
        return
    check_components(
        description_read if section == "family" else {place: description_read}, section
    )
    filled = fill_statistics(description_read, FACTS, place)
    name = find_target(filled, place).__name__
    arguments = {"process": PureDeath(4)} if name in ("LevelHead", "LogisticHead") else {}
    if name == "GammaHead":
        arguments = {"elements": Elements(torch.ones(1, 8, 8), torch.ones(1, 8, 8), torch.ones(()))}
    component = instantiate(filled, place, **arguments)
    if place == "grid":
        component(2)


def entries() -> Iterator[tuple[str, str, str, bool]]:
    """Yield (section, place, address, passed as partial) of everything that a file may name."""
    sections = dict.fromkeys(("metrics", "extractor", "source"), "metrics") | {
        "family": "family",
        "dataset": "dataset",
    }
    for section, packages in ALLOWED_PACKAGES.items():
        for package in packages:
            for name in importlib.import_module(package).__all__:
                _, mark = find_allowed(f"{package}.{name}", section) or (None, Mark())
                for place, passed in [
                    *((place_name, False) for place_name in mark.instance_for),
                    *((place_name, True) for place_name in mark.partial_for),
                ]:
                    if mark.command_line is None and sections.get(place, "model") == section:
                        yield section, place, f"{package}.{name}", passed


def attempt(description: dict[str, Any], place: str, section: str) -> str:
    """Return the outcome of building a component, in one word."""
    try:
        build(description, place, section)
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
    yaml_descriptions: dict[str, list[dict[str, Any]]] = {}
    for description in descriptions_in_yaml():
        yaml_descriptions.setdefault(description["_target_"], []).append(description)
    components = list(entries())
    arm()
    every_nth = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    for section, place, address, passed in components:
        descriptions = examples(address, passed, yaml_descriptions)
        outcomes = [attempt(example, place, section) for example in descriptions]
        names = [
            *inspect.signature(find_target(descriptions[0], place)).parameters,
            "_args_",
            "_convert_",
            "path",
            "cache",
        ]
        arguments = [(name, value) for name in names for value in HOSTILE][
            len(address) % every_nth :: every_nth
        ]
        hostile_outcomes = [
            attempt({**descriptions[0], name: value}, place, section) for name, value in arguments
        ]
        print(
            place,
            address,
            *(word for word in dict.fromkeys(outcomes)),
            "|",
            hostile_outcomes.count("refused"),
            hostile_outcomes.count("made"),
        )
        print(
            *(
                f"  {word}\n"
                for word in dict.fromkeys(outcomes + hostile_outcomes)
                if word.startswith("UNEXPECTED")
            ),
            end="",
            flush=True,
        )
    armed = False
    print("WALKED", len(components))


if __name__ == "__main__":
    main()
