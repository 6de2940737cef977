"""The headers become the extension module tnctl._tables (cffi, API mode, one abi3 file)."""

import os
import sys
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).resolve().parent
# Online services use the others without the first.
HEADERS = ("tnctl.h", "tn_dictionary.h", "tn_time.h")


def declarations(header: str) -> str:
    """The part of a header that cffi reads."""
    _, _, rest = header.partition("/* CFFI begin */")
    body, end, _ = rest.partition("/* CFFI end */")
    if not end:
        raise ValueError("a header lacks its /* CFFI begin */ and /* CFFI end */ marks")
    return body


def compile_flags() -> list[str]:
    """One portable build: fast loops are cloned per CPU level inside the sources.

    The same bits on every CPU, whatever CFLAGS says: no fused multiply-add, no -ffast-math. Last,
    for -fno-fast-math undoes it, -fno-math-errno: else sqrtf is a call per element and the loops
    of the optimizers are not vectorized (tests/test_c_library.py looks).
    """
    return [
        "-std=c11",
        "-O3",
        "-ffp-contract=off",
        "-fno-fast-math",
        "-fno-unsafe-math-optimizations",
        "-fno-math-errno",
        "-Wall",
        "-Wextra",
    ]


if sys.byteorder != "little":
    raise SystemExit("tnctl's file formats are little-endian; this machine is not")

ffi = FFI()
for header in HEADERS:
    ffi.cdef(declarations((CSRC / header).read_text()))
ffi.set_source(
    "tnctl._tables",
    "".join(f'#include "{header}"\n' for header in HEADERS),
    sources=[f"csrc/{source.name}" for source in sorted(CSRC.glob("tn_*.c"))],
    depends=[f"csrc/{header.name}" for header in sorted(CSRC.glob("*.h"))],
    include_dirs=["csrc"],
    extra_compile_args=compile_flags(),
    libraries=["m", "pthread"],
)

if __name__ == "__main__":
    os.chdir(CSRC.parent)
    ffi.compile(verbose=True)
