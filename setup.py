"""Map the folders at the top of the checkout to the packages `rollbus.*`; everything else is in pyproject.toml."""

from setuptools import find_packages, setup

FOLDERS = ("schemas", "producers", "streams", "consumers", "trainer")

setup(
    package_dir={"rollbus": "rollbus", **{f"rollbus.{folder}": folder for folder in FOLDERS}},
    packages=[
        *find_packages(".", include=["rollbus", "rollbus.*"]),
        *(f"rollbus.{name}" for folder in FOLDERS for name in find_packages(".", include=[folder, f"{folder}.*"])),
    ],
)
