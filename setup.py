"""The part of tnctl's build that pyproject.toml cannot state: one abi3 extension from csrc/."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["tnctl", "tnctl.*"]), "tnctl.conf", "tnctl.recipes"],
    # Top-level folders of the checkout, subpackages when installed: nothing but tnctl appears in
    # site-packages.
    package_dir={"tnctl.conf": "conf", "tnctl.recipes": "recipes"},
    package_data={
        "tnctl": ["py.typed", "*.pyi"],
        "tnctl.training.report": ["page.html"],
        "tnctl.conf": ["**/*.yaml"],
    },
    include_package_data=False,
    cffi_modules=["csrc/build_ffi.py:ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    zip_safe=False,
)
