"""The theory shelf: small closed forms and bounds, each tested by simulation. Needs numpy and scipy only."""
