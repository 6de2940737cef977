"""Every command: what help and completion say of it, and where its function is.

Neither needs the function, so nothing is imported for them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module

from tnctl.serving.rows import file_formats

# Keys of a conf, by how they begin.
SCORING = ("output", "data", "train.batch_size", "train.threads")
ON_WORKERS = tuple(
    f"cluster.{key}"
    for key in ("start", "workers", "servers", "cpus", "timeout", "patience", "restarts", "tls")
)
MODEL = "conf=NAME | output=URL | checkpoint=URL"


@dataclass(frozen=True)
class Command:
    """A command of tnctl, or a part of one: `tnctl checkpoint list`."""

    sentence: str
    usage: str
    takes: tuple[str, ...] = ()
    """Its arguments, of ARGUMENTS."""
    function: str = ""
    """MODULE:NAME in tnctl.cli."""
    keys: tuple[str, ...] | None = ()
    """How the keys of the conf begin that it reads; None: it reads all of them."""
    parts: Mapping[str, "Command"] = field(default_factory=dict)

    def load(self) -> Callable[..., int]:
        """Import the function."""
        module, _, name = self.function.partition(":")
        function: Callable[..., int] = getattr(import_module(f"tnctl.cli.{module}"), name)
        return function


CHECKPOINT_PARTS = {
    "list": Command(
        "the checkpoints of a run: step, day, kind, rows, bytes, metric", "URL [--json]"
    ),
    "inspect": Command(
        "what is in a checkpoint: rows, norms, ages, shows, lineage", "URL [--json]"
    ),
    "verify": Command(
        "whether every byte of a checkpoint and of its chain is as it was written", "URL [--json]"
    ),
    "diff": Command("what changed from one checkpoint to another", "URL URL [--json]"),
    "compact": Command(
        "one full checkpoint of a delta and those it is built on",
        "URL to=URL [--json]",
        ("to",),
    ),
    "prune": Command(
        "remove all but the newest, the best, and what they are built on",
        "URL keep=N [yes=true] [--json]",
        ("keep", "yes"),
    ),
}
COMMANDS = {
    "init": Command(
        "write a first conf for data, each line with its evidence, or copy a shipped conf",
        "FILE|GLOB|FOLDER|…{day}… [label=COLUMN] [positive=TEXT,…] [to=FILE.yaml|-]  or  conf=NAME",
        ("label", "positive", "to", "conf"),
        "init:run",
    ),
    "check": Command(
        "look at a conf and a sample of its data before anything is trained",
        "conf=NAME [rows=N] [format=text|json] [key=value …]",
        ("conf", "rows", "format"),
        "check:run",
        None,
    ),
    "recipes": Command(
        "the shipped recipes: what each is, and which inputs it needs",
        "[--json]",
        function="init:recipes",
    ),
    "prepare": Command(
        "write the data of a conf as ids, for training that parses nothing",
        "conf=NAME to=URL [key=value …]",
        ("conf", "to"),
        "training_commands:prepare",
        ("seed", "output", "slots", "crosses", "numeric", "data", "train.batch_size"),
    ),
    "train": Command(
        "train a conf and save its model",
        "conf=NAME [output=URL] [key=value …] [-m key=value,value … [sweep.trials=N]]",
        (
            "conf",
            "overwrite",
            "golden",
            "accept",
            "sweep.trials",
            "sweep.seed",
            "sweep.prune",
            "sweep.storage",
            "sweep.refit",
        ),
        "training_commands:train",
        None,
    ),
    "rollback": Command(
        "set back a run to an earlier checkpoint, from which training resumes",
        """output=RUN step=N | day=DAY

