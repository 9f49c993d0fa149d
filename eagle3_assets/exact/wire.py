"""`parse_fields` under its old name; the parser lives in `eagle3_assets.wire`."""

from eagle3_assets.wire.fields import storable
from eagle3_assets.wire.parse import parse_fields
from eagle3_assets.wire.values import usd

__all__ = ["parse_fields", "storable", "usd"]
