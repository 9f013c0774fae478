"""Imported once, by the process from which the silos of `federation.py` are forked: all that their programs need."""

import gc
from importlib import import_module

for name in (
    *(
        "kinfolk.deploy.coordinator",
        "kinfolk.deploy.scaffold",
        "kinfolk.deploy.silo",
        "kinfolk.training.prepare",
        "polars",
        "cryptography.hazmat.primitives.serialization",
    ),
    *("flwr.supernode.cli", "flwr.supernode.main", "uvicorn", "httpcore"),
    *("flwr.supernode.runtime.run_clientapp", "flwr.app", "flwr.supercore.runtime"),
):
    import_module(name)
gc.collect()
gc.freeze()  # or every child would copy all of it when it tidies up
