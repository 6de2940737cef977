"""`tnctl split-graph aot=[1,32]`: the graph as machine code, one object per size of batch.

TensorFlow's own compiler makes it, in a child process. docs/aot.md says what a program needs to use
it, docs/formats/graph.md which files the folder has.
"""

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from tnctl import files
from tnctl.documents import is_name
from tnctl.errors import Failure, UserError, quoted
from tnctl.manifest import Inventory
from tnctl.model.graph import save_module
from tnctl.serving.graph import loaded_graph
from tnctl.serving.graph.graph_document import MOST_ROWS, Compiled, CompiledSize

TARGET_TRIPLE = "x86_64-pc-linux"
TARGET_CPU = "x86-64-v3"  # not the CPU of this machine: others run it
PACKED = "packed"
WAY = "Leave aot= out: the SavedModel serves any recipe"
# Sources of the runtime, in the wheel's xla_aot_runtime_src, that every compiled graph needs.
RUNTIME = (
    "tensorflow/compiler/tf2xla/allocator.cc",
    "tensorflow/compiler/tf2xla/xla_compiled_cpu_function.cc",
    "xla/backends/cpu/runtime/rng_state_lib.cc",
    "xla/executable_run_options.cc",
)
# A header that a compiled graph includes when it calls a library -> the sources of that.
LIBRARIES = {
    "dot_lib.h": ("xla/backends/cpu/runtime/dot_lib_f32.cc",),
    "sort_lib.h": ("xla/backends/cpu/runtime/sort_lib.cc",),
    "convolution_lib.h": (
        "xla/backends/cpu/runtime/convolution_lib_f32_2d.cc",
        "xla/backends/cpu/runtime/convolution_lib_f32_3d.cc",
    ),
}

HEADER = Template("""\
// Written by tnctl split-graph.
#ifndef TNCTL_COMPILED_H
#define TNCTL_COMPILED_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

$includes

namespace tnctl {

// What serving.json calls aot.identity.
inline constexpr char kIdentity[] = "$identity";

// An input or output: its name in serving.json, and the numbers of one row.
struct Port {
    const char *name;
    std::uint32_t columns;
    bool integers;  // int32 rather than float32
};

inline constexpr std::array<std::uint32_t, $count> kRows = {$rows};
$inputs
$outputs

// The graph for batches of this size.
struct Compiled {
    std::size_t rows;
    std::unique_ptr<tensorflow::XlaCompiledCpuFunction> graph;
};

// Every size once, the smallest first. A thread needs graphs of its own.
inline std::vector<Compiled> compiled_graphs() {
    std::vector<Compiled> all;
$made
    return all;
}

}  // namespace tnctl

#endif
""")


@dataclass(frozen=True)
class CompiledPort:
    """An input or output of a compiled graph: the numbers of one example, int32 or float32."""

    name: str
    columns: int
    integers: bool


def sizes_of(text: str) -> list[int]:
    """The sizes of batches in `aot=[1,32,256]`, ascending. Raises UserError."""
    parts = text.removeprefix("[").removesuffix("]").split(",")
    numbers = [part.strip() for part in parts]
    if all(re.fullmatch(r"[0-9]{1,5}", number) for number in numbers):
        sizes = sorted(set(map(int, numbers)))
        if sizes[0] >= 1 and sizes[-1] <= MOST_ROWS:
            return sizes
    raise UserError(
        f"aot takes numbers of examples of a batch, 1 to {MOST_ROWS:,}, such as aot=[1,32,256]. "
        f"Received: aot={quoted(text)[1:-1]}"
    )


