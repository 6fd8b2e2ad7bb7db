"""Components of a project of one's own."""
