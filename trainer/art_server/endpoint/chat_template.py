"""The ChatML template of models that this project makes or fetches: like any other, and it renders tools.

Tools are one JSON object a line between `<tools>` tags, calls as `tool_calls` reads them.
"""

import json


def chat_template(*, system: str = "", tools_note: str = "") -> str:
    """Return the template; `system` opens a chat that has no system message, `tools_note` stands before the tools."""
    return (
        f"{{%- set default = {json.dumps(system)} -%}}"
        "{%- set has_opening = messages[0]['role'] == 'system' -%}"
        "{%- set opening = (messages[0]['content'] or '') if has_opening else default -%}"
        "{%- if tools or has_opening or default -%}"
        "{{- '<|im_start|>system\n' + opening -}}"
        "{%- if tools -%}"
        f"{{{{- ('\n' if opening else '') + {json.dumps(tools_note)} + '<tools>\n' -}}}}"
        "{%- for tool in tools -%}{{- (tool['function'] or tool) | tojson + '\n' -}}{%- endfor -%}"
        "{{- '</tools>' -}}"
        "{%- endif -%}"
        "{{- '<|im_end|>\n' -}}"
        "{%- endif -%}"
        "{%- for message in (messages[1:] if has_opening else messages) -%}"
        "{{- '<|im_start|>' + message['role'] + '\n' + (message['content'] or '') -}}"
        "{%- for call in message['tool_calls'] or [] -%}"
        "{{- '' if loop.first and not message['content'] else '\n' -}}"
        "{%- set function = call['function'] -%}"
        "{{- '<tool_call>\n{\"name\": ' + (function['name'] | tojson) -}}"
        "{{- ', \"arguments\": ' + (function['arguments'] | tojson) + '}\n</tool_call>' -}}"
        "{%- endfor -%}"
        "{{- '<|im_end|>\n' -}}"
        "{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
    )
