"""`kinfolk app`: the commands as pages in a browser on the same machine. It runs the command line, and nothing else."""
