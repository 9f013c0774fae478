"""The built-in federations, one file each."""
