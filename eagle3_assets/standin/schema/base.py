"""What every table of the file is made of.

Belongs here: the strict table, bounded numbers. Does not belong here: any table.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Rate = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Table(BaseModel):
    """Unknown keys are refused; values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)
