"""The laws of the reverse kernels, exact, on state spaces small enough to enumerate: `blackout verify`.

Nothing here shares code with the kernels it checks: transition matrices are numpy and scipy, in float64.
"""
