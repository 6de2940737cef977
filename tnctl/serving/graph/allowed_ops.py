"""Which SavedModels are loaded: those whose every op only computes.

A SavedModel is a program, and TensorFlow has ops that write files, call servers and run Python. So
a graph that somebody else may have made is checked before TensorFlow loads it: each node of the
graph, and of every function in its library (bodies of loops and branches, calls and gradients are
functions of the library too) must be one of `OPS`. Attributes by which TensorFlow would run another
function or another device than a node names are refused: those that are not declared by the op must
be one of `ATTRIBUTES`.

Only the functions of the saver read and write files. Loading does not need them, because
`tf.saved_model.load` restores variables without them, so TensorFlow gets a copy of the graph
without them: nothing in this copy can read or write a file.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import function_pb2, graph_pb2, types_pb2
from tensorflow.core.protobuf import config_pb2, meta_graph_pb2, saved_model_pb2
from tensorflow.python.framework import op_def_registry

from tnctl import files
from tnctl.errors import Failure, quoted
from tnctl.serving.graph import allowed_objects

NAME = "saved_model.pb"
# TensorFlow would load these in the place of saved_model.pb, or where it is missing.
OTHER_FORMS = ("saved_model.cpb", "saved_model.pbtxt")

_LISTED = """
# Calls, control flow, weights.
Assert Case Const ControlTrigger Enter Exit FakeParam HostConst If LoopCond Merge NextIteration NoOp
PartitionedCall Placeholder PlaceholderV2 PlaceholderWithDefault ReadVariableOp ResourceGather
ResourceGatherNd StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile Switch
VarHandleOp VariableShape While
# Passing on.
Bitcast Cast CheckNumerics EnsureShape Identity IdentityN OnesLike PreventGradient Snapshot
StopGradient ZerosLike
# Shapes, and parts of arrays.
BatchToSpace BatchToSpaceND BroadcastArgs BroadcastGradientArgs BroadcastTo Concat ConcatOffset
ConcatV2 ConjugateTranspose DepthToSpace Diag DiagPart DynamicPartition DynamicStitch
ExpandDims ExtractImagePatches Fill Gather GatherNd GatherV2 InvertPermutation LinSpace ListDiff
LowerBound MatrixBandPart MatrixDiag MatrixDiagPart MatrixDiagPartV2 MatrixDiagPartV3
MatrixDiagV2 MatrixDiagV3 MatrixSetDiag MatrixSetDiagV2 MatrixSetDiagV3 MirrorPad MirrorPadGrad
OneHot Pack Pad PadV2 ParallelConcat ParallelDynamicStitch Range Rank Reshape Reverse
ReverseSequence ReverseV2 Roll ScatterNd Select SelectV2 Shape ShapeN Size Slice SpaceToBatch
SpaceToBatchND SpaceToDepth Split SplitV Squeeze StridedSlice StridedSliceGrad TensorScatterAdd
TensorScatterMax TensorScatterMin TensorScatterSub TensorScatterUpdate TensorStridedSliceUpdate
Tile Transpose Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack UnravelIndex
UpperBound Where
# Lists of tensors, which loops gather.
EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather
TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
TensorListResize TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
# Numbers one by one.
Abs Acos Acosh Add AddN AddV2 Angle ApproximateEqual Asin Asinh Atan Atan2 Atanh BesselI0
BesselI0e BesselI1 BesselI1e Betainc BiasAdd BiasAddGrad BiasAddV1 BitwiseAnd BitwiseOr
BitwiseXor Bucketize Ceil ClipByValue Complex ComplexAbs Conj Cos Cosh Cross Digamma Div
DivNoNan Elu EluGrad Equal Erf Erfc Erfinv Exp Expm1 Floor FloorDiv FloorMod Greater
GreaterEqual Igamma Igammac Imag Inv InvGrad Invert IsFinite IsInf IsNan LeakyRelu
LeakyReluGrad LeftShift Less LessEqual Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum
Minimum Mod Mul MulNoNan Ndtri Neg NextAfter NotEqual Polygamma PopulationCount Pow Real RealDiv
Reciprocal ReciprocalGrad Relu Relu6 Relu6Grad ReluGrad RightShift Rint Round Rsqrt RsqrtGrad
Selu SeluGrad Sigmoid SigmoidGrad Sign Sin Sinh Softplus SoftplusGrad Softsign SoftsignGrad
Sqrt SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad TruncateDiv TruncateMod Xdivy
Xlog1py Xlogy Zeta
# Sums, products, orders.
AccumulateNV2 All Any ApproxTopK ArgMax ArgMin BatchMatMul BatchMatMulV2 BatchMatMulV3 Bincount
Cumprod Cumsum CumulativeLogsumexp DenseBincount Einsum EuclideanNorm HistogramFixedWidth InTopK
InTopKV2 L2Loss LogSoftmax MatMul Max Mean Min NthElement Prod SegmentMax SegmentMaxV2
SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Softmax
SoftmaxCrossEntropyWithLogits SparseMatMul SparseSegmentMean SparseSegmentMeanWithNumSegments
SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments SparseSegmentSum
SparseSegmentSumWithNumSegments SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul
SparseToDense Sum TopK TopKV2 UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
UnsortedSegmentSum
# Matrices, convolutions, normalization, Fourier transforms.
AvgPool AvgPool3D BatchNormWithGlobalNormalization Cholesky Conv Conv2D Conv2DBackpropInput
Conv3D Conv3DBackpropInputV2 DataFormatDimMap DataFormatVecPermute DepthwiseConv2dNative
Dilation2D FFT FFT2D FFT3D FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 IFFT IFFT2D IFFT3D
IRFFT IRFFT2D IRFFT3D LRN LogMatrixDeterminant Lu MatrixDeterminant MatrixExponential
MatrixInverse MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve MaxPool MaxPool3D
MaxPoolV2 MaxPoolWithArgmax Qr RFFT RFFT2D RFFT3D SelfAdjointEigV2 Svd TridiagonalMatMul
TridiagonalSolve
# Random numbers that are a function of their seed.
StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormal
StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2
StatelessTruncatedNormal StatelessTruncatedNormalV2
"""
OPS = frozenset(re.sub("#.*", "", _LISTED).split())
SAVE_OPS = frozenset(
    ("DisableCopyOnRead", "MergeV2Checkpoints", "SaveV2", "ShardedFilename",
     "StaticRegexFullMatch", "StringJoin")
)  # fmt: skip
RESTORE_OPS = frozenset(("AssignVariableOp", "RestoreV2"))
# The ops that call functions, and their attributes that have the types of inputs and outputs.
LOOPS = frozenset(("StatelessWhile", "While"))
CALLS = dict.fromkeys(LOOPS, ("T", "T")) | dict.fromkeys(
    ("Case", "If", "PartitionedCall", "StatefulPartitionedCall", "StatelessCase", "StatelessIf"),
    ("Tin", "Tout"),
)
# Attributes that no op declares: shapes, names and order, which TensorFlow records when it traces.
# None of them names a function, a kernel, a compiler or another implementation.
ATTRIBUTES = frozenset(
    ("_class", "_collective_manager_ids", "_construction_context", "_gradient_op_type",
     "_has_manual_control_dependencies", "_input_shapes", "_lower_using_switch_merge",
     "_num_original_outputs", "_output_shapes", "_read_only_resource_inputs",
     "_user_specified_name")
)  # fmt: skip
FUNCTION_FIELDS = frozenset(("signature", "node_def", "ret", "control_ret", "attr", "arg_attr"))
SIGNATURE_FIELDS = frozenset(("name", "input_arg", "output_arg", "control_output", "is_stateful"))
# Fields of a call's ConfigProto that describe the machine that traced it. Those that name
# optimizers, clusters or executors are not among them.
CONFIG_FIELDS = frozenset(
    ("allow_soft_placement", "device_count", "gpu_options", "inter_op_parallelism_threads",
     "intra_op_parallelism_threads", "log_device_placement", "pluggable_device_options",
     "use_per_session_threads")
)  # fmt: skip
LOCAL_DEVICE = re.compile(
    r"(/job:localhost)?(/replica:0)?(/task:0)?(/device:[A-Z]+:([0-9]+|\*))?", re.ASCII
)
# The output of a signature that servers run while they load is a node of it.
COLLECTIONS = frozenset(("saved_model_main_op",))


def load(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder, as `tf.saved_model.load` returns it, if `check` passes it.

    TensorFlow reads what was checked, without the saver's functions, from a temporary folder.
    """
    computing = _without_saver(check(folder, url))
    with files.TemporaryFolder("graph") as temporary:
        with files.translated(temporary, "written"):
            Path(temporary, NAME).write_bytes(computing.SerializeToString())
            Path(temporary, "variables").symlink_to(Path(folder, "variables").absolute())
        return tf.saved_model.load(temporary)


