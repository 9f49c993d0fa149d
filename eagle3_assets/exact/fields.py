"""`Fields` and `ToolCall` under their old name; they live in `eagle3_assets.wire.fields`."""

from eagle3_assets.wire.fields import Fields, ToolCall

__all__ = ["Fields", "ToolCall"]
