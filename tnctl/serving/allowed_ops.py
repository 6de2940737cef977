"""Which SavedModels are loaded: those whose every op only computes.

A SavedModel is a program, and TensorFlow has ops that write files, ask servers and call Python. A
graph that comes from elsewhere is looked at before TensorFlow loads it: each node of the graph, of
every function in its library (bodies of loops and branches, calls and gradients are functions of
the library too) must be one of `OPS`. Files are read and written by the functions of the saver
alone, which nothing else may call and which `tf.saved_model.load` does not run: it restores
variables by a reader of its own.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tnctl.errors import Failure, quoted

NAME = "saved_model.pb"
# TensorFlow would load these in the place of saved_model.pb, or where it is missing.
OTHER_FORMS = ("saved_model.cpb", "saved_model.pbtxt")

# Calls, control flow, weights.
CONTROL = """
Assert Case Const ControlTrigger Enter Exit FakeParam HostConst If LoopCond Merge NextIteration NoOp
PartitionedCall Placeholder PlaceholderV2 PlaceholderWithDefault ReadVariableOp ResourceGather
ResourceGatherNd StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile Switch
VarHandleOp VariableShape While
"""
# Passing on.
PASSING = """
Bitcast Cast CheckNumerics EnsureShape Identity IdentityN OnesLike PreventGradient Snapshot
StopGradient ZerosLike
"""
# Shapes, and parts of arrays.
ARRAYS = """
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
"""
# Lists of tensors, which loops gather.
LISTS = """
EmptyTensorList TensorListConcatV2 TensorListElementShape TensorListFromTensor TensorListGather
TensorListGetItem TensorListLength TensorListPopBack TensorListPushBack TensorListReserve
TensorListResize TensorListScatterV2 TensorListSetItem TensorListSplit TensorListStack
"""
# Numbers one by one.
NUMBERS = """
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
"""
# Sums, products, orders.
REDUCTIONS = """
AccumulateNV2 All Any ApproxTopK ArgMax ArgMin BatchMatMul BatchMatMulV2 BatchMatMulV3 Bincount
Cumprod Cumsum CumulativeLogsumexp DenseBincount Einsum EuclideanNorm HistogramFixedWidth InTopK
InTopKV2 L2Loss LogSoftmax MatMul Max Mean Min NthElement Prod SegmentMax SegmentMaxV2
SegmentMean SegmentMin SegmentMinV2 SegmentProd SegmentProdV2 SegmentSum SegmentSumV2 Softmax
SoftmaxCrossEntropyWithLogits SparseMatMul SparseSegmentMean SparseSegmentMeanWithNumSegments
SparseSegmentSqrtN SparseSegmentSqrtNWithNumSegments SparseSegmentSum
SparseSegmentSumWithNumSegments SparseSoftmaxCrossEntropyWithLogits SparseTensorDenseMatMul
SparseToDense Sum TopK TopKV2 UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd
UnsortedSegmentSum
"""
# Matrices, convolutions, normalization, Fourier transforms.
LINEAR_ALGEBRA = """
AvgPool AvgPool3D BatchNormWithGlobalNormalization Cholesky Conv Conv2D Conv2DBackpropInput
Conv3D Conv3DBackpropInputV2 DataFormatDimMap DataFormatVecPermute DepthwiseConv2dNative
Dilation2D FFT FFT2D FFT3D FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3 IFFT IFFT2D IFFT3D
IRFFT IRFFT2D IRFFT3D LRN LogMatrixDeterminant Lu MatrixDeterminant MatrixExponential
MatrixInverse MatrixSolve MatrixSolveLs MatrixSquareRoot MatrixTriangularSolve MaxPool MaxPool3D
MaxPoolV2 MaxPoolWithArgmax Qr RFFT RFFT2D RFFT3D SelfAdjointEigV2 Svd TridiagonalMatMul
TridiagonalSolve
"""
# Random numbers that are a function of their seed.
RANDOM = """
StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomNormal
StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformV2
StatelessTruncatedNormal StatelessTruncatedNormalV2
"""
_LISTED = (CONTROL, PASSING, ARRAYS, LISTS, NUMBERS, REDUCTIONS, LINEAR_ALGEBRA, RANDOM)
OPS = frozenset(name for text in _LISTED for name in text.split())
SAVE_OPS = frozenset(
    ("DisableCopyOnRead", "MergeV2Checkpoints", "SaveV2", "ShardedFilename",
     "StaticRegexFullMatch", "StringJoin")
)  # fmt: skip
RESTORE_OPS = frozenset(("AssignVariableOp", "RestoreV2"))
# What a SavedModel of plain functions and variables consists of. An `asset` is a file, a
# `resource` is made by a function that runs while loading.
KINDS = frozenset(
    ("bare_concrete_function", "captured_tensor", "constant", "function", "user_object", "variable")
)
OBJECTS = frozenset(
    ("_generic_user_object", "signature_map", "trackable_dict_wrapper", "trackable_list_wrapper",
     "trackable_tuple_wrapper")
)  # fmt: skip


def load(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder, as `tf.saved_model.load` has it, if `check` passes it."""
    check(folder, url)
    import tensorflow as tf

    return tf.saved_model.load(folder)


