"""Write docs/documents.schema.json from queuert/documents.py; with --check, only say if they differ."""

import json
import sys
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from queuert import documents
from queuert.documents import Document

FILE = Path(__file__).resolve().parent.parent / "docs" / "documents.schema.json"


class _WithoutTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: object) -> bool:
        """Titles would only repeat the names."""
        return False


def shown_documents() -> list[type[Document]]:
    """The documents of the module, by name."""
    found = (one for one in vars(documents).values() if isinstance(one, type) and issubclass(one, Document))
    return sorted((one for one in found if one is not Document), key=lambda one: one.__name__)


def schema() -> dict[str, Any]:
    """The JSON schema of all documents."""
    wanted: list[tuple[type[BaseModel], Literal["serialization"]]] = [
        (one, "serialization") for one in shown_documents()
    ]
    _, found = models_json_schema(wanted, schema_generator=_WithoutTitles)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Documents of Queuert", **found}


def main() -> int:
    """Write the file, or check it."""
    text = json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"
    if FILE.exists() and FILE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv:
        print(f"{FILE.name} differs from queuert/documents.py: run make format", file=sys.stderr)
        return 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
