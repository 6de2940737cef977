"""Which objects a SavedModel may have: signatures, their functions, and variables.

The object graph names functions and other objects by strings and numbers, and has TensorFlow set
attributes of Python objects. Each of them is checked here, so that none refers to anything outside
of the graph.
"""

from collections.abc import Collection, Iterator
from typing import Any

from tnctl.errors import quoted

# The objects of a SavedModel of plain functions and variables. An `asset` would be a file, and a
# `resource` is created by a function that runs while loading.
KINDS = frozenset(
    ("bare_concrete_function", "captured_tensor", "function", "user_object", "variable")
)
CLASSES = frozenset(
    ("_generic_user_object", "signature_map", "trackable_dict_wrapper", "trackable_list_wrapper",
     "trackable_tuple_wrapper")
)  # fmt: skip
# Methods that TensorFlow calls while it loads and restores have names with an underscore. These are
# attributes of Keras' exports.
UNDERSCORED = frozenset(("_all_variables", "_misc_assets"))
# Of structures of tensors; others are classes of Python, by their names.
VALUES = frozenset(
    ("bool_value", "bounded_tensor_spec_value", "dict_value", "float64_value", "int64_value",
     "list_value", "named_tuple_value", "none_value", "pair_value", "string_value",
     "tensor_dtype_value", "tensor_shape_value", "tensor_spec_value", "tuple_value")
)  # fmt: skip
DEPTH = 8  # of structures


def wrong(objects: Any, functions: Collection[str]) -> Iterator[str]:
    """What is not allowed in a SavedObjectGraph proto, whose functions have these names."""
    for number, node in enumerate(objects.nodes):
        kind = node.WhichOneof("kind")
        if kind not in KINDS:
            yield f"it has an object of the kind {quoted(str(kind))}"
        elif kind == "user_object" and node.user_object.identifier not in CLASSES:
            yield f"it has an object of the class {quoted(node.user_object.identifier)}"
        elif (
            node.registered_name
            or node.registered_saver
            or node.saveable_objects
            or node.slot_variables
        ):
            yield "it has an object that is restored by custom code"
        for reference in (*node.children, *node.dependencies):
            name = reference.local_name
            if not 0 <= reference.node_id < len(objects.nodes):
                yield f"its object {number} has a part {quoted(name)} that is not there"
            if name.startswith("_") and name not in UNDERSCORED:
                yield f"its object {number} has an attribute {quoted(name)}"
        yield from _wrong_references(node, objects.concrete_functions, functions)
    for name, function in objects.concrete_functions.items():
        if name not in functions:
            yield f"{quoted(name)} is not one of its functions"
        if not all(0 <= bound < len(objects.nodes) for bound in function.bound_inputs):
            yield f"its function {quoted(name)} takes an object that is not there"
        for value in (function.canonicalized_input_signature, function.output_signature):
            yield from _wrong_values(value)
    yield from _wrong_signatures(objects)


def _wrong_references(
    node: Any, concrete: Collection[str], functions: Collection[str]
) -> Iterator[str]:
    """Functions that an object names and the graph does not have."""
    bare, captured = node.bare_concrete_function, node.captured_tensor
    if node.HasField("captured_tensor") and captured.concrete_function not in functions:
        yield f"{quoted(captured.concrete_function)} is not one of its functions"
    # Fields that are not set read as empty.
    names = list(node.function.concrete_functions)
    if node.HasField("bare_concrete_function"):
        names.append(bare.concrete_function_name)
    for name in names:
        if name not in concrete:
            yield f"{quoted(name)} is not one of its functions with inputs and outputs"
    for spec in (node.function.function_spec, bare.function_spec):
        yield from _wrong_values(spec.fullargspec)
        yield from _wrong_values(spec.input_signature)


def _wrong_values(value: Any, depth: int = DEPTH) -> Iterator[str]:
    """Structures that would make objects of Python's classes, or that are too deep."""
    kind = value.WhichOneof("kind")
    if kind is not None and kind not in VALUES:
        yield f"a function takes or returns a {quoted(kind)}"
        return
    if not depth:
        yield f"a function takes or returns a structure of more than {DEPTH} levels"
        return
    for part in (
        *value.list_value.values,
        *value.tuple_value.values,
        *value.dict_value.fields.values(),
        *(pair.value for pair in value.named_tuple_value.values),
        *([value.pair_value.value] if kind == "pair_value" else ()),
    ):
        yield from _wrong_values(part, depth - 1)


def _wrong_signatures(objects: Any) -> Iterator[str]:
    """Signatures that are no functions from tensors by name to tensors by name."""
    maps = [
        objects.nodes[child.node_id]
        for root in objects.nodes[:1]
        for child in root.children
        if child.local_name == "signatures" and 0 <= child.node_id < len(objects.nodes)
    ]
    if len(maps) != 1 or maps[0].user_object.identifier != "signature_map":
        yield "it has no signatures"
        return
    for reference in maps[0].children:
        node = objects.nodes[reference.node_id]
        name = node.bare_concrete_function.concrete_function_name
        if node.WhichOneof("kind") != "bare_concrete_function" or not _is_signature(
            objects.concrete_functions[name]
        ):
            yield (
                f"its signature {quoted(reference.local_name)} takes or returns something else "
                "than tensors by name"
            )


def _is_signature(function: Any) -> bool:
    """Whether a function takes tensors as keywords, and returns a dict of tensors."""
    taken = function.canonicalized_input_signature.tuple_value.values
    structures = (*taken[1:], function.output_signature)
    return (
        len(taken) == 2
        and taken[0].WhichOneof("kind") == "tuple_value"
        and not taken[0].tuple_value.values
        and all(
            structure.WhichOneof("kind") == "dict_value"
            and all(
                value.WhichOneof("kind") == "tensor_spec_value"
                for value in structure.dict_value.fields.values()
            )
            for structure in structures
        )
    )
