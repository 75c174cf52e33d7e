"""Map the folders at the top of the checkout to the packages `rollbus.*`; everything else is in pyproject.toml.

The native codec is built where there is a C compiler; without one the package works too, its codec is fastavro.
ROLLBUS_PURE=1 leaves it out, which makes the wheel for every machine.
"""

import os

from setuptools import Extension, find_packages, setup

FOLDERS = ("schemas", "runtime", "producers", "streams", "consumers", "trainer")
NATIVE = Extension("rollbus.schemas.avro.native", ["schemas/avro/native.pyx"], optional=True)

setup(
    package_dir={"rollbus": "rollbus", **{f"rollbus.{folder}": folder for folder in FOLDERS}},
    packages=[
        *find_packages(".", include=["rollbus", "rollbus.*"]),
        *(f"rollbus.{name}" for folder in FOLDERS for name in find_packages(".", include=[folder, f"{folder}.*"])),
    ],
    ext_modules=[] if os.environ.get("ROLLBUS_PURE") == "1" else [NATIVE],
    options={"build_ext": {"cython_c_in_temp": True}},
)
