"""Checks of the reverse kernels on state spaces small enough to enumerate: `blackout verify`.

toys             data and processes whose conditional distributions are matrices
exact_steps      the exact distributions of the kernels' steps
draws            the package's own draws with exact denoisers, and the chi-square test
process_pairs    the package's finite processes with their exact transitions
subjects         a process with data, and what its kernels should do
claims           what is claimed of every kernel, and the check

The exact distributions share no code with the kernels: they are NumPy and SciPy, in float64.
"""
