"""What stands around every provider: a deadline for each call, metrics, and a circuit breaker."""
