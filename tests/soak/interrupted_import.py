"""A module whose import is interrupted by a signal; Hydra catches every `Exception` around it."""

import signal

signal.raise_signal(signal.SIGTERM)
