"""The version of the package, as exported models and reports name it, and how it is installed."""

__version__ = "0.1.0"
# What pip installs. The package is on no index yet: this is the folder of the repository.
INSTALL_SOURCE = "."


def install_command(extra: str) -> str:
    """Return what to type for the libraries of an optional dependency of pyproject.toml."""
    return f'pip install "{INSTALL_SOURCE}[{extra}]" in the folder of the repository'
