"""What is claimed of a family's parts beyond kernels."""

from dataclasses import dataclass

from blackout.verification.draws import MIN_P_VALUE


@dataclass(frozen=True)
class Claim:
    """What is claimed, how far from it the package is, and how far it may be.

    Args:
        name: of the claim.
        error: the largest deviation, or a p-value.
        allowed: the most it may be; None: `error` is a p-value and must be at least `MIN_P_VALUE`.
    """

    name: str
    error: float
    allowed: float | None

    @property
    def holds(self) -> bool:
        return self.error >= MIN_P_VALUE if self.allowed is None else self.error <= self.allowed