def check(folder: str, url: str | None = None) -> Any:
    """The SavedModel proto in a local folder. Raises Failure unless every op of it is allowed.

    Nothing of it is run. Messages call the folder `url`.
    """
    where = url or folder
    for name in OTHER_FORMS:
        if Path(folder, name).exists():
            raise Failure(f"{where} has a {name} beside or instead of its {NAME}. Remove it")
    try:
        model = saved_model_pb2.SavedModel.FromString(Path(folder, NAME).read_bytes())
    except (OSError, DecodeError) as error:
        raise Failure(
            f"{where} has no {NAME} that can be read ({error}). Split the graph again"
        ) from error
    if wrong := next(_wrong(model), None):
        raise Failure(
            f"{where} is not loaded: {wrong}. A graph to be scored may only compute (docs/"
            "serving.md#which-graphs-are-loaded)"
        )
    return model


def _without_saver(model: Any) -> Any:
    """The parts of a checked SavedModel that loading needs: functions and objects."""
    [graph] = model.meta_graphs
    saver, library = _saver_functions(graph), graph.graph_def.library
    computing = graph_pb2.GraphDef(
        versions=graph.graph_def.versions,
        library=function_pb2.FunctionDefLibrary(
            function=[body for body in library.function if body.signature.name not in saver],
            registered_gradients=library.registered_gradients,
        ),
    )
    kept = meta_graph_pb2.MetaGraphDef(
        meta_info_def=meta_graph_pb2.MetaGraphDef.MetaInfoDef(tags=graph.meta_info_def.tags),
        graph_def=computing,
        object_graph_def=graph.object_graph_def,
    )
    version = model.saved_model_schema_version
    return type(model)(saved_model_schema_version=version, meta_graphs=[kept])


