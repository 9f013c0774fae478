"""A run that a test kills and starts again: `python -m tests.engines.killed_run FOLDER`"""

import sys
from pathlib import Path

from kinfolk import register_dataset
from kinfolk.training import loop
from tests.engines.test_streaming import function_data, long_experiment

if __name__ == "__main__":
    register_dataset("made", function_data)
    folder = Path(sys.argv[1])
    found = list(folder.iterdir()) if folder.exists() else []
    if found:
        loop.resume(found[0])
    else:
        loop.run(long_experiment(), folder)
