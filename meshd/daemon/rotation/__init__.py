"""The rotation of the tailnet's auth key as the daemon carries it out. What to do next is decided in meshd.tailnet."""
