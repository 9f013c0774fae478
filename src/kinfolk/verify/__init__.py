"""The four checks: flow, replay, mechanism, attack."""
