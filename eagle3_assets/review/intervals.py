"""Exact binomial bounds: moved to `eagle3_assets.intervals`, where every room may use them."""

from eagle3_assets.intervals import beta_quantile, interval, lower_bound, regularized_beta, upper_bound

__all__ = ["beta_quantile", "interval", "lower_bound", "regularized_beta", "upper_bound"]
