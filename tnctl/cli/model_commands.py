"""The commands that read a trained model, here or by the workers that the conf names."""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tnctl.cli import arguments
from tnctl.cli.confs_and_runs import chosen, output_of
from tnctl.cli.printing import print_json
from tnctl.errors import UserError, quoted, refuse_if

if TYPE_CHECKING:
    from tnctl.api.opened_run import Run
    from tnctl.cluster.rank_0.cluster_processes import ClusterProcesses
    from tnctl.schema import Conf
    from tnctl.serving.rows.export_document import Filter
    from tnctl.serving.verification import CheckedFigure

# The command's own arguments, as text.
Taken = dict[str, str]


def evaluate(given: list[str]) -> int:
    """Print the metrics of a checkpoint as one JSON object."""
    run, taken = chosen("evaluate", given, takes_cluster=True)
    return perform("evaluate", run, taken)


def print_evaluation(run: "Run", _: Taken) -> int:
    print_json(run.evaluate())
    return 0


def predict(given: list[str]) -> int:
    """Write the scores of data.test, else of data.validation, by default into the output."""
    run, taken = chosen("predict", given, takes_cluster=True)
    if "conf" in taken:
        from tnctl import outputs
        from tnctl.composing.compose import conf_file

        path, _, _ = run.place_of_predictions(taken.get("to"), taken.get("format"))
        outputs.refuse_overlap([path], [str(conf_file(taken["conf"]))])
    return perform("predict", run, taken)


def check_predictions(run: "Run", taken: Taken) -> None:
    overwrite = arguments.flag(taken, "overwrite")
    run.check_predictions(taken.get("to"), taken.get("format"), overwrite)


def write_predictions(run: "Run", taken: Taken) -> int:
    overwrite = arguments.flag(taken, "overwrite")
    run.predict_files(taken.get("to"), taken.get("format"), overwrite=overwrite)
    return 0


def ablate(given: list[str]) -> int:
    """Show what each input is worth, and print it as one JSON object."""
    run, _ = chosen("ablate", given)
    importance = run.importance()
    from tnctl.training.report.terminal_tables import show_importance

    show_importance(importance)
    print_json({"checkpoint": run.checkpoint, **dataclasses.asdict(importance)})
    return 0


def split_graph(given: list[str]) -> int:
    """Write the graph to `to`, by default output/graph."""
    run, taken = chosen("split-graph", given, runs_recipe=False)
    run.split_graph(
        taken.get("to"),
        head=taken.get("head"),
        frozen=arguments.flag(taken, "frozen"),
        linear=taken.get("linear", "sum"),
        golden=arguments.count(taken, "golden", 200),
        sizes=taken.get("aot", ()),
        target_cpu=taken.get("target_cpu"),
        rows=taken.get("rows"),
        precision=taken.get("precision"),
    )
    return 0


def export_embeddings(given: list[str]) -> int:
    """Write the embeddings to `to`, by default output/embeddings, a delta to embeddings-STEP."""
    run, taken = chosen("export-embeddings", given, runs_recipe=False, takes_cluster=True)
    return perform("export-embeddings", run, taken, runs_recipe=False)


def check_export(run: "Run", taken: Taken) -> None:
    of_redis = {key: taken.get(key) for key in ("prefix", "grace")}
    run.place_of_export(taken.get("to"), taken.get("format"), taken.get("since"), of_redis)


def write_export(run: "Run", taken: Taken) -> int:
    run.export_embeddings(
        taken.get("to"),
        encoding=taken.get("format"),
        precision=taken.get("precision", "float32"),
        filter=filter_of(taken),
        since=taken.get("since"),
        golden=arguments.count(taken, "golden", 200),
        prefix=taken.get("prefix"),
        grace=arguments.count(taken, "grace", 0) if "grace" in taken else None,
    )
    return 0


def filter_of(taken: Taken) -> "Filter":
    """Which rows to export."""
    from tnctl.serving.rows.export_document import Filter

    slots = None
    if "only" in taken:
        slots = tuple(dict.fromkeys(name.strip() for name in taken["only"].strip("[]").split(",")))
    return Filter(
        slots=slots,
        min_show=number(taken["min_show"]) if "min_show" in taken else None,
        top=arguments.count(taken, "top", 0) if "top" in taken else None,
    )


