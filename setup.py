"""Packaging that pyproject.toml cannot say: a wheel has conf/ inside the package."""

from setuptools import find_namespace_packages, find_packages, setup

conf = [f"blackout.{name}" for name in find_namespace_packages(include=["conf*"])]
setup(
    packages=[*find_packages(include=["blackout*"]), "blackout.cli.templates", *conf],
    package_dir={"blackout.conf": "conf"},
    package_data={"": ["*.yaml", "py.typed", "templates/*"]},
)
