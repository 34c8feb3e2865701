"""The adapter for Lambda Cloud; `lambda` alone is a keyword, hence the name."""
