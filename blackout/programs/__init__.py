"""What the commands do, for models of any family."""