def check(folder: str, url: str | None = None) -> None:
    """Raise Failure unless every op of the SavedModel in a local folder is allowed.

    Nothing of it is run. `url` is what messages call the folder.
    """
    from google.protobuf.message import DecodeError
    from tensorflow.core.protobuf import saved_model_pb2

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
    yield from _wrong_objects(graph.object_graph_def)
    functions = {one.signature.name: one for one in graph.graph_def.library.function}
    if len(functions) != len(graph.graph_def.library.function):
        yield "it has two functions of one name"
    saving, restoring = _of_saver(graph)
    for name, allowed in ((saving, SAVE_OPS), (restoring, RESTORE_OPS)):
        if name in functions:
            yield from _wrong_nodes(functions[name].node_def, f"function {name}", functions,
                                    OPS | allowed, set())  # fmt: skip
    of_saver = {saving, restoring} & functions.keys()
    if called := of_saver & set(graph.object_graph_def.concrete_functions):
        yield f"{quoted(min(called))} reads or writes files and is a function of the model"
    for name, function in functions.items():
        if name not in of_saver:
            where = f"function {name}"
            yield from _wrong_nodes(function.node_def, where, functions, OPS, of_saver)
    nodes = graph.graph_def.node
    calls = {_node_named(graph.saver_def.save_tensor_name), graph.saver_def.restore_op_name}
    if signed := calls & {
        _node_named(one.name)
        for signature in graph.signature_def.values()
        for one in signature.outputs.values()
    }:
        yield f"the saver's {quoted(min(signed))} is an output of a signature"
    yield from _wrong_nodes(
        (node for node in nodes if node.name not in calls), "the graph", functions, OPS, of_saver
    )
    yield from _wrong_nodes(
        (node for node in nodes if node.name in calls), "the saver", functions, OPS, set()
    )
    for gradient in graph.graph_def.library.gradient:
        if gradient.gradient_func in of_saver or gradient.function_name in of_saver:
            yield f"{quoted(gradient.gradient_func)} of the saver is a gradient"


def _wrong_objects(objects: Any) -> Iterator[str]:
    for one in objects.nodes:
        kind = one.WhichOneof("kind")
        if kind not in KINDS:
            yield f"it has an object of the kind {quoted(str(kind))}"
        elif kind == "user_object" and one.user_object.identifier not in OBJECTS:
            yield f"it has an object of the class {quoted(one.user_object.identifier)}"
        elif one.registered_name or one.registered_saver or one.saveable_objects:
            yield "it has an object that is restored by code of its own"


def _of_saver(graph: Any) -> tuple[str, str]:
    """The functions by which the graph saves and restores its variables; empty without a saver."""
    nodes = {node.name: node for node in graph.graph_def.node}
    found = []
    for name in (_node_named(graph.saver_def.save_tensor_name), graph.saver_def.restore_op_name):
        node = nodes.get(name)
        is_call = node is not None and node.op == "StatefulPartitionedCall"
        found.append(node.attr["f"].func.name if is_call else "")  # type: ignore[union-attr]
    return found[0], found[1]


def _node_named(tensor: str) -> str:
    """The node of a tensor NAME:NUMBER."""
    return tensor.partition(":")[0]


def _wrong_nodes(
    nodes: Iterable[Any], where: str, functions: Any, allowed: frozenset[str], closed: set[str]
) -> Iterator[str]:
    """Ops that are neither allowed nor functions of the library, and calls of `closed` ones."""
    from tensorflow.core.framework import types_pb2

    opaque = (types_pb2.DT_RESOURCE, types_pb2.DT_VARIANT)
    for node in nodes:
        if node.op not in allowed and (node.op not in functions or node.op in closed):
            yield f"op {quoted(node.op)} in {where} is none of a model"
        for name in _called(node.attr):
            if name not in functions or name in closed:
                yield f"op {quoted(node.op)} in {where} calls {quoted(name)}"
        if node.op in ("Const", "HostConst") and node.attr["value"].tensor.dtype in opaque:
            yield f"a constant in {where} is no array of numbers"


def _called(attributes: Any) -> Iterator[str]:
    """The functions that the attributes of a node name, within each other too."""
    for value in attributes.values():
        for function in (*([value.func] if value.HasField("func") else ()), *value.list.func):
            yield function.name
            yield from _called(function.attr)