The run is then as it was when it had trained N steps, or DAY and the days before: checkpoints
saved later go to RUN/rolled_back, and log, report and record of days go back. The next train
resumes there.""",
        ("step", "day"),
        "training_commands:rollback",
    ),
    "import": Command(
        "begin a run with the weights that TensorNet has trained",
        "tensornet=URL conf=NAME [tables=NAME:GROUP.SEGMENT,…] [dense=NAME,…] [output=URL] "
        "[key=value …]",
        ("tensornet", "conf", "tables", "dense"),
        "training_commands:import_weights",
        None,
    ),
    "evaluate": Command(
        "the metrics of a trained model on its test or validation data",
        f"{MODEL} [data.test=FILES] [key=value …]",
        ("conf", "checkpoint"),
        "model_commands:evaluate",
        (*SCORING, "evaluation.by", "evaluation.ndcg_at", *ON_WORKERS),
    ),
    "predict": Command(
        "write a model's scores of data.test, in file order, beside columns of the data",
        f"{MODEL} data.test=FILES [data.carry=[COLUMN,…]] "
        "[to=URL] [format=parquet|csv|jsonl] [overwrite=true]",
        ("conf", "checkpoint", "to", "format", "overwrite"),
        "model_commands:predict",
        (*SCORING, *ON_WORKERS),
    ),
    "ablate": Command(
        "what each input is worth to a trained model, beside the bytes it costs",
        f"{MODEL} [data.validation=FILES] [key=value …]",
        ("conf", "checkpoint"),
        "model_commands:ablate",
        SCORING,
    ),
    "split-graph": Command(
        "write the dense inference graph, servable without tnctl",
        f"{MODEL} [to=URL] [head=NAME] [frozen=true] "
        "[linear=sum|inputs] [golden=N] [aot=[1,32]] [target_cpu=NAME] "
        "[rows=inside [precision=float32|float16|int8]]",
        (
            "conf",
            "checkpoint",
            "to",
            "head",
            "frozen",
            "linear",
            "golden",
            "aot",
            "target_cpu",
            "rows",
            "precision",
        ),
        "model_commands:split_graph",
        ("output",),
    ),
    "export-embeddings": Command(
        "write the rows of a trained model, to files on any storage or to Redis",
        f"{MODEL} [to=URL] [format={'|'.join(file_formats())}] "
        "[precision=float32|float16|int8] [only=SLOT,…] [min_show=X] [top=N] [since=URL] "
        "[golden=N] [prefix=NAME] [grace=SECONDS]",
        (
            "conf",
            "checkpoint",
            "to",
            "format",
            "precision",
            "only",
            "min_show",
            "top",
            "since",
            "golden",
            "prefix",
            "grace",
        ),
        "model_commands:export_embeddings",
        ("output", "train.threads", *ON_WORKERS),
    ),
    "publish": Command(
        "put a trained model in force: graph and rows beside earlier versions, compared first",
        f"{MODEL} to=URL [keep=N] [format={'|'.join(file_formats())}] "
        "[precision=float32|float16|int8] [full=true]",
        ("conf", "checkpoint", "to", "keep", "format", "precision", "full"),
        "model_commands:publish",
        ("output",),
    ),
    "fold": Command(
        "make one full export of a full one and its deltas",
        "embeddings=URL to=URL",
        ("embeddings", "to"),
        "serving_commands:fold",
    ),
    "verify-serving": Command(
        "prove that graph and embeddings score as the trained model does",
        "[conf=NAME | output=URL | checkpoint=URL] [graph=URL] [embeddings=URL|redis://…] "
        "[prefix=NAME] [endpoint=URL]",
        ("conf", "checkpoint", "graph", "embeddings", "prefix", "endpoint"),
        "model_commands:verify_serving",
        ("output", "data", "train.threads", *ON_WORKERS),
    ),
    "score": Command(
        "raw rows in, scores out, by a split graph and exported embeddings alone",
        "graph=URL [embeddings=URL|redis://…] [prefix=NAME] [input=FILE|-] [to=FILE|-] "
        "[format=jsonl|csv] [data.bad_rows=N] [data.skip_rows=N] [data.KEY=VALUE …] "
        "[overwrite=true]",
        ("graph", "embeddings", "prefix", "input", "to", "format", "overwrite"),
        "serving_commands:score",
    ),
    "runs": Command(
        "runs side by side: what differs in their confs, metrics, time, spread over seeds",
        """[FOLDER|URL] [metric=NAME] [--json]

FOLDER (by default runs) has runs at any depth: outputs of `train`, and of sweeps. They are in the
order of their metric on data.validation, the best first.""",
        ("metric",),
        "runs:run",
    ),
    "checkpoint": Command(
        "list, inspect, verify, diff, compact and prune checkpoints",
        "\n".join(
            [
                f"{'|'.join(CHECKPOINT_PARTS)} URL … [--json]",
                "",
                *(
                    f"  {name} {part.usage.removesuffix(' [--json]'):{26 - len(name)}}  "
                    f"{part.sentence}"
                    for name, part in CHECKPOINT_PARTS.items()
                ),
                "",
                "URL is the output of a run (its newest checkpoint), or the folder of one "
                "checkpoint.",
            ]
        ),
        ("to", "keep", "yes"),
        "checkpoint:run",
        parts=CHECKPOINT_PARTS,
    ),
    "completion": Command(
        "a script for bash, zsh or fish that completes commands, arguments and keys",
        """bash|zsh|fish

In a start-up file of the shell:

  bash   source <(tnctl completion bash)
  zsh    source <(tnctl completion zsh)
  fish   tnctl completion fish | source""",
        (),
        "completion:run",
    ),
}


def takers(argument: str) -> list[str]:
    """The commands that take an argument, such as `format`."""
    return [name for name, command in COMMANDS.items() if argument in command.takes]
