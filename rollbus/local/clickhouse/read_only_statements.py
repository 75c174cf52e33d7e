"""What the read-only user may ask: an allow-list over the engine's own parse of the statement.

    EXPLAIN AST … ─▶ one line a node ─▶ kinds of nodes, names of functions, tables of `system`

Fails closed: a kind of node that is not listed is refused. `* APPLY(f)` is one, since its node does not name the
function. A name counts in every place, since `arrayMap(file, …)` passes a function by its name alone. What runs a text
as SQL is refused, since the parse shows only that there is a text. Functions are allowed by the engine's own
categories, so that those of a later release are refused until somebody looks at them.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rollbus.local.clickhouse.errors import ClickHouseError, Code, refusal
from rollbus.local.clickhouse.reader_role import READONLY_USER

FUNCTIONS = "SELECT name, categories, alias_to, is_aggregate, origin FROM system.functions FORMAT JSONEachRow"
TABLE_FUNCTIONS = "SELECT name FROM system.table_functions FORMAT JSONEachRow"
CATEGORIES = frozenset(
    {"Aggregate Functions", "Arithmetic", "Arrays", "Bit", "Bitmap", "Comparison", "Conditional", "Dates and Times",
     "Distance", "Encoding", "Financial", "Geo", "Geo Polygon", "Hash", "IP Address", "JSON", "Logical", "Map",
     "Mathematical", "Null", "NumericIndexedVector", "QBit", "Random Number", "Rounding", "String",
     "String Replacement", "String Search", "String Splitting", "Time Series", "Time Window", "Tuple",
     "Type Conversion", "URL", "UUID"}
)  # fmt: skip
"""Their functions compute from their arguments alone."""
OTHER_FUNCTIONS = frozenset(
    {
        "_cast", "bar", "blocknumber", "bytesize", "casewithexpression", "countdigits", "currentdatabase",
        "currentqueryid", "currentschemas", "currentuser", "displayname", "dumpcolumnstructure", "finalizeaggregation",
        "formatreadabledecimalsize", "formatreadablequantity", "formatreadablesize", "formatreadabletimedelta",
        "identity", "ignore", "indexhint", "isconstant", "isdecimaloverflow", "materialize",
        "neighbor", "normalizedqueryhash", "normalizequery", "parsereadablesize", "parsereadablesizeornull",
        "parsereadablesizeorzero", "parsetimedelta", "queryid", "revision", "rownumberinallblocks", "rownumberinblock",
        "runningaccumulate", "runningdifference", "runningdifferencestartingwithfirstvalue", "sleep", "sleepeachrow",
        "throwif", "tocolumntypename", "totypename", "transform", "uptime", "variantelement", "varianttype", "version",
        "visiblewidth"
    }
)  # fmt: skip
"""In the engine's category `Other`, or internal names that its parser writes."""
READ_AS_SQL = frozenset({"arrayreduce", "arrayreduceinranges", "initializeaggregation"})
"""They run a text, and statements in it: `arrayReduce('groupConcat(file(…))', …)`. EXPLAIN AST shows a text only."""
TABLES_FROM_NOTHING = frozenset(
    {"generateseries", "generate_series", "numbers", "numbers_mt", "primes", "view", "zeros", "zeros_mt"}
)
"""None that takes a text for its columns, as `values` does: `DEFAULT` and `ALIAS` in it are expressions that run."""
SYSTEM_TABLES = frozenset(
    {"collations", "columns", "contributors", "data_skipping_indices", "data_type_families", "databases", "formats",
     "functions", "keywords", "licenses", "numbers", "numbers_mt", "one", "settings", "table_engines",
     "table_functions", "tables", "time_zones", "zeros", "zeros_mt"}
)  # fmt: skip
"""What clients read to find their way. Others show statements of the owner, paths, addresses."""
STATEMENTS = frozenset(
    {"describequery", "existsdatabasequery", "existstablequery", "existsviewquery", "explain", "selectquery",
     "selectintersectexceptquery", "selectwithunionquery", "showcolumns", "showcreatedatabasequery",
     "showcreatetablequery", "showcreateviewquery", "showfunctions", "showindexes", "showtables"}
)  # fmt: skip
WITHOUT_CHILDREN = frozenset({"showcolumns", "showindexes", "showtables"})
"""Their conditions are not in what EXPLAIN AST prints, so they may have none."""
CONDITIONS = frozenset({"WHERE", "LIMIT"})
NODES = STATEMENTS | {
    *("arrayjoin", "asterisk", "columnslistmatcher", "columnsregexpmatcher", "columnsexcepttransformer"),
    *(
        "columnsreplacetransformer",
        "columnsreplacetransformer::replacement",
        "columnstransformerlist",
        "expressionlist",
    ),
    *("function", "identifier", "interpolateelement", "literal", "orderbyelement", "pair", "qualifiedasterisk"),
    *(
        "qualifiedcolumnslistmatcher",
        "qualifiedcolumnsregexpmatcher",
        "sampleratio",
        "set",
        "subquery",
        "tableexpression",
    ),
    *("tableidentifier", "tablejoin", "tablesinselectquery", "tablesinselectqueryelement", "windowdefinition"),
    *("windowlistelement", "withelement"),
}


