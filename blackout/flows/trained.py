"""Targets that were trained before."""

from __future__ import annotations

from blackout.component import component
from blackout.errors import UserError
from blackout.flows.targets import Target, read_energy_network
from blackout.training.export import load_model


@component("target", ask="target=energy_network with target.path=... or target.ckpt=...")
def read_energy(path: str | None = None, ckpt: str | None = None) -> Target:
    """An energy network from an .npz, or the law that a trained model has.

    Args:
        path: an .npz, see `read_energy_network`.
        ckpt: a run, checkpoint or exported model of family=energy, whose averaged energy is taken.

    Raises:
        UserError: neither is given, or both; unreadable, or a model without an energy.
    """
    if (path is None) == (ckpt is None):
        raise UserError("target: give either target.path, an .npz of weights, or target.ckpt, a run of family=energy")
    if path is not None:
        return read_energy_network(path)
    target = getattr(load_model(str(ckpt)), "target", None)
    if not isinstance(target, Target):
        raise UserError(f"target.ckpt: {ckpt} has no energy; give a run of family=energy")
    return target.requires_grad_(False)
