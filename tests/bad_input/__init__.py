"""What goes in wrong, and what is said about it: the kinds of input that a first-time user brings."""
