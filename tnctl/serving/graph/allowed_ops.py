"""Which SavedModels are loaded: those whose every op only computes.

A SavedModel is a program, and TensorFlow has ops that write files, call servers and run Python. So
each node of the graph, and of every function in its library (bodies of loops and branches, calls
and gradients are functions of the library too), must be one of `OPS` before TensorFlow loads it.

Only the functions of the saver read and write files. Loading does not need them, because
`tf.saved_model.load` restores variables without them. They are neither checked nor loaded:
TensorFlow gets a copy of the other functions and of the objects alone.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tnctl import files
from tnctl.errors import Failure, quoted

NAME = "saved_model.pb"

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


def load(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder, as `tf.saved_model.load` returns it, if `check` passes it.

    TensorFlow reads what was checked from a temporary folder.
    """
    computing = check(folder, url)
    with files.TemporaryFolder("graph") as temporary:
        with files.translated(temporary, "written"):
            Path(temporary, NAME).write_bytes(computing.SerializeToString())
            Path(temporary, "variables").symlink_to(Path(folder, "variables").absolute())
        return tf.saved_model.load(temporary)


def check(folder: str, url: str | None = None) -> Any:
    """The SavedModel proto in a local folder, of which only what loading needs is left.

    Nothing of it is run. Raises Failure unless every op of it is allowed; messages call the folder
    `url`.
    """
    where = url or folder
    try:
        model = saved_model_pb2.SavedModel.FromString(Path(folder, NAME).read_bytes())
    except (OSError, DecodeError) as error:
        raise Failure(
            f"{where} has no {NAME} that can be read ({error}). Split the graph again"
        ) from error
    if len(model.meta_graphs) != 1:
        raise Failure(
            f"{where} is not loaded: it has {len(model.meta_graphs)} graphs, and one is expected. "
            "Split the graph again"
        )
    [graph] = model.meta_graphs
    saver = _saver_functions(graph)
    functions = [f for f in graph.graph_def.library.function if f.signature.name not in saver]
    for op, place in _ops(graph.graph_def.node, functions):
        if op not in OPS:
            raise Failure(
                f"{where} is not loaded: op {quoted(op)} in {place} is not allowed. A graph to be "
                "scored may only compute (docs/serving.md#which-graphs-are-loaded)"
            )
    kept = meta_graph_pb2.MetaGraphDef(
        meta_info_def=meta_graph_pb2.MetaGraphDef.MetaInfoDef(tags=graph.meta_info_def.tags),
        graph_def=graph_pb2.GraphDef(
            versions=graph.graph_def.versions,
            library=function_pb2.FunctionDefLibrary(
                function=functions,
                registered_gradients=graph.graph_def.library.registered_gradients,
            ),
        ),
        object_graph_def=graph.object_graph_def,
    )
    version = model.saved_model_schema_version
    return saved_model_pb2.SavedModel(saved_model_schema_version=version, meta_graphs=[kept])


def _ops(nodes: Any, functions: list[Any]) -> Iterator[tuple[str, str]]:
    """Each op of a graph's functions and of its own nodes, with the place that a message names."""
    for function in functions:
        for node in function.node_def:
            yield node.op, f"function {quoted(function.signature.name)[1:-1]}"
    for node in nodes:
        yield node.op, "the graph"


def _saver_functions(graph: Any) -> set[str]:
    """The names of the functions that save and restore the variables."""
    saver = graph.saver_def
    nodes = {saver.save_tensor_name.partition(":")[0], saver.restore_op_name}
    return {node.attr["f"].func.name for node in graph.graph_def.node if node.name in nodes}