def _wrong(model: Any) -> Iterator[str]:
    """What is not allowed in a SavedModel."""
    if len(model.meta_graphs) != 1:
        yield f"it has {len(model.meta_graphs)} graphs, and one is expected"
        return
    [graph] = model.meta_graphs
    if not graph.object_graph_def.nodes:
        yield "it is of TensorFlow 1, whose graphs run while they are loaded"
    if graph.asset_file_def:
        yield f"it reads the file {quoted(graph.asset_file_def[0].filename)}"
    if unknown := graph.collection_def.keys() - COLLECTIONS:
        yield f"it has a collection {quoted(min(unknown))}"
    library = graph.graph_def.library
    saver = _saver_functions(graph)
    names = {function.signature.name for function in library.function}
    if len(names) != len(library.function):
        yield "it has two functions of one name"
    functions = names - saver.keys()
    if hijacked := OPS & functions:
        yield f"it has a function with the name of the op {quoted(min(hijacked))}"
    yield from allowed_objects.wrong(graph.object_graph_def, functions)
    for function in library.function:
        allowed = OPS | saver.get(function.signature.name, frozenset())
        yield from _wrong_function(function, functions, allowed)
    yield from _wrong_calls(library)
    if library.gradient:
        yield f"it has a gradient of the function {quoted(library.gradient[0].function_name)}"
    for gradient in library.registered_gradients:
        if gradient.gradient_func not in functions:
            yield f"its gradient {quoted(gradient.gradient_func)} is no function of it"
    yield from _wrong_graph(graph, functions, saver)


def _saver_functions(graph: Any) -> dict[str, frozenset[str]]:
    """The functions that save and restore the variables, and the ops that only they may have."""
    allowed = dict(zip(_saver_nodes(graph), (SAVE_OPS, RESTORE_OPS), strict=True))
    return {
        node.attr["f"].func.name: allowed[node.name]
        for node in graph.graph_def.node
        if node.name in allowed and node.op == "StatefulPartitionedCall"
    }


def _saver_nodes(graph: Any) -> tuple[str, str]:
    """The nodes that save and restore the graph's variables; empty names without a saver."""
    return _node_named(graph.saver_def.save_tensor_name), graph.saver_def.restore_op_name


def _node_named(tensor: str) -> str:
    """The node of a tensor NAME:NUMBER, or of an input ^NAME."""
    return tensor.partition(":")[0].removeprefix("^")


def _wrong_graph(graph: Any, functions: Collection[str], saver: Collection[str]) -> Iterator[str]:
    """What is not allowed in the nodes of the graph itself, which servers run."""
    calls = set(_saver_nodes(graph)) - {""}
    signed = {
        _node_named(tensor.name)
        for signature in graph.signature_def.values()
        for tensor in (*signature.outputs.values(), *signature.inputs.values())
    }
    for collection in graph.collection_def.values():
        signed |= {_node_named(name) for name in collection.node_list.value}
    if signed & calls:
        yield f"the saver's {quoted(min(signed & calls))} is an output of a signature"
    nodes = graph.graph_def.node
    if taken := {_node_named(name) for node in nodes for name in node.input} & calls:
        yield f"the saver's {quoted(min(taken))} is an input of another node"
    of_model = (node for node in nodes if node.name not in calls)
    yield from _wrong_nodes(of_model, "the graph", functions, OPS)
    of_saver = (node for node in nodes if node.name in calls)
    yield from _wrong_nodes(of_saver, "the saver", {*functions, *saver}, OPS)


