"""What every table of the file is made of.

Belongs here: the strict table, bounded numbers. Does not belong here: any table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]  # thirty years
Usd = Annotated[float, Field(ge=0, le=1e6)]  # the ledger counts picodollars in 64 bits
PerSecond = Annotated[float, Field(ge=1e-6, le=1e9)]


class Table(BaseModel):
    """Unknown keys are refused; values do not change. What a table derives from its values once (`cached_property`) does not pass to a
    changed copy."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied
