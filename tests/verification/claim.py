"""A checkable statement about a part of the package other than the sampling kernels."""

from dataclasses import dataclass

from blackout.verification.draws import MIN_P_VALUE


@dataclass(frozen=True)
class Claim:
    """A statement, its observed error, and the largest error allowed.

    Args:
        name: what is claimed.
        error: the largest deviation, or a p-value.
        allowed: the largest deviation allowed; None if `error` is a p-value, which must be at least
            `MIN_P_VALUE`.
    """

    name: str
    error: float
    allowed: float | None

    @property
    def holds(self) -> bool:
        return self.error >= MIN_P_VALUE if self.allowed is None else self.error <= self.allowed
