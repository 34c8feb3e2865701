"""The tailnet: what tailscaled knows, what the control server's API can do, and where auth keys come from."""
