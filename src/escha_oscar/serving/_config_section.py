"""Typed, bounded access to one object of an untrusted config.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from escha_oscar.errors import UsageError
from escha_oscar.serving.strict_json import Document, JsonPath, dotted, type_name


@dataclass(frozen=True)
class Section:
    """One object of a document: ``values`` at the JSON path ``at``. All methods raise UsageError with file and line."""

    document: Document
    values: dict[str, Any]
    at: JsonPath

    def error(self, key: str, message: str, *, sought: str | None = None, found: str | None = None) -> UsageError:
        """Build an error that names the key, the file and the line."""
        return self.document.error((*self.at, key), message, sought=sought, found=found)

    def has(self, key: str) -> bool:
        """Say whether a key is present and not null."""
        return self.values.get(key) is not None

    def integer(self, key: str, low: int, high: int) -> int:
        """Return a required integer in [low, high]."""
        value = self.optional(key, low, high)
        if value is None:
            raise UsageError(
                f"{dotted((*self.at, key))} is missing",
                path=self.document.path,
                line=self.document.lines.get(self.at),
                sought=f"an integer from {low} to {high}",
            )
        return value

    def optional(self, key: str, low: int, high: int) -> int | None:
        """Return an integer in [low, high], or None where the key is absent or null."""
        value = self.values.get(key)
        return None if value is None else self.bounded((*self.at, key), value, low, high)

    def bounded(self, at: JsonPath, value: object, low: int, high: int) -> int:
        """Check one value's type and range."""
        if isinstance(value, bool) or not isinstance(value, int):
            found = f"{type_name(value)} {value!r}"[:60]
            raise self.document.error(at, "has the wrong type", sought="an integer", found=found)
        if not low <= value <= high:
            raise self.document.error(at, "is out of range", sought=f"{low} to {high}", found=str(value))
        return value

    def array(self, key: str) -> list[Any] | None:
        """Return an array, or None where the key is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, list):
            raise self.error(key, "has the wrong type", sought="an array", found=type_name(value))
        return value

    def text(self, key: str) -> str | None:
        """Return a string, or None where the key is absent or null."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, "has the wrong type", sought="a string", found=type_name(value))
        return value

    def inner(self, key: str) -> Section:
        """Return a nested object that is present."""
        value = self.values[key]
        if not isinstance(value, dict):
            raise self.error(key, "has the wrong type", sought="an object", found=type_name(value))
        return Section(self.document, value, (*self.at, key))
