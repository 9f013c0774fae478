"""Secure aggregation: silos add masks that cancel and shares of noise, so that nobody sees a single message."""