def _wrong_function(
    function: Any, functions: Collection[str], allowed: frozenset[str]
) -> Iterator[str]:
    """What is not allowed in a function, in its nodes or beside them."""
    where = f"function {quoted(function.signature.name)[1:-1]}"
    for message, known in ((function, FUNCTION_FIELDS), (function.signature, SIGNATURE_FIELDS)):
        if unknown := {field.name for field, _ in message.ListFields()} - known:
            yield f"{where} has {quoted(min(unknown))}"
    yield from _wrong_nodes(function.node_def, where, functions, allowed)
    for attributes in (function.attr, *(argument.attr for argument in function.arg_attr.values())):
        yield from _wrong_attributes(attributes, frozenset(), where, functions)


def _wrong_nodes(
    nodes: Iterable[Any], where: str, functions: Collection[str], allowed: frozenset[str]
) -> Iterator[str]:
    """Ops that are not allowed, attributes and devices that would have other code run."""
    opaque = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)
    for node in nodes:
        if node.op not in allowed:
            yield f"op {quoted(node.op)} in {where} is not allowed"
            return
        if node.device and not LOCAL_DEVICE.fullmatch(node.device):
            yield f"op {quoted(node.op)} in {where} runs on the device {quoted(node.device)}"
        of_op = f"op {quoted(node.op)} in {where}"
        yield from _wrong_attributes(node.attr, _declared(node.op), of_op, functions)
        if node.op in ("Const", "HostConst"):
            dtype, declared = node.attr["value"].tensor.dtype, node.attr["dtype"]
            if dtype in opaque:
                yield f"a constant in {where} is no array of numbers"
            # TensorFlow's optimizer would end the process.
            elif declared.WhichOneof("value") == "type" and declared.type != dtype:
                yield f"a constant in {where} has another type than its values"


def _wrong_calls(library: Any) -> Iterator[str]:
    """Calls with other inputs or outputs than the function has, which would end the process."""
    signatures = {function.signature.name: function.signature for function in library.function}
    for node in (node for function in library.function for node in function.node_def):
        for name, value in node.attr.items():
            for called in _called(value):
                signature = signatures.get(called.name)
                if signature is not None and not _fits(node, name, signature):
                    yield (
                        f"op {quoted(node.op)} calls {quoted(called.name)} with other inputs or "
                        "outputs than it has"
                    )


def _fits(node: Any, name: str, signature: Any) -> bool:
    """Whether an attribute of a node can call a function, by the types of its arguments."""
    taken, given = (_types(node, attribute) for attribute in CALLS.get(node.op, ("", "")))
    if [argument.type for argument in signature.input_arg] != taken:
        return False
    if node.op in LOOPS and name == "cond":
        return len(signature.output_arg) == 1
    return [argument.type for argument in signature.output_arg] == given


def _types(node: Any, attribute: str) -> list[int]:
    """The types that an attribute of a node lists; none without it."""
    # To index the map would add the attribute.
    return list(node.attr[attribute].list.type) if attribute in node.attr else []


def _called(value: Any) -> Iterable[Any]:
    """The functions that the value of an attribute names."""
    return (value.func,) if value.WhichOneof("value") == "func" else value.list.func


@cache
def _declared(op: str) -> frozenset[str]:
    """The attributes that an op of TensorFlow has."""
    declaration = op_def_registry.get(op)
    return (
        frozenset() if declaration is None else frozenset(entry.name for entry in declaration.attr)
    )


def _wrong_attributes(
    attributes: Any, declared: frozenset[str], where: str, functions: Collection[str]
) -> Iterator[str]:
    """Attributes that choose what runs, other than by the name of a function of the library."""
    for name, value in attributes.items():
        if name not in declared and name not in ATTRIBUTES:
            yield f"{where} has the attribute {quoted(name)}"
        kind = value.WhichOneof("value")
        if kind == "func" or (kind == "list" and value.list.func):
            for called in _called(value):
                if name not in declared or called.name not in functions:
                    yield f"{where} calls {quoted(called.name)}"
                # TensorFlow looks names up in them that it does not check when it loads.
                if called.attr:
                    yield f"{where} calls {quoted(called.name)} with attributes"
        elif kind == "placeholder":
            yield f"{where} has a placeholder for the attribute {quoted(name)}"
        elif name == "executor_type" and value.s:
            yield f"{where} has the executor {quoted(value.s)}"
        elif name in ("config", "config_proto") and value.s and not _is_plain_config(value.s):
            yield f"{where} has a configuration that sets more than devices"


@cache
def _is_plain_config(serialized: bytes) -> bool:
    """Whether the ConfigProto of a call has no settings but CONFIG_FIELDS."""
    try:
        config = config_pb2.ConfigProto.FromString(serialized)
    except DecodeError:
        return False
    return all(
        field.name in CONFIG_FIELDS or (field.name == "experimental" and not value.ByteSize())
        for field, value in config.ListFields()
    )
