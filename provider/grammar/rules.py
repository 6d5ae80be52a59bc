"""The form in which grammars are written down and sent to workers."""

import json


def grammar_of(rules: str, schemas: dict[str, object]) -> str:
    """Lark rules, in which `@name` stands for a JSON schema of `schemas`, in the form that workers are sent."""
    named = [{"name": name, "json_schema": schema} for name, schema in schemas.items()]
    return json.dumps({"grammars": [{"name": "answer", "lark_grammar": rules}, *named]}, ensure_ascii=False)
