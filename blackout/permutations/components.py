"""The components of `blackout.permutations` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

_CODED = {
    "family": ("coded.CodeFamily",),
    "network": ("coded.CodeTransformer",),
    "dataset": ("coded.cycles", "coded.mallows", "coded.plackett_luce"),
    "metrics": ("coded.CodeScorer",),
}
_CODED_ASKED = {"coded.permutations": "dataset=permutations dataset.path=<file>"}

TABLE = Table(made=dict(_CODED), asked=dict(_CODED_ASKED))
