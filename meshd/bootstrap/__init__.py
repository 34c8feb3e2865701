"""How a machine becomes a node: stage 1, join tokens, the node agent that is served."""
