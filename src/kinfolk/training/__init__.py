"""From an experiment to a run directory: prepare, charge, compute, publish."""
