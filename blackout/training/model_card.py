"""Model cards: the README.md of an exported model."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import yaml

from blackout.component import Plain
from blackout.config.instantiate import instantiate, is_component

# How the example of a model card begins; the family's usage follows.
USAGE_START = """```python
from blackout import load_model

model = load_model("path/to/this/directory")
"""


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
