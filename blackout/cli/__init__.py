"""The commands; they know no family of models, only the interface that all families share."""
