"""Federations of data: built-in sets, and tables of one's own."""
