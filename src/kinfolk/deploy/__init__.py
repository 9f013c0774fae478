"""A real federation: the two functions of a round, at silos that trust nobody and at a server, over Flower."""
