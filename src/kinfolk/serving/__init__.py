"""Trained models in use: predictions, and exports that need no kinfolk."""
