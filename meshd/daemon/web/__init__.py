"""The web page: serves it where the settings say, and takes the samples for its plots."""
