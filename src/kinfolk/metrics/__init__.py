"""Metrics as functions of a noisy table of counts: post-processing, so they cost nothing and see no row."""