@dataclass(frozen=True, slots=True)
class Reach:
    """What of this engine's functions is refused; lower case."""

    functions: frozenset[str]
    table_functions: frozenset[str]
    tables: frozenset[str]
    """Table functions where a table is: `format` is a function of texts elsewhere, and `latest(x = 1)` is a view."""


def find_reach(functions: bytes, table_functions: bytes) -> Reach:
    """Return what is refused, from the answers to `FUNCTIONS` and `TABLE_FUNCTIONS`."""
    listed = [row for row in map(json.loads, functions.splitlines()) if row["origin"] == "System"]
    listed.sort(key=lambda row: row["alias_to"] == "")  # of `timeZone` and `timezone` the one that is not an alias
    rows = {row["name"].lower(): row for row in listed}
    allowed = {name for name in rows if _is_allowed(name, rows)} - READ_AS_SQL
    of_tables = {json.loads(line)["name"].lower() for line in table_functions.splitlines()} - TABLES_FROM_NOTHING
    return Reach(frozenset(rows.keys() - allowed), frozenset(of_tables - allowed), frozenset(of_tables))


def _is_allowed(name: str, rows: Mapping[str, Mapping[str, str]]) -> bool:
    row = rows[name]
    alias = row["alias_to"].lower()
    if alias in rows:
        return _is_allowed(alias, rows)
    categories = set(filter(None, map(str.strip, row["categories"].split(","))))
    return name in OTHER_FUNCTIONS or (bool(categories) and categories <= CATEGORIES)


def refuse_beyond_reading(tree: Iterable[str], words: Collection[str], reach: Reach) -> None:
    """Raise unless every node of a statement is allowed: the lines of EXPLAIN AST, the statement's own first.

    `words` are the statement's unquoted names, in upper case.
    """
    statement: str | None = None
    kind = ""
    for line in tree:
        above, (kind, _, rest) = kind, line.strip().lower().partition(" ")
        if not kind:
            continue
        statement = statement or kind
        name = rest.strip().partition(" ")[0]
        if kind not in NODES or statement not in STATEMENTS:
            raise _refuse(f"{kind.removesuffix('query')} is not served")
        if kind in WITHOUT_CHILDREN and not CONDITIONS.isdisjoint(words):
            raise _refuse("a condition of SHOW is not served; select from system.tables or system.columns")
        if kind in {"function", "identifier"} and name in reach.functions:
            raise _refuse(f"function {name} is not served")
        if kind == "function" and name in (reach.tables if above == "tableexpression" else reach.table_functions):
            raise _refuse(f"table function {name} is not served")
        database, _, table = name.partition(".")
        if (
            kind in {"identifier", "tableidentifier"}
            and database == "system"
            and table.partition(".")[0] not in SYSTEM_TABLES
        ):
            raise _refuse(f"table {name} is not served")
    if statement is None:
        raise _refuse("a statement that cannot be parsed is not served")


def _refuse(why: str) -> ClickHouseError:
    return refusal(Code.READONLY, f"Not as user {READONLY_USER!r}: {why}; it reads tables and computes from them")