def compile_sizes(
    folder: str, sizes: Sequence[int], inventory: Inventory, target_cpu: str = TARGET_CPU
) -> Compiled:
    """Compile signature `packed` of the SavedModel in a local folder, once per size of batch.

    Writes aot/ through `inventory`; returns what serving.json says of it. Raises UserError when the
    compiler does not know `target_cpu`, and Failure when it cannot compile the graph.
    """
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", target_cpu, re.ASCII):
        raise unknown_cpu(target_cpu)  # an empty name means the CPU of this machine
    with files.TemporaryFolder("aot") as scratch:
        ports = write_frozen(folder, sizes, f"{scratch}/frozen")
        compiled = [compile_one(scratch, rows, target_cpu) for rows in sizes]
        data = {
            path: Path(scratch, path).read_bytes() for entry in compiled for path in entry.paths
        }
    # The identity is a checksum of all that was compiled.
    checksums = b"".join(hashlib.sha256(content).digest() for content in data.values())
    described = Compiled(
        identity=hashlib.sha256(checksums).hexdigest(),
        tensorflow=str(tf.__version__),
        target_triple=TARGET_TRIPLE,
        target_cpu=target_cpu,
        runtime=tuple(runtime_of([data[entry.header].decode() for entry in compiled])),
        sizes=tuple(compiled),
    )
    for path, content in data.items():
        inventory.write(path, content)
    inventory.write("aot/compiled.h", header_of(described, ports).encode())
    inventory.write("aot/compiled.mk", makefile_of(described).encode())
    return described


def write_frozen(folder: str, sizes: Sequence[int], to: str) -> dict[str, CompiledPort]:
    """Write a SavedModel with a signature packed_B per size B, whose weights are constants.

    The compiler wants batches of one size, and knows no variables. Returns the inputs and outputs
    of signature packed by their names in a compiled graph. Raises Failure for one that has no
    known shape, and for a name that is none in C++.
    """
    loaded = loaded_graph.load_graph(folder)  # variables live only as long as it does
    signature = loaded.signatures[PACKED]
    specs = signature.structured_input_signature[1]
    frozen = convert_variables_to_constants_v2(signature)
    graph = frozen.graph.as_graph_def()
    # Freezing loses the names of outputs; their order remains, as in a flat dict.
    named = tf.nest.pack_sequence_as(
        signature.structured_outputs, [tensor.name for tensor in frozen.outputs]
    )
    names = sorted(named)

    def fixed(**inputs: Any) -> dict[str, Any]:
        fed = {f"{name}:0": tensor for name, tensor in inputs.items()}
        tensors = tf.graph_util.import_graph_def(graph, fed, [named[name] for name in names], "")
        return dict(zip(names, tensors, strict=True))

    signatures = {
        f"{PACKED}_{rows}": tf.function(fixed, autograph=False).get_concrete_function(
            **{
                name: tf.TensorSpec([rows, *spec.shape[1:]], spec.dtype, name)
                for name, spec in specs.items()
            }
        )
        for rows in sizes
    }
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    save_module(tf.Module(), to, signatures, options)
    one_size = next(iter(signatures.values()))
    ports = {f"feed_{name}": port_of(name, spec) for name, spec in specs.items()}
    outputs = one_size.structured_outputs.items()
    return ports | {f"fetch_{name}": port_of(name, spec) for name, spec in outputs}


def port_of(name: str, spec: Any) -> CompiledPort:
    """What a signature says of an input or output [B, ...]. Raises Failure for what C++ cannot."""
    columns = spec.shape[1:].num_elements()
    if not is_name(name) or spec.dtype not in (tf.float32, tf.int32) or columns is None:
        raise Failure(
            f"the graph has an input or output {quoted(name)} of {spec.dtype.name} {spec.shape}, "
            f"which cannot be compiled. {WAY}"
        )
    return CompiledPort(name, columns, spec.dtype == tf.int32)


