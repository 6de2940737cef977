"""SavedModels of dense graphs: checked to only compute, loaded, and run.

A SavedModel is a program, and TensorFlow has ops that write files, call servers and run Python. So
each node of the graph, and of every function in its library (bodies of loops and branches, calls
and gradients are functions of the library too), must be one of `OPS` before TensorFlow loads it.

Only the functions of the saver read and write files. Loading does not need them, because
`tf.saved_model.load` restores variables without them. They are neither checked nor loaded:
TensorFlow gets a copy of the other functions and of the objects alone.

A split graph is loaded as a server would: by its signatures alone.
"""

import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow.core.framework import function_pb2, graph_pb2
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

from tnctl import files, manifest
from tnctl.checkpoint.chain import Checkpoint, offering
from tnctl.errors import SHOWN, Failure, UserError, printable, quoted
from tnctl.manifest import DamagedError
from tnctl.model.graph import TOWERS, Input
from tnctl.model.layout import LINEAR
from tnctl.ownership import SAVED_MODEL
from tnctl.serving.artefact_document import local_copy
from tnctl.serving.graph.graph_document import NAME, GraphManifest, SignatureInput
from tnctl.serving.rows.precision import Arrays

PROTO = "saved_model.pb"

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
# Texts to bytes.
DecodePaddedRaw StringLength
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
FULL_DISK = (OSError, tf.errors.ResourceExhaustedError)


