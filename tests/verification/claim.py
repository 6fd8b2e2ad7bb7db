"""A checkable statement about a part of the package other than the sampling kernels."""

from dataclasses import dataclass

from blackout.verification.claims import SURE


@dataclass(frozen=True)
class Claim:
    """A statement, its observed error, and the largest error allowed.

    Args:
        name: what is claimed.
        error: the largest deviation, or a p-value.
        allowed: the largest deviation allowed; None if `error` is a p-value, which must be at least
            `SURE`.
    """

    name: str
    error: float
    allowed: float | None

    @property
    def holds(self) -> bool:
        return self.error >= SURE if self.allowed is None else self.error <= self.allowed
