"""What pyproject.toml cannot say: conf/ lies beside the package in the repository, and inside it in a wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["blackout*"]), "blackout.conf"],
    package_dir={"blackout.conf": "conf"},
    package_data={"blackout.conf": ["**/*.yaml"], "blackout": ["py.typed"], "blackout.table": ["*.yaml"]},
)