def compile_one(scratch: str, rows: int, target_cpu: str) -> CompiledSize:
    """Compile packed_B of scratch/frozen into scratch/aot/B; returns its entry of serving.json."""
    name = f"Graph{rows}"
    command = [
        *(sys.executable, "-m", "tensorflow.python.tools.saved_model_cli", "aot_compile_cpu"),
        *("--dir", "frozen", "--tag_set", "serve", "--signature_def_key", f"{PACKED}_{rows}"),
        # Relative: the path becomes part of names in the code.
        *("--output_prefix", f"aot/{rows}/graph", "--cpp_class", name),
        *("--target_triple", TARGET_TRIPLE, "--target_cpu", target_cpu),
        *("--multithreading", "false"),
    ]
    done = subprocess.run(
        command,
        cwd=scratch,
        env=os.environ | {"TMPDIR": scratch},  # where it leaves files when it aborts
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if re.search("is not a recognized processor|on a subtarget that doesn't", done.stderr):
        raise unknown_cpu(target_cpu)
    header, *objects = (f"aot/{rows}/graph{end}" for end in (".h", ".o", "_constants.o"))
    made = [path for path in (header, *objects) if Path(scratch, path).is_file()]
    if done.returncode or len(made) < 1 + len(objects):
        raise Failure(
            f"the graph cannot be compiled for batches of {rows}: {complaint(done.stderr)}. {WAY}"
        )
    text = Path(scratch, header).read_text()
    return CompiledSize(
        rows=rows,
        class_=name,
        header=header,
        objects=tuple(objects),
        feeds=names_in(text, "StaticArgNames", "feed_"),
        fetches=names_in(text, "StaticResultNames", "fetch_"),
    )


def unknown_cpu(received: str) -> UserError:
    """The error of a `target_cpu` that is no CPU of 64 bits."""
    return UserError(
        f"target_cpu is no CPU that the compiler knows. Received: {quoted(received)}. Take "
        "x86-64-v2, x86-64-v3 (the default), x86-64-v4 or a name such as haswell or znver3"
    )


def complaint(printed: str) -> str:
    """The message of a compiler that failed: its last line that mentions an error."""
    lines = ["it printed nothing", *filter(None, map(str.strip, printed.splitlines()))]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|ERROR)\b.*:", line)]
    return (errors or lines)[-1][:300].rstrip(". ")


def names_in(header: str, function: str, prefix: str) -> dict[str, str]:
    """Inputs or outputs of the signature -> their names in the compiled graph.

    Read from the graph, for an input that nothing depends on is not in it.
    """
    body = header.partition(f"{function}() {{")[2].partition("}")[0]
    return {name.removeprefix(prefix): name for name in sorted(re.findall(r'"(\w+)"', body))}


def runtime_of(headers: Sequence[str]) -> list[str]:
    """The sources of the wheel's runtime that graphs with these headers' texts are linked to."""
    included = {
        library
        for header in headers
        for library in re.findall(r'#include ".*/(\w+_lib\.h)"', header)
    }
    return sorted({*RUNTIME, *(source for key in included for source in LIBRARIES.get(key, ()))})


def header_of(described: Compiled, ports: Mapping[str, CompiledPort]) -> str:
    """aot/compiled.h: all sizes in one place, for a program that should run with any graph."""
    sizes = described.sizes
    feeds = {name for size in sizes for name in size.feeds.values()}
    fetches = {name for size in sizes for name in size.fetches.values()}
    made = "    all.push_back({{{0.rows}, std::make_unique<{0.class_}>()}});"
    return HEADER.substitute(
        includes="\n".join(f'#include "{size.header.removeprefix("aot/")}"' for size in sizes),
        identity=described.identity,
        count=len(sizes),
        rows=", ".join(str(size.rows) for size in sizes),
        inputs=ports_in("kInputs", [ports[name] for name in sorted(feeds)]),
        outputs=ports_in("kOutputs", [ports[name] for name in sorted(fetches)]),
        made="\n".join(made.format(size) for size in sizes),
    )


def ports_in(name: str, ports: Sequence[CompiledPort]) -> str:
    """An array of ports in C++."""
    row = '    {{"{0.name}", {0.columns}, {1}}},'
    rows = [row.format(port, str(port.integers).lower()) for port in ports]
    return "\n".join(
        [f"inline constexpr std::array<Port, {len(ports)}> {name} = {{{{", *rows, "}};"]
    )


def makefile_of(described: Compiled) -> str:
    """aot/compiled.mk: what to link, for make."""
    objects = [path.removeprefix("aot/") for size in described.sizes for path in size.objects]
    return f"""\
# Written by tnctl split-graph.
AOT_TENSORFLOW := {described.tensorflow}
AOT_CPU := {described.target_cpu}
AOT_OBJECTS := {" ".join(objects)}
AOT_RUNTIME := {" ".join(described.runtime)}
"""
