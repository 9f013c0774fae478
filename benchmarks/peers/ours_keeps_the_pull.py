"""kinfolk: the pull of each client's weights towards the shared ones acts on private training as it should.

python -m benchmarks.peers.ours_keeps_the_pull
"""

import hashlib
import warnings

import numpy as np

from kinfolk import PersonalizedRegressor, example_level

warnings.simplefilter("ignore")
generator = np.random.default_rng(0)
x, clients = generator.uniform(-1, 1, (256, 8)), np.repeat(["a", "b", "c", "d"], 64)
y = x @ generator.normal(size=8) + (x @ generator.normal(size=(8, 4)))[np.arange(256), np.repeat(range(4), 64)]

for strength in (0.0, 1.0, 100.0):
    level = example_level(noise_multiplier=1.0, clip=1.0)
    settings = {"strength": strength, "rounds": 10, "step_size": 0.1, "bounds": (-1, 1), "random_state": 0}
    found = PersonalizedRegressor("mean_regularized", level, **settings).fit(x, y, clients=clients).models_
    assert found.shared is not None
    (own, _), (shared, _) = found.layers[0], found.shared[0]
    distance = np.sqrt(np.square(own - shared).sum(axis=(1, 2)).mean())
    print(
        f"kinfolk, example level, strength {strength:3g}: distance from the shared model {distance:.6f}, "
        f"weights {hashlib.sha256(own.tobytes()).hexdigest()[:12]}"
    )
