"""The C library alone: its own tests under sanitizers, the same bits on every CPU, no warnings."""

import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

CSRC = Path(__file__).parent.parent / "csrc"
Library = Callable[..., list[Path]]
COMPILER = shutil.which(os.environ.get("CC", "cc"))
EMULATOR = shutil.which("qemu-x86_64")


def build_script() -> Any:
    """csrc/build_ffi.py as a module."""
    spec = spec_from_file_location("build_ffi", CSRC / "build_ffi.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# As the extension is built, warnings being errors; each flavour says how much to optimize.
FLAGS = [flag for flag in build_script().compile_flags() if flag != "-O3"] + ["-Werror"]
# The sanitizers start after the loader would pick a clone.
SANITIZED = "-g -DTN_NO_CLONES -fno-sanitize-recover=all"
FLAVOURS = {
    "address": f"-O1 {SANITIZED} -fsanitize=address,undefined",
    "thread": f"-O1 {SANITIZED} -fsanitize=thread",
    "plain": "-O3",
}
# Optimizing what checks every address takes three times as long to compile as to run.
SHORT_FLAVOURS = FLAVOURS | {"address": FLAVOURS["address"].replace("-O1", "-O0")}
FAILING_MEMORY = '-DTN_MEMORY_HEADER="tests/failing_memory.h"'
PROGRAMS = {
    "test_model": [],
    "test_admission": [],
    "test_exchange": [],
    "test_columns": [],
    "test_oom": [FAILING_MEMORY],
    "test_far_rows": [],
    "test_threads": [],
    "test_text": [],
    "test_times": [],
    "test_checksums": [],
    "test_dictionary": [],
}
# Arguments that keep all of them under half a minute on two cores, and those of `make test-all`.
SHORT = {
    "test_model": ["16", "40", "60000"],
    "test_admission": ["12", "30"],
    "test_exchange": ["16", "10"],
    "test_columns": ["300"],
    "test_oom": ["3", "16"],
    "test_far_rows": [],
    "test_threads": ["12"],
    "test_text": ["3000", "100000"],
    "test_times": ["1000"],
    "test_checksums": ["3000"],
    "test_dictionary": ["60", "40"],
}
# Watching threads takes ten times as long.
SHORT_THREAD = SHORT | {
    "test_model": ["8", "40", "20000"],
    "test_admission": ["4", "30"],
    "test_exchange": ["8", "6"],
    "test_dictionary": ["15", "40"],
}
LONG = {
    "test_model": ["40", "100", "1000000", "1000"],
    "test_admission": ["40", "60", "1000"],
    "test_exchange": ["60", "30", "1000"],
    "test_columns": ["30000", "1000"],
    "test_oom": ["10", "24", "1000"],
    "test_far_rows": [],
    "test_threads": ["200"],
    "test_text": ["80000", "2000000", "1000"],
    "test_times": ["100000", "1000"],
    "test_checksums": ["300000", "1000"],
    "test_dictionary": ["800", "200", "1000"],
}
LONG_THREAD = LONG | {
    "test_model": ["20", "100", "300000", "1000"],
    "test_admission": ["20", "60", "1000"],
    "test_exchange": ["16", "30", "1000"],
    "test_oom": ["3", "24", "1000"],
    "test_columns": ["6000", "1000"],
    "test_threads": ["40"],
    "test_text": ["40000", "1000000", "1000"],
    "test_dictionary": ["100", "200", "1000"],
}

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler (set CC)")


def compile_c(out: Path, sources: list[Path], flags: list[str]) -> Path:
    """Compile C files into a program, or into an object when `-c` is among the flags."""
    libraries = [] if "-c" in flags else ["-lm", "-lpthread"]
    command = [COMPILER, *FLAGS, *flags, f"-I{CSRC}", *map(str, sources), "-o", str(out)]
    done = subprocess.run([*command, *libraries], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out


def library_sources() -> list[Path]:
    return sorted(CSRC.glob("tn_*.c"))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The objects of the whole library by the flags they are compiled with, each compiled once."""
    compiled: dict[tuple[str, ...], list[Path]] = {}

    def objects(*flags: str) -> list[Path]:
        if flags not in compiled:
            folder = tmp_path_factory.mktemp("library")
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                compiled[flags] = list(
                    threads.map(
                        lambda source: compile_c(
                            folder / f"{source.stem}.o", [source], ["-c", *flags]
                        ),
                        library_sources(),
                    )
                )
        return compiled[flags]

    return objects


def compile_program(library: Library, folder: Path, name: str, flags: list[str]) -> Path:
    """One program of csrc/tests with the whole library."""
    folder.mkdir(parents=True)
    source = CSRC / "tests" / f"{name}.c"
    return compile_c(folder / name, [source, *library(*flags)], flags)


def run(program: Path, *arguments: str) -> bytes:
    # An allocation that the machine cannot give must be NULL, as without the sanitizer.
    environment = os.environ | {"ASAN_OPTIONS": "allocator_may_return_null=1"}
    done = subprocess.run([program, *arguments], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout


def build_and_run(
    library: Library, folder: Path, name: str, flavour: str, arguments: list[str]
) -> None:
    flags = flavour.split() + PROGRAMS[name]
    program = compile_program(library, folder / "built", name, flags)
    printed = run(program, *arguments).decode()
    assert printed.startswith(f"{name}: ") and printed.endswith(" checks\n")


@pytest.mark.short
@pytest.mark.parametrize(
    ("name", "flavour"),
    [
        (name, flavour)
        for name in PROGRAMS
        for flavour in FLAVOURS
        # These would compile the whole library again, or run for long.
        if (name, flavour)
        not in (("test_oom", "plain"), ("test_oom", "thread"), ("test_far_rows", "thread"))
    ],
)
def test_program(library: Library, tmp_path: Path, name: str, flavour: str) -> None:
    arguments = SHORT_THREAD if flavour == "thread" else SHORT
    build_and_run(library, tmp_path, name, SHORT_FLAVOURS[flavour], arguments[name])


@pytest.mark.long
@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_long(library: Library, tmp_path: Path, name: str, flavour: str) -> None:
    arguments = LONG_THREAD if flavour == "thread" else LONG
    build_and_run(library, tmp_path, name, FLAVOURS[flavour], arguments[name])


def test_a_failing_check_is_seen(library: Library, tmp_path: Path) -> None:
    source = tmp_path / "fails.c"
    source.write_text('#include "tests/check.h"\nint main(void) { CHECK(1 == 2); return 0; }\n')
    program = compile_c(tmp_path / "fails", [source, *library("-O0")], ["-O0"])
    done = subprocess.run([program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "fails.c:2: not so: 1 == 2" in done.stderr


def same_bytes(library: Library, folder: Path, builds: dict[str, list[str]]) -> None:
    sums = {
        name: [
            hashlib.sha256(run(program, threads)).hexdigest()
            for program in [compile_program(library, folder / name, "dump", flags)]
            for threads in ("1", "3")
        ]
        for name, flags in builds.items()
    }
    assert {checksum for both in sums.values() for checksum in both} == {sums["clones"][0]}, sums


CLONES, NO_CLONES, SLOW = ["-O3"], ["-O3", "-DTN_NO_CLONES"], ["-O0"]


def test_same_bytes_for_every_cpu_and_thread_count(library: Library, tmp_path: Path) -> None:
    same_bytes(library, tmp_path, {"clones": CLONES, "no_clones": NO_CLONES, "slow": SLOW})


@pytest.mark.long
@pytest.mark.skipif(platform.machine() != "x86_64", reason="asks for x86-64 levels")
def test_same_bytes_for_every_level(library: Library, tmp_path: Path) -> None:
    oldest = ["-DTN_NO_CLONES", "-march=x86-64"]
    builds = {
        "clones": CLONES,
        "oldest": ["-O3", *oldest],
        "no_vectors": ["-O2", *oldest, "-fno-tree-vectorize"],
    }
    same_bytes(library, tmp_path, builds)


# Without AVX, and with AVX2 alone; programs that take seconds rather than minutes there.
EMULATED_CPUS = {"Nehalem": "default", "Haswell": "arch_x86_64_v3"}
EMULATED_PROGRAMS = ("test_model", "test_exchange", "test_columns", "test_text", "test_dictionary")
needs_emulator = pytest.mark.skipif(
    EMULATOR is None or platform.machine() != "x86_64",
    reason="qemu-x86_64 is not installed, or this is not x86-64",
)


def emulated(cpu: str, *command: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([str(EMULATOR), "-cpu", cpu, *command], capture_output=True)


@pytest.mark.long
@needs_emulator
@pytest.mark.parametrize("cpu", EMULATED_CPUS)
def test_same_bytes_on_an_emulated_cpu(library: Library, tmp_path: Path, cpu: str) -> None:
    """The loader takes the clone of the CPU, and it writes what this machine's clone writes."""
    program, log = compile_program(library, tmp_path / "built", "dump", CLONES), tmp_path / "log"
    done = emulated(cpu, "-d", "in_asm", "-D", log, program, "3", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(program, "1", "2")
    executed = set(re.findall(r"^IN: \w+\.(arch_\w+|default)\b", log.read_text(), re.MULTILINE))
    assert executed == {EMULATED_CPUS[cpu]}


@pytest.mark.long
@needs_emulator
@pytest.mark.parametrize("name", EMULATED_PROGRAMS)
def test_program_without_avx(library: Library, tmp_path: Path, name: str) -> None:
    program = compile_program(library, tmp_path / "built", name, CLONES)
    done = emulated("Nehalem", program, *SHORT[name])
    assert done.returncode == 0, done.stderr
    assert done.stdout == run(program, *SHORT[name])


@pytest.mark.long
@needs_emulator
def test_an_emulated_cpu_without_avx_refuses_it(library: Library, tmp_path: Path) -> None:
    flags = ["-O3", "-DTN_NO_CLONES", "-march=x86-64-v3"]
    program = compile_program(library, tmp_path / "built", "dump", flags)
    assert emulated("Haswell", program, "1", "1").returncode == 0
    assert emulated("Nehalem", program, "1", "1").returncode == -signal.SIGILL


@pytest.mark.skipif(platform.machine() != "x86_64", reason="looks for x86-64 instructions")
def test_optimizers_are_vector_code(library: Library) -> None:
    """The flags, in their order, must keep sqrtf from being a call: it costs 5 to 13 times."""
    [compiled] = [path for path in library("-O3") if path.stem == "tn_optimizer"]
    command = ["objdump", "--disassemble", "--reloc", compiled]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "vsqrtps" in text
    assert "sqrtf" not in text


def test_no_warnings_of_conversions(tmp_path: Path) -> None:
    strict = ["-c", "-O0", "-Wpedantic", "-Wconversion", "-Wshadow", "-Wstrict-prototypes"]
    for source in library_sources():
        compile_c(tmp_path / f"{source.stem}.o", [source], strict)


def test_header_stands_alone(tmp_path: Path) -> None:
    source = tmp_path / "only_header.c"
    source.write_text('#include "tnctl.h"\nint main(void) { return tn_message(TN_OK)[0] == 0; }\n')
    compile_c(tmp_path / "only_header", [source, CSRC / "tn_message.c"], ["-Wpedantic"])


def test_library_allocates_through_its_macros_alone() -> None:
    for source in library_sources():
        lines = source.read_text().splitlines()
        text = "\n".join(line for line in lines if not line.startswith("#define TN_"))
        for call in ("malloc(", "calloc(", "realloc(", " free(", "aligned_alloc("):
            assert call not in text, f"{source.name} calls {call.strip()}"


def test_dictionary_stands_alone(tmp_path: Path) -> None:
    """What an online service takes: the files named tn_dictionary*, and nothing but libc."""
    for path in CSRC.glob("tn_dictionary*.[ch]"):
        shutil.copy(path, tmp_path)
    source = tmp_path / "main.c"
    source.write_text(
        '#include "tn_dictionary.h"\nint main(void) { return tn_dictionary_abi() != 1; }\n'
    )
    command = [COMPILER, "-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    files = [source, *tmp_path.glob("tn_dictionary*.c"), "-o", tmp_path / "main"]
    for flags in ([], ["-DTN_NO_SIMD"]):
        done = subprocess.run([*command, *flags, *files], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run(tmp_path / "main")
