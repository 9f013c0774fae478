"""Studies, peers and speed; run from the repository root: `python -m benchmarks.studies.school.run`."""
