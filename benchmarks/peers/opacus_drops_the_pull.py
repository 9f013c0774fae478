"""Opacus: a pull of weights towards w0, added to the loss, is lost in silence. See README.md beside this."""

import hashlib
import warnings

import torch
from opacus import PrivacyEngine

warnings.simplefilter("ignore")
generator = torch.Generator().manual_seed(0)
x, w0 = torch.randn(256, 8, generator=generator), torch.zeros(1, 8)
data = torch.utils.data.TensorDataset(x, x @ torch.randn(8, 1, generator=generator))

for private in (False, True):
    for strength in (0.0, 1.0, 100.0):
        torch.manual_seed(0)
        model = torch.nn.Linear(8, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = torch.utils.data.DataLoader(data, batch_size=32)
        if private:
            settings = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": False}
            settings["noise_generator"] = torch.Generator().manual_seed(0)
            model, optimizer, loader = PrivacyEngine().make_private(
                module=model, optimizer=optimizer, data_loader=loader, **settings
            )
        (w,) = model.parameters()
        for inputs, outcomes in (batch for _ in range(10) for batch in loader):
            optimizer.zero_grad()
            loss = (model(inputs) - outcomes).square().mean() / 2 + strength / 2 * (w - w0).square().sum()
            loss.backward()
            optimizer.step()
        name, seen = "Opacus" if private else "plain torch", w.detach()
        digest = hashlib.sha256(seen.numpy().tobytes()).hexdigest()[:12]
        print(f"{name:11}, strength {strength:3g}: distance from w0 {(seen - w0).norm():.6f}, weights {digest}")
