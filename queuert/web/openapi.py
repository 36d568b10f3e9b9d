"""The OpenAPI document, made of the table of routes and of the registered job types."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from queuert.job_types import JobTypes
from queuert.web.answers import schema_of
from queuert.web.api import OPERATIONS, Operation
from queuert.web.bodies import StartBody
from queuert.web.problems import MEDIA_TYPE, ProblemBody

_REF = "#/components/schemas/{model}"

_VERSION = "1"
"""Of the interface: raised by a change that breaks programs which use it."""

_DESCRIPTIONS = {
    200: "Done",
    201: "The chain was started",
    202: "The chain is still open: ask again",
    204: "The chain has closed, and all its events were sent: do not connect again",
    400: "The request is malformed",
    401: "The request has no valid token",
    403: "The request is not allowed",
    404: "It does not exist",
    409: "The state of the chain does not allow it, or it has no result",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A value is not valid",
    500: "The request failed",
    501: "The store cannot do it",
    503: "The store is not available, or too many requests wait",
}

_ALWAYS = (400, 401, 403, 500, 501, 503)
_WITH_BODY = (413, 415, 422)


def document(job_types: JobTypes, base: str) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of an application whose path is ``base``.

    Example::

        document(client.job_types, "/queue")["paths"]["/chains"]["post"]["operationId"]      # "start_chain"
    """
    models: set[type[BaseModel]] = {
        model for one in OPERATIONS for model in (*one.answers.values(), one.body) if model is not None
    }
    wanted: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = [
        (model, "validation") for model in sorted(models | {ProblemBody}, key=lambda model: model.__name__)
    ]
    _, found = models_json_schema(wanted, ref_template=_REF)
    schemas = found["$defs"]
    schemas["StartBody"] = _starts(schemas["StartBody"], job_types)
    paths: dict[str, Any] = {}
    for one in OPERATIONS:
        paths.setdefault(one.path.replace(":id}", "}"), {})[one.method.lower()] = _operation(one)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Queuert", "version": _VERSION},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
        "security": [{"bearer": []}],
    }


def _starts(plain: dict[str, Any], job_types: JobTypes) -> dict[str, Any]:
    """The body of a start, with the input that each job type takes."""
    variants = []
    for one in job_types:
        # Each input has definitions of its own: models of different job types may have the same name.
        name = f"input-of-{one.name}"
        schema = schema_of(one.input_annotation)
        schema = {"$id": f"urn:queuert:{name}", **schema} if "$defs" in schema else schema
        properties = {**plain["properties"], "type": {"const": one.name}, "input": schema}
        variants.append({**plain, "title": f"Start {one.name}", "properties": properties})
    return {"oneOf": variants} if variants else plain


def _operation(one: Operation) -> dict[str, Any]:
    responses: dict[str, Any] = {
        str(status): {
            "description": _DESCRIPTIONS[status],
            **({} if status == 204 else {"content": {one.media_type: {"schema": _answer(model)}}}),
        }
        for status, model in one.answers.items()
    }
    for status in sorted({*_ALWAYS, *one.problems, *(() if one.body is None else _WITH_BODY)}):
        responses[str(status)] = {
            "description": _DESCRIPTIONS[status],
            "content": {MEDIA_TYPE: {"schema": _reference(ProblemBody)}},
        }
    found: dict[str, Any] = {
        "operationId": one.handler.__name__,
        "summary": one.summary,
        "description": f"Needs the action `{one.action}`." if one.action else "Needs any action.",
        "parameters": _parameters(one),
        "responses": responses,
    }
    if one.body is not None:
        required = any(field.is_required() for field in one.body.model_fields.values())
        content = {"application/json": {"schema": _reference(one.body)}}
        found["requestBody"] = {"required": required, "content": content}
    return found


def _parameters(one: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if "{id:id}" in one.path:
        id_schema = {"type": "string", "minLength": 1, "maxLength": 512}
        found.append({"name": "id", "in": "path", "required": True, "schema": id_schema})
    schema = one.query.model_json_schema()
    for name, property in schema.get("properties", {}).items():
        inlined = _inlined(property, schema.get("$defs", {}))
        found.append({"name": name, "in": "query", "required": False, "schema": inlined})
    if one.body is StartBody:
        description = "A repeated request with this key finds the chain of the first one."
        key_schema = {"type": "string", "minLength": 1, "maxLength": 255}
        found.append({"name": "Idempotency-Key", "in": "header", "description": description, "schema": key_schema})
    return found


def _inlined(schema: Any, definitions: dict[str, Any]) -> Any:
    """The schema of a parameter without references, and without null, which a query cannot have."""
    if isinstance(schema, list):
        return [_inlined(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return definitions[schema["$ref"].rpartition("/")[2]]
    found = {name: _inlined(value, definitions) for name, value in schema.items()}
    if "anyOf" in found:
        [found] = [one for one in found["anyOf"] if one != {"type": "null"}]
    return found


def _answer(model: type[BaseModel] | None) -> dict[str, Any]:
    return {} if model is None else dict(_reference(model))


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=model.__name__)}
