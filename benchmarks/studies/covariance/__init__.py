"""Covariance sharing: what clients learn from each other is the second moment of their linear models."""
