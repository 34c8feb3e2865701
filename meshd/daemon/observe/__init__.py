"""What the daemon observes, and how often it reads each source."""
