"""Arguments that a function hands on by `**` have types, so that mypy sees one that was renamed."""

import ast

from tests.test_boundaries import MODULES, ROOT

FOREIGN = {
    "consumers/clickhouse/store/fills.py:row": "columns of a table",
    "producers/capture/aiohttp_hook.py:request_recorded": "arguments of aiohttp's own method",
    "producers/capture/httpx_hook.py:send": "arguments of httpx's own method",
    "producers/capture/httpx_hook.py:send_async": "arguments of httpx's own method",
    "rollbus/cli/commands/streams/run.py:make_context": "arguments of click's own method",
    "rollbus/cli/root.py:run": "options of any command",
    "rollbus/nemo/trainer.py:__init__": "arguments of the toolkit's own class",
    "rollbus/resample/allowance.py:post_async": "arguments of the client's own method",
    "rollbus/resample/allowance.py:post_sync": "arguments of the client's own method",
    "rollbus/terminal/output.py:render_str": "arguments of rich's own method",
    "trainer/art_server/arts_own/packing.py:_get_packed_tensors": "arguments of ART's own method",
}
"""Functions that hand on what another project or a user's data names."""


def _functions_that_hand_on_anything() -> set[str]:
    return {
        f"{path}:{node.name}"
        for path in MODULES
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _hands_on_anything(node)
    }


def _hands_on_anything(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Say whether it passes untyped `**` on.

    With `*args` in addition it may wrap a function that it does not know, but not one of its class.
    """
    name, is_wrapper = function.args.kwarg, function.args.vararg is not None
    if name is None or name.annotation is None or ast.unparse(name.annotation) != "Any":
        return False
    return any(
        isinstance(call, ast.Call)
        and any(_is_of(keyword, name.arg) for keyword in call.keywords)
        and not (is_wrapper and "super()" not in ast.unparse(call.func))
        for call in ast.walk(function)
    )


def _is_of(keyword: ast.keyword, name: str) -> bool:
    """Say whether it is `**name`, or a `**` of something made from it."""
    used_names = {node.id for node in ast.walk(keyword.value) if isinstance(node, ast.Name)}
    return keyword.arg is None and name in used_names


def test_every_argument_that_is_handed_on_has_a_type() -> None:
    assert _functions_that_hand_on_anything() == FOREIGN.keys()
