"""Where data may leave, what it costs, and the checks that nothing else does."""