def checked(folder: str, url: str | None = None) -> Any:
    """The SavedModel proto in a local folder, of which only what loading needs is left.

    Nothing of it is run. Raises Failure unless every op of it is allowed; messages call the folder
    `url`.
    """
    where = url or folder
    try:
        model = saved_model_pb2.SavedModel.FromString(Path(folder, PROTO).read_bytes())
    except (OSError, DecodeError) as error:
        raise Failure(
            f"{where} has no {PROTO} that can be read ({error}). Split the graph again"
        ) from error
    if len(model.meta_graphs) != 1:
        raise Failure(
            f"{where} is not loaded: it has {len(model.meta_graphs)} graphs, and one is expected. "
            "Split the graph again"
        )
    [graph] = model.meta_graphs
    saver = saver_functions(graph)
    functions = [f for f in graph.graph_def.library.function if f.signature.name not in saver]
    nodes = [(f"function {quoted(f.signature.name)[1:-1]}", f.node_def) for f in functions]
    for place, of_place in [*nodes, ("the graph", graph.graph_def.node)]:
        for node in of_place:
            if node.op not in OPS:
                raise Failure(
                    f"{where} is not loaded: op {quoted(node.op)} in {place} is not allowed. A "
                    "graph to be scored may only compute "
                    "(docs/serving.md#which-graphs-are-loaded)"
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


def saver_functions(graph: Any) -> set[str]:
    """The names of the functions that save and restore the variables."""
    saver = graph.saver_def
    nodes = {saver.save_tensor_name.partition(":")[0], saver.restore_op_name}
    return {node.attr["f"].func.name for node in graph.graph_def.node if node.name in nodes}


class LoadedGraph:
    """The SavedModel in a local folder, which serving.json's content describes.

    `url` is where it is from, for messages. Raises Failure for a graph with an op that does more
    than compute.
    """

    def __init__(self, folder: str, description: GraphManifest, url: str | None = None) -> None:
        self.description = description
        self._loaded = load_graph(folder, url)  # variables live only as long as it does

    def outputs(self, signature: str, inputs: Arrays) -> Arrays:
        """What a signature computes from the inputs [B, columns] of `packed`, by output.

        The inputs are cut as the signature takes them. Each array is float32 [B, *shape] with the
        shape that serving.json gives.
        """
        return self.run(signature, inputs_of(self.description.signatures.of(signature), inputs))

    def towers(self, inputs: Arrays) -> Arrays:
        """What signature `towers` computes from the inputs of `packed`, [B, d] by tower.

        Empty for a graph without this signature.
        """
        return self.run(TOWERS, inputs) if TOWERS in self._loaded.signatures else {}

    def run(self, signature: str, inputs: Arrays) -> Arrays:
        """What a signature computes from its own inputs, by output."""
        with tensorflow_errors("the graph does not run"):
            return run(self._loaded.signatures[signature], inputs)


def run(function: Any, inputs: Arrays) -> Arrays:
    """The outputs of a signature's function for inputs, by name.

    Shapes and dtypes are the signature's.
    """
    outputs = function(**{name: tf.constant(array) for name, array in inputs.items()})
    return {name: tensor.numpy() for name, tensor in outputs.items()}


def inputs_of(signature: Iterable[SignatureInput | Input], packed: Arrays) -> Arrays:
    """The inputs of a signature, [B, *shape] by name, cut from the inputs of `packed`."""
    return {
        part.name: np.ascontiguousarray(
            packed[part.source][:, part.at : part.at + part.columns]
        ).reshape(-1, *part.shape)
        for part in signature
    }


@dataclass(frozen=True)
class SideInput:
    """An input of signature `rank`: columns `places` of input `source` of `packed`.

    [1, columns] of the user or [N, columns] of items.
    """

    source: str
    of_user: bool
    places: tuple[int, ...]
    dtype: str

    @property
    def name(self) -> str:
        """Its name in the signature."""
        return f"{self.source}_user" if self.of_user else self.source

    @property
    def shape(self) -> tuple[int]:
        """Without the rows."""
        return (len(self.places),)

    def of(self, packed: Arrays) -> Any:
        """The input, of the inputs of `packed` by name: the user's of their first row."""
        return packed[self.source][: 1 if self.of_user else None, self.places]


def rank_inputs(
    packed: Iterable[SignatureInput | Input],
    by_slot: Collection[SignatureInput | Input],
    users: Collection[str],
) -> list[SideInput]:
    """The inputs of signature `rank`; `users` are the inputs of `by_slot` that are the user's.

    Columns have the order of `packed`. Those of no input of `by_slot` are left out, but for
    `linear`, which is of the user and the item.
    """
    sides = []
    for whole in packed:
        parts = sorted(
            (part.at, part.at + part.columns, part.name in users)
            for part in by_slot
            if part.source == whole.name
        )
        if whole.name == LINEAR:
            parts = [(0, whole.columns, False)]
        for of_user in (True, False):
            places = [
                at
                for begin, end, is_user in parts
                if is_user is of_user
                for at in range(begin, end)
            ]
            if places:
                sides.append(SideInput(whole.name, of_user, tuple(places), whole.dtype))
    return sides


def rank_inputs_of(description: GraphManifest) -> list[SideInput]:
    """The inputs of signature rank; none without it, or in the form of an older version."""
    known = description.signatures
    if known.rank is None or description.version < GraphManifest.VERSION:
        return []
    return rank_inputs(known.packed, known.by_slot, known.rank)


def outputs_of(description: GraphManifest, kind: str) -> dict[str, str]:
    """The outputs that hold `logits` or `predictions` of a head each: head -> name.

    Or the `embedding` of a tower: tower -> name.
    """
    # Of several heads the main one has two outputs of a kind, the second with its name.
    return {output.head: output.name for output in description.outputs if output.kind == kind}


def load_graph(folder: str, url: str | None = None) -> Any:
    """The SavedModel in a local folder, if `checked` passes it; messages call it `url`.

    TensorFlow reads what was checked from a temporary folder. Raises Failure when an op does more
    than compute, or TensorFlow does not load it.
    """
    # TensorFlow's parsers and readers raise whatever they raise.
    with (
        tensorflow_errors("the graph is no SavedModel that TensorFlow loads", (UserError,)),
        files.TemporaryFolder("graph") as temporary,
    ):
        computing = checked(folder, url)
        with files.translated(temporary, "written"):
            Path(temporary, PROTO).write_bytes(computing.SerializeToString())
            Path(temporary, "variables").symlink_to(Path(folder, "variables").absolute())
        return tf.saved_model.load(temporary)


@contextmanager
def tensorflow_errors(
    what: str, passing: tuple[type[Exception], ...] = (UserError, *FULL_DISK)
) -> Iterator[None]:
    """Turn what TensorFlow raises for a graph that is not as it should be into a Failure.

    Errors of the kinds `passing`, by default our errors and a full disk, pass.
    """
    try:
        yield
    except passing:
        raise
    except Exception as error:
        reason = printable(str(error).strip().split("\n")[0])[:SHOWN] or type(error).__name__
        raise Failure(f"{what} ({reason}). Take another checkpoint, or split again") from error


def write_graph(checkpoint: Checkpoint, folder: str) -> None:
    """Write the graph that a checkpoint contains into a local folder, its files verified.

    Raises DamagedError when the checkpoint names other files than a SavedModel has, wherever they
    would be written, and Failure when the graph has an op that does more than compute.
    """
    prefix = checkpoint.manifest.graph + "/"
    with offering(checkpoint):
        for name in (name for name in checkpoint.manifest.files if name.startswith(prefix)):
            inner = name.removeprefix(prefix)
            if not SAVED_MODEL.fullmatch(inner):
                raise DamagedError(
                    checkpoint.folder,
                    f"{checkpoint.folder} has a file {quoted(name)}, which no SavedModel of tnctl "
                    "has",
                    "Take another checkpoint",
                )
            data = manifest.read_file(checkpoint.folder, checkpoint.manifest, name)
            target = Path(folder, inner)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    checked(folder, checkpoint.folder)


def open_graph(url: str) -> LoadedGraph:
    """The split graph in a folder or URL, every file verified. Raises Failure."""
    description = manifest.read(url, GraphManifest, NAME)
    local = files.local_path(url)
    if local is not None:
        for name in description.files:
            with manifest.present(url, description, name):
                manifest.check_stored(url, description, name, "Split the graph again")
        return LoadedGraph(str(local), description)
    with files.TemporaryFolder("graph") as temporary:
        for name in description.files:
            if not name.startswith("aot/"):
                local_copy(url, description, name, Path(temporary))
        return LoadedGraph(temporary, description, url)
