"""The unix-socket API: its documents, who may ask, and the server."""
