"""The base class of puzzles whose items are cut from images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from blackout.data import CountData
from blackout.permutations.datasets.puzzles import Kind, Puzzles
from blackout.protocols import Split


@dataclass(frozen=True)
class ImageItems:
    """The items that a puzzle cuts from images.

    Attributes:
        kind: see `Puzzles`.
        number: of items in a puzzle.
        shape: of one item.
        encoder: description of the encoder of the items.
    """

    kind: Kind
    number: int
    shape: tuple[int, ...]
    encoder: dict[str, Any]


class ImagePuzzles(Puzzles):
    """Items cut from images, float32 counts divided by the largest; each split has its own images.

    Without validation images there are no validation puzzles.

    Args:
        name: see `Puzzles`.
        images: training puzzles draw from the training images.
        items: what is cut from the images.
        num_test: see `Puzzles`.
        seed: see `Puzzles`.
    """

    def __init__(
        self, name: str, images: CountData, items: ImageItems, num_test: int, seed: int
    ) -> None:
        self._images = images
        scale = images.max_count
        facts = {
            "mean": images.facts["mean"] / scale,
            "std": images.facts["std"] / scale,
            "encoder": items.encoder,
        }
        super().__init__(
            name=name,
            kind=items.kind,
            num_items=items.number,
            item_shape=items.shape,
            num_test=num_test,
            seed=seed,
            facts=facts,
            scale=float(scale),
            num_validation=num_test if images.size("val") else 0,
        )

    def _data_hash(self, split: Split) -> str:
        """Return the fingerprint of the images of a split."""
        return self._images.fingerprint(split)
