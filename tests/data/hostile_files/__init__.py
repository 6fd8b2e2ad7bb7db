"""Files that would take memory or time, or execute code, by format."""
