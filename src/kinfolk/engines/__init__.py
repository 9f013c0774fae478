"""Engines around the two pure functions of a round. Needs jax and numpy only."""
