"""A module whose import is interrupted, as a signal may interrupt any: Hydra catches every `Exception` around it."""

import signal

signal.raise_signal(signal.SIGTERM)
