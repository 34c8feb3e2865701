"""The head as the NFS server of its nodes: how it is set up, and what it exports."""
