#!/usr/bin/env bash
# mcp 2.3.0: a tool's parameter of the type `str | None` takes the text "null" for None, and refuses texts that are a JSON list or object.
#
# Expected: an argument that is a string arrives as that string where the type allows one: the client sent it as JSON already.
# What happens: before it validates, MCPServer parses each string whose parameter is not exactly `str` as JSON once more, and keeps what is not a
# text or a number. "null" becomes None; '["a"]' becomes a list, which then is no string, so the call fails; with `str | list` the tool gets the list.
# With `text: str` all of them arrive as they were sent.
# Whom it matters to: whoever writes tools that take texts with a default of None: notes, answers, the content of a file. A file of JSON cannot be
# written, and the model is told that its string is not one.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv --without-pip "$folder/venv"
"${PYTHON:-python3}" -m pip --python "$folder/venv/bin/python" install -q --no-compile --disable-pip-version-check mcp==2.3.0
cat >"$folder/try.py" <<'PY'
import asyncio, sys
from importlib.metadata import version
from mcp.server import MCPServer

server = MCPServer("notes")

@server.tool()
def plain(text: str) -> str: return repr(text)

@server.tool()
def optional(text: str | None = None) -> str: return repr(text)

@server.tool()
def either(text: str | list[str]) -> str: return repr(text)

async def ask(tool, text):
    try:
        return (await server.call_tool(tool, {"text": text})).content[0].text
    except Exception as error:
        return "refused: should be a valid string" if "should be a valid string" in str(error) else repr(error)

async def main():
    texts = ("hello", "17", "null", '["a"]')
    seen = {tool: [await ask(tool, text) for text in texts] for tool in ("plain", "optional", "either")}
    print(f"mcp {version('mcp')}: the texts {texts}")
    for tool, values in seen.items():
        print(f"  arrive at `{tool}` as {values}")
    return seen

kept = [repr(text) for text in ("hello", "17", "null", '["a"]')]
sys.exit(asyncio.run(main()) != {
    "plain": kept,
    "optional": [*kept[:2], "None", "refused: should be a valid string"],
    "either": [*kept[:2], "refused: should be a valid string", "['a']"],
})
PY
"$folder/venv/bin/python" -W ignore "$folder/try.py" 2> /dev/null || { echo "the behaviour has changed"; exit 1; }