def number(text: str) -> float:
    """A number for min_show."""
    try:
        return float(text)
    except ValueError:
        raise UserError(f"min_show must be a number from 0 on. Received: {quoted(text)}") from None


def publish(given: list[str]) -> int:
    """Write a version of the model to `to`, and put it in force."""
    run, taken = chosen("publish", given, runs_recipe=False)
    refuse_if("to" not in taken, "publish needs to=URL: the folder of all versions")
    from tnctl.api.calls import KEPT_VERSIONS

    run.publish(
        taken["to"],
        keep=arguments.count(taken, "keep", KEPT_VERSIONS),
        encoding=taken.get("format"),
        precision=taken.get("precision", "float32"),
        full=arguments.flag(taken, "full"),
    )
    return 0


def verify_serving(given: list[str]) -> int:
    """Compare serving with training, and with golden rows; exit code 1 when they differ.

    Without a model, graph and embeddings are compared with the golden rows that they contain.
    """
    taken, words = arguments.part("verify-serving", given)
    if "conf" in taken or "checkpoint" in taken or output_of(words) is not None:
        run, taken = chosen("verify-serving", given, takes_cluster=True)
        return perform("verify-serving", run, taken)
    refuse_if(
        words, f"'{' '.join(words[:1])}' belongs to a model. Give output=URL or checkpoint=URL"
    )
    refuse_if(
        "graph" not in taken,
        "what is to be verified? Give output=URL, checkpoint=URL, or graph=URL",
    )
    from tnctl.api.artefacts import PREFIX, verify_artefacts

    figures = verify_artefacts(
        taken["graph"],
        taken.get("embeddings"),
        prefix=taken.get("prefix", PREFIX),
        endpoint=taken.get("endpoint"),
    )
    return exit_code(figures)


def show_serving(run: "Run", taken: Taken) -> int:
    from tnctl.api.artefacts import PREFIX

    figures = run.verify_serving(
        taken.get("graph"),
        taken.get("embeddings"),
        prefix=taken.get("prefix", PREFIX),
        endpoint=taken.get("endpoint"),
    )
    return exit_code(figures)


def exit_code(figures: "list[CheckedFigure]") -> int:
    """Show the findings; 0 when all are fine, else 1."""
    from tnctl.progress import say, table

    rows = [(f.what, f.figure, "ok" if f.held else "FAILED") for f in figures]
    table("", ("serving against training", "", ""), rows)
    held = all(figure.held for figure in figures)
    way = "differs from training: do not ship these files; split and export again"
    say(f"serving {'equals training' if held else way}")
    return 0 if held else 1


# Of each command that workers can run: what is refused before they start, and what is done, by
# worker 0, or in this process, which then refuses the same.
Check = Callable[["Run", Taken], object]
Work = Callable[["Run", Taken], int]
ON_WORKERS: dict[str, tuple[Check, Work]] = {
    "evaluate": (lambda run, _: run.check_evaluation(), print_evaluation),
    "predict": (check_predictions, write_predictions),
    "export-embeddings": (check_export, write_export),
    "verify-serving": (
        lambda run, taken: run.check_serving(taken.get("graph"), taken.get("embeddings")),
        show_serving,
    ),
}


def perform(command: str, run: "Run", taken: Taken, *, runs_recipe: bool = True) -> int:
    """What a command asks of a run, here or by the workers that the conf names; its exit code.

    `runs_recipe` says whether workers need the recipe.
    """
    check, work = ON_WORKERS[command]
    conf = run.conf
    if conf.cluster.start is None:
        return work(run, taken)
    check(run, taken)
    from tnctl.launch.run import read

    return read(command, lead, conf, run.checkpoint, taken, runs_recipe=runs_recipe)


def lead(conf: "Conf", processes: "ClusterProcesses", task: dict[str, Any]) -> int:
    """What worker 0 does for a command."""
    from tnctl.api.opened_run import Run
    from tnctl.checkpoint.chain import open_checkpoint

    run = Run(open_checkpoint(task["checkpoint"]), conf, conf.output, processes)
    _, work = ON_WORKERS[task["command"]]
    return work(run, task["arguments"])
