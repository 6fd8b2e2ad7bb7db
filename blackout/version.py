"""The version of the package, as exported models and reports name it."""

__version__ = "0.1.0"
