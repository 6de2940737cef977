"""What the tables of a model hold at the moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from tnctl.model.parameter_tables import ParameterTables
from tnctl.tables import Figures


@dataclass(frozen=True)
class TableFigures:
    """Rows and bytes (rows and index, as reserved) of a table, and the counts of each group."""

    rows: int
    bytes: int
    groups: dict[str, Figures]
    """by the name of the share group"""


def table_figures(model: ParameterTables) -> list[TableFigures]:
    """The figures of each table of a model, in their order."""
    return [
        TableFigures(
            table.rows,
            table.index_bytes + table.row_bytes,
            {name: table.figures(number) for name, number in layout.groups.items()},
        )
        for layout, table in zip(model.layout.tables, model.tables, strict=True)
    ]


def total_rows(tables: Sequence[TableFigures]) -> int:
    """The rows of all tables together."""
    return sum(table.rows for table in tables)


def total_bytes(tables: Sequence[TableFigures]) -> int:
    """The bytes of all tables together."""
    return sum(table.bytes for table in tables)
