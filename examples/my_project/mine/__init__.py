"""Components of a project of your own."""
