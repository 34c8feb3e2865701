"""One command of meshctl in each file; each has its click command as `command`."""
