"""A small federation for tests that train: those that use it share compiled programs."""

from functools import partial

from kinfolk.data.sets.synthetic import synthetic_schools

six_schools = partial(synthetic_schools, clients=6, features=2, least=12, most=24)
"""At batches of 8 some clients take one step and some two, so that programs have two blocks."""
