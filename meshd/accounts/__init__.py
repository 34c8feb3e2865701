"""The head's accounts: who may use the cluster."""
