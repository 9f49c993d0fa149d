"""`[source]`: where answers come from.

Belongs here: settings of sources. Does not belong here: the sources (`source`, `live`).
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from eagle3_assets.standin.schema.base import Rate, Table

Answers = Literal["bank", "live"]


class Source(Table):
    """`[source]`: where answers come from. The shares say how often a request with declared tools gets a call from the bank; a live
    model decides that itself."""

    kind: Answers = Field(
        default="bank", description="bank replays committed answers; live samples kimi-mini (loads torch in the server process)"
    )
    slots: int = Field(default=32, ge=1, le=512, description="live: answers sampled at once; others wait")
    synthetic_logprobs: bool = Field(
        default=False,
        description="bank: it has no log-probabilities; true makes them up (tokens and bytes are true, the numbers mean nothing)",
    )
    tool_share_after_user: Rate = Field(default=0.8, description="share of calls when the last message is the user's")
    tool_share_after_tool: Rate = Field(default=0.3, description="share of further calls when it is a tool's result")
