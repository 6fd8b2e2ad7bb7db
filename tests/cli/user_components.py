"""Components as users write them: some have a bug, one follows the protocol exactly."""

import torch
from torch import nn

from blackout.networks import ResidualMLP


class ForgottenKey(ResidualMLP):
    def __init__(self, shape: list, outputs: int, **arguments):
        super().__init__(shape=shape, outputs=outputs, **arguments)
        self.gain = {"weight": 1.0}["w"]


class WrongLayer(nn.Module):
    def __init__(self, shape: list, outputs: int):
        super().__init__()
        self.shape, self.layer = shape, nn.Linear(7, outputs)

    def forward(self, x, label):
        return self.layer(x.flatten(1)).unflatten(1, (-1, *self.shape[1:]))


class BuggyLoss:
    def __call__(self, prediction, target, s, t):
        return prediction.mean + "1"


class BuggyKernel:
    def __call__(self, at):
        return at.x.no_such_attribute


class ProtocolLoss:
    """Nothing but `__call__`: what `blackout.diffusion.losses.Loss` asks for."""

    def __call__(self, prediction, target, s, t):
        return prediction.mean - target * prediction.log_mean


class CarefulLoss(ProtocolLoss):
    """Refuses a setting in the user's own words."""

    def __init__(self, power: float = 1.0):
        from blackout.errors import UserError

        if power < 0:
            raise UserError(f"loss.power must not be negative, not {power}")


def empty_dataset():
    return torch.zeros(3)[4]


def brightness(x):
    """A reward: the mean count of every sample."""
    return x.flatten(1).mean(1)


def rows(x):
    return x.double().sum(-1).flatten(1)
