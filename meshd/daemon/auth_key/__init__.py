"""The tailnet's auth keys: the shared key and its rotation, keys for one machine each, and spare keys."""
