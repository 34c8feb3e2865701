"""Stand-ins for the clouds: stateful servers that speak the vendors' APIs and fail on demand."""
